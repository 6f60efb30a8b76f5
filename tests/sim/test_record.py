"""A run that was written to a file: when it is read again, it is the same run. A file that is no
such record is refused, and the error names it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from outlast.errors import UsageError
from outlast.sim.record import read
from outlast.sim.simulated_run import simulate, simulate_seed


def written(seed: int = 12) -> dict[str, Any]:
    return simulate_seed(seed=seed, given={}).as_dict() | {"version": "1", "wall_s": 0.1}


@pytest.mark.parametrize("seed", [0, 12, 60])
def test_a_run_that_is_read_back_takes_the_same_course(seed: int) -> None:
    record = read(json.dumps(written(seed)), source="run.json", version="1")
    assert (
        simulate(seed=record.seed, options=record.options, faults=record.faults).trace_digest
        == record.trace_digest
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "0"}, "was written by outlast 0; in this version, 1,"),
        ({"seed": "12"}, "seed has to be a whole number"),
        ({"faults": [{"kind": "kil"}]}, "there is no fault kind 'kil'"),
        ({"faults": 3}, "faults have to be tables"),
        ({"options": {"ranks": 3}}, "options are"),
        ({"options": written()["options"] | {"ranks": "3"}}, "ranks is '3'"),
        ({"options": written()["options"] | {"ranks": 0}}, "ranks is 0"),
    ],
)
def test_a_record_that_cannot_be_simulated_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(json.dumps(written() | change), source="run.json", version="1")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "3"])
def test_a_text_that_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^run.json"):
        read(text, source="run.json", version="1")
