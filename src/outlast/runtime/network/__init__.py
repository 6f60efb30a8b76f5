"""Sockets between processes and nodes: addresses, channels of messages, and proofs."""
