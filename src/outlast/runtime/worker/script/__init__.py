"""What outlast observes and mends in the script that a worker runs."""
