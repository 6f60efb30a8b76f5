"""The ledger, a SQLite file with all that a run recorded, and the copies of it."""
