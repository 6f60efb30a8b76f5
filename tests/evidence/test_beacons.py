"""Beacons of a run that nobody watched any more: who stood behind the others is told, where that
can be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.diagnose.laggards import find_laggards
from outlast.model.beacon import BEACON_BYTES, Beacon, pack_into
from outlast.model.terms import PHASES, Mechanism, Phase
from outlast.runtime.evidence.reading import diagnose

At = tuple[Phase, int]  # phase, and the newest committed step


def beacons(places: Mapping[int, At], *, generation: int = 1) -> dict[str, Beacon]:
    return {
        f"beacon-{rank}": Beacon(
            worker=rank,
            rank=rank,
            generation=generation,
            step=step,
            at_ns=10**9 * (rank + 1),
            phase=phase,
        )
        for rank, (phase, step) in places.items()
    }


def keep(folder: Path, found: Mapping[str, Beacon]) -> None:
    for name, beacon in found.items():
        page = bytearray(BEACON_BYTES)
        pack_into(memoryview(page), beacon)
        (folder / name).write_bytes(page)


@pytest.mark.parametrize(
    ("places", "rule", "ranks"),
    [
        ({0: (Phase.VOTE, 6), 1: (Phase.DATA, 6), 2: (Phase.VOTE, 6)}, "beacon.apart", [1]),
        ({0: (Phase.VOTE, 6), 1: (Phase.BODY, 6), 2: (Phase.DATA, 6)}, "beacon.apart", [2]),
        ({0: (Phase.BODY, 7), 1: (Phase.APPLY, 6), 2: (Phase.VOTE, 7)}, "beacon.behind", [1]),
        ({0: (Phase.BODY, 6), 1: (Phase.VOTE, 6), 2: (Phase.VOTE, 6)}, "beacon.body", [0]),
        ({0: (Phase.BODY, 6), 1: (Phase.BODY, 6), 2: (Phase.VOTE, 6)}, "beacon.one_of", [0, 1]),
        ({0: (Phase.VOTE, 6), 1: (Phase.VOTE, 6)}, "beacon.level", [None]),
    ],
)
def test_who_stands_behind_is_found(
    places: dict[int, At], rule: str, ranks: list[int | None]
) -> None:
    found = find_laggards(beacons(places))
    assert [(one.rule, one.rank) for one in found] == [(rule, rank) for rank in ranks]


def test_a_rank_that_applies_has_seen_the_vote_that_others_stand_in() -> None:
    assert not find_laggards(beacons({0: (Phase.APPLY, 6), 1: (Phase.VOTE, 6)}))


def test_of_an_older_generation_nothing_counts() -> None:
    old = {"old": next(iter(beacons({5: (Phase.DATA, 2)}).values()))}
    found = find_laggards(old | beacons({0: (Phase.VOTE, 6), 1: (Phase.BODY, 6)}, generation=2))
    assert [(one.rule, one.rank) for one in found] == [("beacon.body", 0 + 1)]


def test_beacons_name_the_rank_that_is_behind_and_give_no_reason(
    tmp_path: Path,
) -> None:
    keep(
        tmp_path,
        beacons({0: (Phase.VOTE, 6), 1: (Phase.DATA, 6), 2: (Phase.VOTE, 6), 3: (Phase.VOTE, 6)}),
    )
    verdict = diagnose([str(tmp_path)]).verdict
    assert (
        [one.rank for one in verdict.ranks],
        verdict.mechanism,
        verdict.failure_class.value,
    ) == ([1], Mechanism.HANG, "unknown")
    assert "rank 1: in data after step 6" in verdict.reason


def test_of_several_in_one_body_none_is_named(tmp_path: Path) -> None:
    keep(tmp_path, beacons({0: (Phase.BODY, 6), 1: (Phase.BODY, 6), 2: (Phase.VOTE, 6)}))
    assert not diagnose([str(tmp_path)]).verdict.ranks


def test_a_beacon_that_was_cut_is_said_and_left_out(tmp_path: Path) -> None:
    keep(tmp_path, beacons({0: (Phase.VOTE, 6), 1: (Phase.DATA, 6)}))
    whole = (tmp_path / "beacon-1").read_bytes()
    (tmp_path / "beacon-1").write_bytes(whole[:100])
    found = diagnose([str(tmp_path)])
    assert not found.verdict.ranks
    assert any("cut" in note for note in found.notes), found.notes


@given(
    st.dictionaries(
        st.integers(0, 5),
        st.builds(
            Beacon,
            rank=st.integers(-(2**62), 2**62),
            generation=st.integers(-5, 2**62),
            step=st.integers(-(2**62), 2**62),
            at_ns=st.integers(-(2**62), 2**62),
            phase=st.sampled_from(PHASES),
        ),
        max_size=6,
    )
)
def test_whatever_stands_in_beacons_not_all_ranks_are_behind(found: dict[int, Beacon]) -> None:
    named = [
        one
        for one in find_laggards({str(name): beacon for name, beacon in found.items()})
        if one.rank is not None
    ]
    ranks = {beacon.rank for beacon in found.values()}
    assert {one.rank for one in named} < ranks or not named
