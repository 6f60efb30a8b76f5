"""Where images and checkpoints are kept: shared memory, other nodes, parity, a disk."""
