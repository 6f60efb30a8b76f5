"""The evidence of several nodes: kept by each of them, sent in pieces, and put together by the
coordinator. Damaged, cut and hostile answers are refused.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.model import limits
from outlast.model.messages import AskEvidence, EvidenceFiles, EvidencePiece
from outlast.model.terms import Mechanism
from outlast.runtime.agent.evidence import PROCESSES
from outlast.runtime.coordinator.node_standing import read_processes
from outlast.runtime.evidence.reading import diagnose
from outlast.runtime.folders.node_folders import node_folder_name
from outlast.runtime.loop import Loop
from tests.evidence.nodes import Answer, Node, Run, over


@pytest.fixture
def loop() -> Iterator[Loop]:
    with closing(Loop()) as one:
        yield one


@pytest.fixture
def nodes(loop: Loop, tmp_path: Path) -> list[Node]:
    """Return node a with rank 0, and node b with rank 1, which hung."""
    some = [Node(loop, tmp_path, "a", 0), Node(loop, tmp_path, "b", 1)]
    some[0].evidence.note_places()
    some[1].fails()
    return some


def standing(folder: Path) -> dict[str, object]:
    told: dict[str, object] = json.loads((folder / "standing.json").read_text())
    return told


def processes(folder: Path) -> dict[int, tuple[str, bool]]:
    """Return the node of each rank, and whether outlast killed it."""
    rows = json.loads((folder / "standing.json").read_text())["processes"]
    return {one["rank"]: (one["node"], one["killed"]) for one in rows}


def files(folder: Path, node: str) -> set[str]:
    """Return what is there of a node, but for the log of this machine's kernel."""
    found = (folder / "nodes" / node).glob("*")
    return {one.name for one in found if not one.name.startswith("dmesg-of-")}


def test_the_evidence_of_all_nodes_is_in_one_folder(
    loop: Loop, tmp_path: Path, nodes: list[Node]
) -> None:
    """The verdict on it names rank, node and mechanism as on one node."""
    run = Run(loop, tmp_path, nodes)
    folder = run.gather(over())
    assert processes(folder) == {0: ("a", False), 1: ("b", True)}
    assert standing(folder)["missing"] == {}
    assert files(folder, "a") == {PROCESSES}
    assert files(folder, "b") == {
        PROCESSES,
        "stacks-rank1.txt",
        "stderr-rank1.log",
        "recorder-rank1.json",
    }
    assert (folder / "nodes" / "b" / "stderr-rank1.log").read_text() == "the last words\n"
    assert run.told == []
    verdict = diagnose([str(folder)]).verdict
    assert [one.rank for one in verdict.ranks] == [1]
    assert verdict.nodes == ("b",)
    assert verdict.mechanism is Mechanism.HANG
    assert verdict.reason.startswith("Rank 1 (pid 101) on node b hung"), verdict.reason


def test_a_large_file_comes_in_pieces_and_whole(
    loop: Loop, tmp_path: Path, nodes: list[Node]
) -> None:
    """One that ends with a full piece as well. No piece is larger than the limit."""
    piece = limits.EVIDENCE_PIECE_BYTES
    sizes: list[int] = []

    def measured(node: str, answer: Answer) -> Answer:
        if isinstance(answer, EvidencePiece):
            sizes.append(len(base64.b64decode(answer.data)))
        return answer

    for size in (3 * piece + 17, 2 * piece):
        text = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        (nodes[1].vault / "recorder-101").write_bytes(text)
        run = Run(loop, tmp_path / str(size), nodes, measured)
        folder = run.gather(over())
        assert (folder / "nodes" / "b" / "recorder-rank1.json").read_bytes() == text
        nodes[1].secured = type(nodes[1].secured)(nodes[1].evidence, tmp_path / "again", "b")
        nodes[1].fails()
    assert max(sizes) == piece


def test_no_piece_is_asked_for_while_a_recovery_goes_on(
    loop: Loop, tmp_path: Path, nodes: list[Node]
) -> None:
    """The lists are: each node then writes what it knows before the next interruption adds to it.

    A node that is not asked is not silent.
    """
    run = Run(loop, tmp_path, nodes)
    run.calm = False
    run.gatherer.close(over())
    assert not loop.run_until(lambda: bool(run.judged), within_s=4 * limits.TICK_S)
    assert [one.name for one in run.asked] == ["", ""]
    run.calm = True
    assert processes(run.until_judged(1)).keys() == {0, 1}


