"""Drills as data: faults, plans and scores."""
