"""Commands that show a run as it goes on."""
