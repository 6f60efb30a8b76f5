"""The faults of a simulated run: drawn from its seed, or scripted."""
