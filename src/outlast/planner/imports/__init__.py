"""Records of failures that others have, brought into the form of a ledger.

Each reader returns `Records`, as a ledger is read. So `report`, `calibrate` and `plan --ledger`
take what they say without knowing where it comes from. An event `imported` says it to those who
ask.
"""
