"""The driver of the coordinator: its timers, its ledger, its connections to all nodes."""
