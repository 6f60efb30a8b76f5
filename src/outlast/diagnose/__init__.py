"""Evidence to verdict, pure: readers take bytes or lines, reasoning takes what they found.

No clock, no files, no torch.
"""
