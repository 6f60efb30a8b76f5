"""What-if: how often to checkpoint and where to, how many spares, how far a run can scale.

The code here is pure: `app/` reads the files and shows the pages.
"""
