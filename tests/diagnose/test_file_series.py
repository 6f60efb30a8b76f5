"""Files that are named alike but for a number: whether it is the rank that wrote each of them."""

from __future__ import annotations

import pytest

from outlast.diagnose.file_series import with_ranks_of_series
from outlast.diagnose.findings import Finding
from outlast.diagnose.logs import read_lines
from tests.diagnose.fuse.test_accounts import LOST

ABORTED = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"


def found(logs: dict[str, str], world_size: int = 0) -> dict[str, set[int | None]]:
    """Return the ranks of the findings of each file."""
    findings: list[Finding] = [
        one
        for name, text in logs.items()
        for one in read_lines(text.encode().splitlines(keepends=True), name=name)
    ]
    ranks: dict[str, set[int | None]] = {}
    for one in with_ranks_of_series(findings, logs, world_size):
        ranks.setdefault(one.evidence.file, set()).add(one.rank)
    return ranks


@pytest.mark.parametrize(
    "name", ["train-4711-{}.out", "logs/{}/out.txt", "log.{}", "worker0{}.log"]
)
def test_the_number_in_a_name_is_the_rank_that_its_lines_tell(name: str) -> None:
    """One rank aborts without its rank, and one says nothing."""
    texts = [LOST.format(r=0), ABORTED, "step 7\n"]
    logs = {name.format(rank): text for rank, text in enumerate(texts)}
    assert found(logs) == {name.format(rank): {rank} for rank in range(3)}
    others = {f"{name.format(rank)}.err": "step 7\n" for rank in range(3)}
    assert found(logs | others) == {
        **{name.format(rank): {rank} for rank in range(3)},
        **{f"{name.format(rank)}.err": {rank} for rank in range(3)},
    }


def test_without_such_lines_the_numbers_have_to_be_those_of_all_ranks() -> None:
    logs = {f"train-4711-{rank}.out": ABORTED for rank in range(3)}
    assert found(logs, world_size=3) == {f"train-4711-{rank}.out": {rank} for rank in range(3)}
    for world_size in (0, 2, 24):
        assert found(logs, world_size) == {name: {None} for name in logs}


@pytest.mark.parametrize(
    "texts",
    [
        {0: LOST.format(r=0), 1: LOST.format(r=8), 2: ABORTED},
        {0: LOST.format(r=0) + LOST.format(r=1), 1: ABORTED},
        {0: LOST.format(r=0), 5: ABORTED},
        {
            0: LOST.format(r=0),
            1: ABORTED + "E1126 [default1]: Root Cause (first observed failure)\n",
        },
    ],
    ids=["nodes", "several ranks in one file", "a gap", "a launcher's lines"],
)
def test_other_numbers_are_no_ranks(texts: dict[int, str]) -> None:
    logs = {f"train-4711-{number}.out": text for number, text in texts.items()}
    assert None in set().union(*found(logs).values())
