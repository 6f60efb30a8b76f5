"""What a check or a drill tells a worker to do, read from its environment."""
