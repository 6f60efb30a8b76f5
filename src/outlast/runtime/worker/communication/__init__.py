"""Process groups, DDP, and the votes of the ranks through shared memory and between nodes."""
