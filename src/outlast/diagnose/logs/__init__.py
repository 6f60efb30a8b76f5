"""Readers of log lines, kernel logs, exit records and numbers."""

from outlast.diagnose.logs.streams import read_lines

__all__ = ["read_lines"]
