"""From what happened to what is planned with: rates, laws of age, phases of recovery, each with how
sure it is. Pure; files are read by `runtime`.
"""
