"""Copies of the state: images in the vault and at peers, checkpoints, and weights for others."""
