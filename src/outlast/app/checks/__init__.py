"""`outlast check`: the script's files, its trial runs, and the answer."""
