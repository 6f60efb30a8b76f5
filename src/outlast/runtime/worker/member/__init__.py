"""A worker as a member of its run: its session with the launcher, and its generation."""
