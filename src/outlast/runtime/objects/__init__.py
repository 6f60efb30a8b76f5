"""Checkpoints in object storage: one process uploads, fetches and lists them."""
