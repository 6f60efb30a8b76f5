"""The two-phase commit of a step, as one rank carries it out (commit_machine.py)."""
