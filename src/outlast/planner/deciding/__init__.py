"""The parts of decision mode: see `planner/decisions.py`."""
