"""`outlast diagnose --collect`: gather on one node what a diagnosis needs."""

from outlast.runtime.collect.collector import Collected, collect
from outlast.runtime.collect.processes import JobProcess, find_processes

__all__ = ["Collected", "JobProcess", "collect", "find_processes"]
