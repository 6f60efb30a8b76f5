"""A process of the lowest priority that writes captured images to the disk (process.py)."""
