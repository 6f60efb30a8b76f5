"""Where the processes of a live run stood, read as evidence: who was given up, what the kernel
said, and nothing of older interruptions.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.diagnose.standing import read_standing
from outlast.model.records import Interruption
from outlast.model.terms import FailureClass, Mechanism
from outlast.runtime.evidence.reading import diagnose
from outlast.runtime.ledger.store import Ledger
from tests.ledger.a_run import LIVES, META


def told(
    number: int = 1,
    *,
    rank: int = 1,
    state: str = "S",
    wchan: str = "",
    oom: bool | None = False,
    killed: bool = True,
) -> str:
    about = Interruption(
        number, Mechanism.HANG, 9.0, ranks=(rank,), nodes=("here",), reason="it has come less far"
    ).public(began_s=0.0)
    kernel = {"stat": f"77 (out last) (x) {state} 1 77", "wchan": wchan}
    process = {
        "worker": 4,
        "rank": rank,
        "pid": 77,
        "phase": "body",
        "step": 5,
        "age_s": 1.2,
        "kernel": kernel,
        "killed": killed,
        "exit_code": None,
        "signal": 9,
        "oom": oom is True,
        "oom_near": oom is None,
    }
    return json.dumps(
        {"schema": 1, "outlast": "standing", "interruption": about, "processes": [process]},
        indent=1,
    )


@pytest.mark.parametrize(
    ("state", "wchan", "oom", "rule", "cause"),
    [
        ("T", "do_signal_stop", False, "standing.stopped", None),
        ("D", "rpc_wait_bit_killable", False, "standing.storage", FailureClass.STORAGE),
        ("D", "nvidia_ioctl", False, "standing.device", FailureClass.GPU),
        ("D", "x", False, "standing.kernel", FailureClass.STORAGE),
        ("R", "", False, "standing.running", FailureClass.USER_CODE),
        ("S", "", True, "standing.oom", FailureClass.HOST_MEMORY),
        ("S", "", None, "standing.oom_near", FailureClass.HOST_MEMORY),
    ],
)
def test_what_the_kernel_said_of_a_process_is_a_finding(
    state: str, wchan: str, oom: bool | None, rule: str, cause: FailureClass | None
) -> None:
    """The name in /proc/<pid>/stat may hold blanks and brackets. `oom` is None where the kernel
    counted a kill, and nothing tells of which process.
    """
    found = read_standing(
        told(state=state, wchan=wchan, oom=oom).encode(), name="standing.json"
    ).findings
    assert [
        (one.rule, one.failure_class, one.rank) for one in found if one.rule.startswith("standing.")
    ] == [(rule, cause, 1)]


@pytest.mark.parametrize(
    ("state", "wchan"), [("D", "folio_wait_bit_common"), ("D", "x"), ("R", "")]
)
def test_the_state_of_a_survivor_is_no_finding(state: str, wchan: str) -> None:
    """A process that lives on may have read from a disk just then."""
    found = read_standing(told(state=state, wchan=wchan, killed=False).encode(), name="s").findings
    assert not [one for one in found if one.rule.startswith("standing.")]


def test_who_was_given_up_is_what_the_run_itself_saw(tmp_path: Path) -> None:
    (tmp_path / "standing.json").write_text(told(rank=3))
    verdict = diagnose([str(tmp_path)]).verdict
    assert ([one.rank for one in verdict.ranks], verdict.mechanism, verdict.failure_class) == (
        [3],
        Mechanism.HANG,
        FailureClass.UNKNOWN,
    )


def test_of_a_runs_folder_only_the_newest_interruption_is_looked_at(tmp_path: Path) -> None:
    for number, rank in ((2, 5), (10, 3), (9, 6)):
        folder = tmp_path / "evidence" / f"interruption-{number}"
        folder.mkdir(parents=True)
        (folder / "standing.json").write_text(told(number, rank=rank))
    found = diagnose([str(tmp_path)])
    assert [one.rank for one in found.verdict.ranks] == [3]
    assert any("2 earlier interruptions" in note for note in found.notes), found.notes
    assert [
        one.rank for one in diagnose([str(tmp_path / "evidence" / "interruption-9")]).verdict.ranks
    ] == [6], "unless it is named"


def test_of_several_nodes_only_the_newest_interruption_is_looked_at(tmp_path: Path) -> None:
    """The files of each node are below the interruption's folder. What a node keeps for itself, in
    the same run's folder, is not read a second time.
    """
    for number in (1, 2):
        folder = tmp_path / "evidence" / f"interruption-{number}"
        own = tmp_path / "nodes" / "b" / "secured" / f"interruption-{number}"
        for place in (folder / "nodes" / "b", own):
            place.mkdir(parents=True)
            (place / "stderr-rank1.log").write_text(f"RuntimeError: failure {number}\n")
            (place / "processes.json").write_text('{\n "schema": 1,\n "outlast": "processes",\n')
        (folder / "standing.json").write_text(told(number))
    found = diagnose([str(tmp_path)])
    assert found.logs_count == 2, "the record, and one log"
    assert any("1 earlier interruption" in note for note in found.notes), found.notes
    assert diagnose([str(tmp_path / "nodes" / "b" / "secured")]).logs_count == 2, "unless named"


@pytest.mark.parametrize("missing", [{"here": "it was lost"}, {"here": ["x"] * 99}, {"a" * 999: 1}])
def test_a_node_without_evidence_is_named(missing: dict[str, object]) -> None:
    raw = told().replace('"processes": [', f'"missing": {json.dumps(missing)}, "processes": [')
    found = read_standing(raw.encode(), name="standing.json")
    (node,) = missing
    assert found.notes[0].startswith(f"no evidence of node {node[:9]}")
    assert len(found.notes[0]) < 400


@pytest.mark.parametrize("missing", [7, [1], "x"])
def test_missing_nodes_of_another_form_are_refused(missing: object) -> None:
    raw = told().replace('"processes": [', f'"missing": {json.dumps(missing)}, "processes": [')
    with pytest.raises(ValueError):
        read_standing(raw.encode(), name="standing.json")


@given(cut=st.integers(0, 900), junk=st.binary(max_size=20))
def test_a_record_that_was_cut_or_changed_is_refused(cut: int, junk: bytes) -> None:
    raw = told().encode()
    try:
        read_standing(raw[:cut] + junk + raw[cut + len(junk) :], name="standing.json")
    except ValueError:
        pass


STACKS = """Thread 0x00007fc3777deb80 [MainThread] (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "train.py", line 12 in fetch
"""


def test_stacks_without_an_interruption_are_no_evidence(
    tmp_path: Path,
) -> None:
    """A worker writes its stacks whenever it is asked whether it is there; in a healthy run, for
    instance for a slow batch.
    """
    ledger = Ledger.create(tmp_path / "ledger.db", META, pid=os.getpid())
    ledger.add(LIVES[0])
    ledger.flush()
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "stacks-1.txt").write_text(STACKS)
    found = diagnose([str(tmp_path)])
    assert (found.verdict.failure_class, found.verdict.ranks) == (FailureClass.UNKNOWN, ())
    assert any("1 file of stacks was left out" in note for note in found.notes), found.notes


def test_stacks_of_other_moments_are_left_out_of_an_interruption(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "evidence" / "interruption-1"
    folder.mkdir(parents=True)
    (folder / "standing.json").write_text(told())
    (folder / "stacks-rank1.txt").write_text(STACKS)
    (tmp_path / "evidence" / "stacks-3.txt").write_text(STACKS)
    lines = [one.file for one in diagnose([str(tmp_path)]).verdict.evidence]
    assert "evidence/interruption-1/stacks-rank1.txt" in lines
    assert "evidence/stacks-3.txt" not in lines


def test_stacks_without_a_run_around_them_are_read(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "stacks-1.txt").write_text(STACKS)
    assert diagnose([str(tmp_path)]).verdict.evidence