def test_of_a_large_run_only_some_nodes_are_asked(
    loop: Loop, tmp_path: Path, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node where it happened is always among them."""
    monkeypatch.setattr(limits, "EVIDENCE_NODES_COUNT", 0)
    run = Run(loop, tmp_path, nodes)
    assert processes(run.gather(over())) == {1: ("b", True)}


def test_a_node_that_was_lost_is_named_in_the_verdict(
    loop: Loop, tmp_path: Path, nodes: list[Node]
) -> None:
    run = Run(loop, tmp_path, nodes)
    run.present = {"a"}
    folder = run.gather(over())
    assert processes(folder) == {0: ("a", False)}
    assert standing(folder)["missing"] == {"b": "it is not in the run any more"}
    reason = diagnose([str(folder)]).verdict.reason
    assert "; no evidence came from node b, because it is not in the run any more" in reason


def test_a_node_that_is_lost_meanwhile_holds_up_no_verdict(
    loop: Loop, tmp_path: Path, nodes: list[Node]
) -> None:
    """Its list has come, and no piece does."""
    run = Run(
        loop,
        tmp_path,
        nodes,
        lambda node, answer: None if (node, type(answer)) == ("b", EvidencePiece) else answer,
    )
    run.gatherer.close(over())
    assert loop.run_until(lambda: any(one.name for one in run.asked), within_s=5)
    run.present = {"a"}
    folder = run.until_judged(1)
    assert standing(folder)["missing"] == {"b": "it is not in the run any more"}


def test_a_silent_node_is_asked_again_and_then_left_out(
    loop: Loop, tmp_path: Path, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that loses a single answer is asked again, and sends all."""
    monkeypatch.setattr(limits, "EVIDENCE_AGAIN_S", 0.15)
    monkeypatch.setattr(limits, "EVIDENCE_SILENT_S", 1.0)
    lost: list[str] = []

    def forgetful(node: str, answer: Answer) -> Answer | None:
        if node == "b":
            return None
        kind = type(answer).__name__
        if kind in lost:
            return answer
        lost.append(kind)
        return None

    run = Run(loop, tmp_path, nodes, forgetful)
    folder = run.gather(over())
    assert lost == ["EvidenceFiles", "EvidencePiece"]
    assert standing(folder)["missing"] == {"b": "it did not send it in time"}
    assert files(folder, "a") == {PROCESSES}
    assert run.told == [
        "interruption 1: the evidence of node b is not complete: it did not send it in time"
    ]


def test_a_later_interruption_has_its_own_processes(
    loop: Loop, tmp_path: Path, nodes: list[Node]
) -> None:
    """Method: before node b is asked about interruption 1, its rank has failed once more, in the
    generation in which training went on.
    """
    run = Run(loop, tmp_path, nodes)
    nodes[1].worker, nodes[1].beacon = (
        201,
        dataclasses.replace(nodes[1].beacon, worker=201, generation=2, step=9),
    )
    nodes[1].fails()
    first = run.gather(over())
    (one,) = (row for row in _rows(first) if row["rank"] == 1)
    assert (one["worker"], one["step"]) == (101, 6)
    run.generation = 3
    second = run.gather(over(2, generation=2))
    (one,) = (row for row in _rows(second) if row["rank"] == 1)
    assert (one["worker"], one["step"]) == (201, 9)


def _rows(folder: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads((folder / "standing.json").read_text())["processes"]
    return rows


def test_places_noted_for_no_interruption_are_dropped(
    loop: Loop, tmp_path: Path, nodes: list[Node]
) -> None:
    """Method: node a noted its places in generation 1, and the interruption is of the fourth."""
    run = Run(loop, tmp_path, nodes)
    run.generation = 5
    folder = run.gather(over(generation=4))
    assert processes(folder) == {}


def moved_on(node: Node, *, step: int) -> None:
    """Let the node's worker train on in the next generation."""
    beacon = node.beacon
    node.beacon = dataclasses.replace(beacon, generation=beacon.generation + 1, step=step)


def test_a_drain_before_does_not_hide_where_a_process_stands(
    loop: Loop, tmp_path: Path, nodes: list[Node]
) -> None:
    """Method: the places of node a are noted, and no interruption follows. The same process fails
    in the next generation.
    """
    run = Run(loop, tmp_path, nodes[:1])
    run.generation = 3
    moved_on(nodes[0], step=20)
    nodes[0].fails()
    (one,) = _rows(run.gather(over(generation=2, nodes=("a",))))
    assert (one["step"], one["generation"], one["killed"]) == (20, 2, True)


def test_a_question_that_comes_late_is_answered_as_well(
    loop: Loop, tmp_path: Path, nodes: list[Node]
) -> None:
    """Method: node a is asked about the interruption of generation 1 only after that of the next
    generation has begun there.
    """
    run = Run(loop, tmp_path, nodes[:1])
    moved_on(nodes[0], step=20)
    nodes[0].evidence.note_places()
    first = run.gather(over(nodes=("a",)))
    assert [(one["step"], one["generation"]) for one in _rows(first)] == [(6, 1)]
    run.generation = 3
    second = run.gather(over(2, generation=2, nodes=("a",)))
    assert [(one["step"], one["generation"]) for one in _rows(second)] == [(20, 2)]


def test_a_new_coordinator_gets_what_is_still_there(
    loop: Loop, tmp_path: Path, nodes: list[Node]
) -> None:
    """Method: a coordinator has gathered everything, and is gone before a verdict was found. The
    next one has another folder, and asks once training goes on.
    """
    before = Run(loop, tmp_path / "before", nodes)
    before.gather(over())
    after = Run(loop, tmp_path / "after", nodes)
    after.calm, after.generation = False, 2
    after.gatherer.go_on([over()])
    assert not loop.run_until(lambda: bool(after.asked), within_s=3 * limits.TICK_S)
    after.calm = True
    folder = after.until_judged(1)
    assert processes(folder) == {0: ("a", False), 1: ("b", True)}
    assert "stacks-rank1.txt" in files(folder, "b")


def test_a_node_of_the_coordinator_before_stays_in_a_shared_folder(
    loop: Loop, tmp_path: Path, nodes: list[Node]
) -> None:
    """Method: node b, which led, has stored its own evidence, and is lost."""
    before = Run(loop, tmp_path, nodes)
    before.gather(over())
    after = Run(loop, tmp_path, nodes[:1])
    after.gatherer.go_on([over()])
    folder = after.until_judged(1)
    assert processes(folder) == {0: ("a", False), 1: ("b", True)}


def test_the_end_of_a_run_waits_for_the_last_evidence(
    loop: Loop, tmp_path: Path, nodes: list[Node]
) -> None:
    """Training has not gone on, and does not any more."""
    run, ended = Run(loop, tmp_path, nodes), []
    run.calm, run.generation = False, 1
    last = dataclasses.replace(over(), resumed_s=None)
    run.gatherer.finish([last], lambda: ended.append(list(run.judged)))
    assert loop.run_until(lambda: bool(ended), within_s=5)
    assert ended == [[1]]
    assert processes(run.folder / "interruption-1") == {0: ("a", False), 1: ("b", True)}


def test_the_end_of_a_run_waits_for_no_silent_node(
    loop: Loop, tmp_path: Path, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EVIDENCE_LAST_S", 0.4)
    run, ended = Run(loop, tmp_path, nodes, lambda node, answer: None), []
    run.gatherer.close(over())
    run.gatherer.finish((), lambda: ended.append(list(run.judged)))
    assert loop.run_until(lambda: bool(ended), within_s=5)
    assert ended == [[1]]


def test_a_run_without_open_evidence_ends_at_once(loop: Loop, tmp_path: Path) -> None:
    ended: list[int] = []
    Run(loop, tmp_path, []).gatherer.finish((), lambda: ended.append(1))
    assert loop.run_until(lambda: bool(ended), within_s=0.05)


# --- what must not arrive -------------------------------------------------------------------------


def listed(*names: str, size: int = 9) -> EvidenceFiles:
    return EvidenceFiles(1, names, (size,) * len(names))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (listed("../../run.json"), "no evidence"),
        (listed("/etc/passwd"), "no evidence"),
        (listed("stacks-rank1.txt\n"), "no evidence"),
        (listed("standing.json"), "no evidence"),
        (listed("verdict.json"), "no evidence"),
        (listed("stacks-rank1.txt", "stacks-rank1.txt"), "damaged"),
        (EvidenceFiles(1, ("stacks-rank1.txt",), ()), "damaged"),
        (listed("stacks-rank1.txt", size=0), "too large"),
        (listed("stacks-rank1.txt", size=-1), "too large"),
        (listed("stacks-rank1.txt", size=limits.EVIDENCE_SENT_FILE_MAX_BYTES + 1), "too large"),
        (
            listed(
                *(f"stacks-rank{n}.txt" for n in range(9)), size=limits.EVIDENCE_NODE_MAX_BYTES // 8
            ),
            "too large",
        ),
        (listed(*(f"stacks-rank{n}.txt" for n in range(2_049)), size=1), "more than 2,048 files"),
        (EvidenceFiles(1, (), (), "No space left on device"), "No space left"),
        (EvidenceFiles(1, (), (), "No space " * 100_000), "No space"),
    ],
)
def test_a_list_that_is_not_usable_is_refused(
    loop: Loop, tmp_path: Path, nodes: list[Node], answer: EvidenceFiles, why: str
) -> None:
    """Nothing of the node is written, and the verdict says why. The other node counts."""
    run = Run(loop, tmp_path, nodes, lambda node, true: answer if node == "b" else true)
    folder = run.gather(over())
    assert why in json.dumps(standing(folder)["missing"])
    assert not (folder / "nodes" / "b").exists()
    assert processes(folder) == {0: ("a", False)}
    assert (folder / "standing.json").stat().st_size < limits.GIVEN_FILE_MAX_BYTES


@pytest.mark.parametrize("data", ["", "no base64!", "QUJD", "QUJD" * 50_000], ids=str)
def test_a_piece_that_is_cut_or_too_long_is_refused(
    loop: Loop, tmp_path: Path, nodes: list[Node], data: str
) -> None:
    """The file is never longer than the node has said."""

    def changed(node: str, answer: Answer) -> Answer:
        is_stack = isinstance(answer, EvidencePiece) and answer.name == "stacks-rank1.txt"
        return dataclasses.replace(answer, data=data) if is_stack else answer

    run = Run(loop, tmp_path, nodes, changed)
    folder = run.gather(over())
    assert standing(folder)["missing"] == {"b": "it sent stacks-rank1.txt in part only"}
    assert not (folder / "nodes" / "b" / "stacks-rank1.txt").exists()
    assert processes(folder) == {0: ("a", False), 1: ("b", True)}, "what came before counts"


def test_answers_to_no_question_are_ignored(loop: Loop, tmp_path: Path, nodes: list[Node]) -> None:
    """Of a stranger, of another interruption, of another file, and from another place in it."""
    run = Run(loop, tmp_path, nodes)
    run.calm = False
    run.gatherer.close(over())
    assert not loop.run_until(lambda: False, within_s=0.05)
    for answer in (
        EvidencePiece(1, "recorder-rank7.json", 0, "QUJD"),
        EvidencePiece(1, "../x", 0, "QUJD"),
        EvidencePiece(1, PROCESSES, 5, "QUJD"),
        EvidencePiece(7, PROCESSES, 0, "QUJD"),
        EvidenceFiles(1, ("recorder-rank7.json",), (3,)),
    ):
        for node in ("b", "stranger"):
            run.gatherer.hear(node, answer)
    run.calm = True
    folder = run.until_judged(1)
    assert files(folder, "a") | files(folder, "b") == {
        PROCESSES,
        "stacks-rank1.txt",
        "stderr-rank1.log",
        "recorder-rank1.json",
    }
    assert standing(folder)["missing"] == {}


TRUE = {
    "schema": 1,
    "outlast": "processes",
    "node": "b",
    "processes": [
        {
            "worker": 4,
            "rank": 1,
            "pid": 77,
            "phase": "body",
            "step": 5,
            "age_s": 1.2,
            "kernel": {"stat": "77 (x) S"},
            "killed": True,
            "exit_code": None,
            "signal": 9,
            "oom": False,
            "oom_near": False,
            "oom_read": True,
            "generation": 1,
        }
    ],
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)


@given(data=st.data(), value=json_values)
def test_a_changed_list_of_processes_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, value: object
) -> None:
    """What is read can be written into standing.json, and read from there."""
    told = json.loads(json.dumps(TRUE))
    place = data.draw(st.sampled_from(["top", "process"]))
    row = told if place == "top" else told["processes"][0]
    row[data.draw(st.sampled_from(sorted(row)))] = value
    path = tmp_path_factory.getbasetemp() / "changed.json"
    path.write_text(json.dumps(told))
    try:
        node, found = read_processes(path)
    except ValueError:
        return
    assert isinstance(node, str)
    assert all(type(one["rank"]) is int and type(one["killed"]) is bool for one in found)


