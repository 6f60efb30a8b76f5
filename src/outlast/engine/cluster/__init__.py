"""Runs on several nodes: sessions and leases of agents, and voters for a new coordinator."""
