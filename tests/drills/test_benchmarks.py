"""Benchmarks that no other test runs still fit the code that they time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from outlast.runtime.drill.drill_hosts import may_be_made

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


@pytest.mark.drill
@pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}")
def test_the_link_benchmark_moves_an_image_both_ways() -> None:
    """An image of 8 MB crosses a link between two hosts, and comes back."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "image_link.py"), "--bytes", "8388608", "--repeats", "1"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode in (0, 1, 3), done.stderr
    assert "  copy at " in done.stdout
    assert "  fetch at " in done.stdout


@pytest.mark.drill
@pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}")
def test_the_benchmark_of_a_shared_link_sends_a_copy_in_each_way() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "shared_link.py"), "--rounds", "2", "--steps", "2"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    for name in ("none", "at-once", "last"):
        assert f"  {name}" in done.stdout
