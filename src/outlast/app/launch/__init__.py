"""`outlast run`: options, nodes, the start of a run and its continuation."""
