"""A process of the lowest priority that writes captured images to the disk (writer_process.py)."""
