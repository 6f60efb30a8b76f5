"""What a worker does in a run of `outlast check`, and in the runs that a drill compares."""
