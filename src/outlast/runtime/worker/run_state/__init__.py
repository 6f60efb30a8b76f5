"""`run.state`: which objects belong to it, and whether they are the same on all ranks."""
