"""Checkpoints of torch's distributed checkpoint (DCP), written to and read from outlast's tiers."""
