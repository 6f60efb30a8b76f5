"""Fetch images of other ranks' state: from another process, from another node, or from parity."""
