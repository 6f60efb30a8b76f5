"""The simulator: the real state machines in a simulated world, checked against rules."""
