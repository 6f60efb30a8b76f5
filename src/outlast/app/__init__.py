"""The command line: the options of each command, and what it prints, writes or serves."""
