"""What-if: how often to checkpoint and where to, how many spares, how far a run can scale.

Pure: files are read, and pages shown, by `app/`.
"""
