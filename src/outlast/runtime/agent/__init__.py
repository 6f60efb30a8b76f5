"""The driver of the agent: it starts the workers of a node, watches them, and keeps copies."""
