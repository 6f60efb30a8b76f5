"""The folders and files of a run, and files that people name."""
