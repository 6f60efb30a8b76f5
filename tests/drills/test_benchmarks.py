"""Benchmarks that no other test runs still fit the code that they time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.drill
def test_the_channel_benchmark_times_a_regroup() -> None:
    """Method: six agents of two ranks each instead of 12,500 agents of eight, and one rank dies."""
    sizes = ("--peers", "6", "--ranks-per-peer", "2", "--beat-s", "0.5")
    lasts = ("--seconds", "0.5", "--strikes", "1", "--patience-s", "30")
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "channel.py"), *sizes, *lasts],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "all ranks train" in done.stdout
    assert "one rank dies; median of 1" in done.stdout
