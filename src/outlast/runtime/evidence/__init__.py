"""Files to pieces, pieces to findings: the walk through what was given, archives, limits, and the
processes that read dumps.
"""
