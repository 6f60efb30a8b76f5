"""`outlast drill`: options, the comparison with other launchers, and the words of the score."""
