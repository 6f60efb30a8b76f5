"""Read failures from other sources, as the records of a ledger.

Each reader returns `Records`, as a ledger is read. So `report`, `calibrate` and `plan --ledger`
need not know where the records come from. An event `imported` names the source.
"""
