"""The exception that says that a shortcut is not valid, so that the run is simulated without it."""

from __future__ import annotations


class Parted(Exception):
    """Ranks or nodes that are simulated as one have got different messages."""
