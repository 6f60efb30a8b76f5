"""Shortcuts that make a simulation faster and leave its course the same."""