@given(cut=st.integers(0, 250), junk=st.binary(max_size=20))
def test_a_list_of_processes_that_was_cut_is_refused(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    raw = json.dumps(TRUE).encode()
    path = tmp_path_factory.getbasetemp() / "cut.json"
    path.write_bytes(raw[:cut] + junk)
    with pytest.raises(ValueError):
        read_processes(path)


def test_a_list_of_another_nodes_processes_is_refused(
    loop: Loop, tmp_path: Path, nodes: list[Node]
) -> None:
    """Method: node b sends a true list, with the name of node a in it."""

    def changed(node: str, answer: Answer) -> Answer:
        is_list = isinstance(answer, EvidencePiece) and answer.name == PROCESSES
        if node != "b" or not is_list:
            return answer
        text = base64.b64decode(answer.data).replace(b'"node": "b"', b'"node": "a"')
        return dataclasses.replace(answer, data=base64.b64encode(text).decode())

    run = Run(loop, tmp_path, nodes, changed)
    folder = run.gather(over())
    assert standing(folder)["missing"] == {"b": "its list of processes is of another node"}
    assert processes(folder) == {0: ("a", False)}


# --- what a node keeps ----------------------------------------------------------------------------


def test_a_node_sends_only_what_is_in_its_list(tmp_path: Path, nodes: list[Node]) -> None:
    """A coordinator that asks for another file gets nothing of it."""
    (tmp_path / "b" / "secret").write_text("secret")
    nodes[1].secured.answer(AskEvidence(1, 1, 2))
    for name in ("../../secret", "/etc/passwd", "secret", ".."):
        for number in (1, 2):
            asked = AskEvidence(number, 1, 2, name, 0)
            assert nodes[1].secured.answer(asked) == EvidencePiece(number, name, 0, "")
    for offset in (-1, 10**9, 2**70):
        asked = AskEvidence(1, 1, 2, PROCESSES, offset)
        assert nodes[1].secured.answer(asked) == EvidencePiece(1, PROCESSES, offset, "")


def test_a_node_keeps_the_evidence_of_the_newest_interruptions(
    tmp_path: Path, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EVIDENCE_KEPT_COUNT", 2)
    for number in (1, 2, 3):
        nodes[1].secured.answer(AskEvidence(number, 1, 2))
    kept = {one.name for one in (tmp_path / "b" / "secured").iterdir()}
    assert kept == {"interruption-2", "interruption-3"}


def test_a_disk_that_stores_nothing_is_reported(tmp_path: Path, nodes: list[Node]) -> None:
    (tmp_path / "b" / "secured").write_text("not a folder")
    answer = nodes[1].secured.answer(AskEvidence(1, 1, 2))
    assert isinstance(answer, EvidenceFiles)
    assert (answer.names, bool(answer.error)) == ((), True)


@pytest.mark.parametrize("name", ["..", ".", "a/b", "/etc", "", "a\0b", "x" * 300, "é", "-x"])
def test_a_nodes_name_never_leads_out_of_its_folder(tmp_path: Path, name: str) -> None:
    found = node_folder_name(name)
    assert found not in ("", ".", "..")
    assert not {"/", "\0"} & set(found)
    assert len(found) < 120
    assert node_folder_name(f"{name}_") != found
    (tmp_path / found).mkdir()
    assert node_folder_name("gpu-07.cluster") == "gpu-07.cluster"
