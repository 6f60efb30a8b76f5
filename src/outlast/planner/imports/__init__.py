"""Read failures from other sources, and return them as the records of a ledger.

Each reader returns `Records`, like the reader of a ledger. So `report`, `calibrate` and `plan
--ledger` need not know where the records come from. An event `imported` names the source.
"""
