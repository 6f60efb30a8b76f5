"""Findings of all kinds, and what the collectives' graph shows, into one verdict."""

from outlast.diagnose.fuse.decide import decide
from outlast.diagnose.fuse.weights import WEIGHTS, Weights

__all__ = ["WEIGHTS", "Weights", "decide"]
