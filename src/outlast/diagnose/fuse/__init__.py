"""Fuse findings of all kinds, and the graph of collectives, into one verdict."""

from outlast.diagnose.fuse.decide import decide
from outlast.diagnose.fuse.weights import WEIGHTS, Weights

__all__ = ["WEIGHTS", "Weights", "decide"]
