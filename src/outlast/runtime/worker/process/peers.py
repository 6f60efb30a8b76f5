"""Recognise the loss of a peer. torch and gloo report it by these types, or only in these words."""

from __future__ import annotations

_TYPES = ("DistBackendError", "DistNetworkError")
_WORDS = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "Socket Timeout",
    "connectFullMesh",
)


def is_peer_failure(error: BaseException) -> bool:
    """Return whether torch raised `error` because a peer or its connection is gone."""
    if type(error).__name__ in _TYPES:  # tidy: not every build of torch has these types
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(words in text for words in _WORDS)
