"""The sentence with which the adapter refuses. This module does not need Lightning."""

from __future__ import annotations

from outlast.errors import UsageError


def not_done(what: str, hint: str) -> UsageError:
    """Return the error for something that the adapter does not support."""
    return UsageError(f"outlast.lightning does not do {what}", hint=hint)
