"""Fit the inputs of a plan to what happened: rates, laws of age, and phases of recovery.

Each result says how sure it is. The code here is pure; `runtime` reads the files.
"""
