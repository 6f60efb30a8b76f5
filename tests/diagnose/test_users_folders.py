"""Folders as users have them: several attempts, other people's GPUs, texts that a log shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.model.verdict import Verdict
from tests.diagnose._written import verdict_of


def steps_at(first: int, last: int, hour: str = "2026-05-11 03") -> str:
    return "".join(
        f"{hour}:{step // 60:02d}:{step % 60:02d},000 INFO step={step} loss=2.{step}\n"
        for step in range(first, last)
    )


def raised(rank: int, error: str) -> str:
    label = f"[rank{rank}]: "
    return (
        f"{label}Traceback (most recent call last):\n"
        f'{label}  File "/app/train.py", line 61, in main\n'
        f"{label}    loss = step(batch)\n"
        f"{label}{error}\n"
    )


def ranks_of(verdict: Verdict) -> list[int]:
    return [one.rank for one in verdict.ranks]


ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
WAITED = "".join(
    f"[rank{rank}]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc"
    ":81] Timed out waiting 1800000ms for recv operation to complete\n"
    for rank in (0, 1, 3)
)
BARE_KILL = "run.sh: line 4: 4711 Killed                  python train.py\n"


# --- nothing is known -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (WAITED, "outlast diagnose --collect OUT"),
        (BARE_KILL, "dmesg -T"),
        ("[rank1]: RuntimeError: CUDA error: unspecified launch failure\n", "nvidia-smi -q"),
    ],
)
def test_where_nothing_is_known_evidence_is_asked_for(
    tmp_path: Path, text: str, asked: str
) -> None:
    """A restart was advised before, though nothing told that it would end otherwise."""
    got = verdict_of(tmp_path, {"train.log": steps_at(0, 30) + text})
    assert got.failure_class.value == "unknown"
    assert asked in got.action
    assert "from the last checkpoint" not in got.action
