"""Libraries with training loops of their own, and scripts for other launchers."""
