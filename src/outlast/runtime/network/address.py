"""Addresses as nodes send them to each other: HOST:PORT."""

from __future__ import annotations


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT. An IPv6 host may be in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
