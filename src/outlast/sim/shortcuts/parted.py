"""The signal that a shortcut does not hold, so that the run has to be simulated without it."""

from __future__ import annotations


class Parted(Exception):
    """Ranks or nodes that are simulated as one have got different messages."""
