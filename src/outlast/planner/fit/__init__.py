"""Fit the inputs of a plan to past failures: rates, laws of age, and phases of recovery.

Each result says how uncertain it is. The code here is pure; `runtime` reads the files.
"""
