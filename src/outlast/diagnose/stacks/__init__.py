"""Read stacks of processes from py-spy and faulthandler, and compare them as a prefix tree."""

from outlast.diagnose.stacks.reader import Stack, StackReader
from outlast.diagnose.stacks.tree import compare

__all__ = ["Stack", "StackReader", "compare"]
