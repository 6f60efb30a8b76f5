"""`outlast status` through the real command: the contract's JSON, and what people see."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.app.reports.status import copies_words
from outlast.model.records import LEADS, Event
from tests.app.command import outlast, same_as_golden
from tests.ledger import a_run

CONTRACT = {"run", "state", "generation", "step", "steps_per_s", "workers", "spares"}


def status(path: Path) -> dict:
    done = outlast("status", path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_a_live_run_shows_what_the_launcher_said_last(tmp_path: Path) -> None:
    folder, ledger = a_run.live_run(tmp_path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        ledger.set_snapshot(a_run.SNAPSHOT, now_s=a_run.clock.now_s())
        ledger.flush()
        facts = status(folder.path)
    assert set(facts) >= CONTRACT
    assert (
        facts["run"],
        facts["state"],
        facts["generation"],
        facts["step"],
        facts["steps_per_s"],
    ) == ("live", "training", 2, 200, 10.0)
    said = a_run.SNAPSHOT["workers"]
    assert isinstance(said, list)
    assert facts["workers"] == [{**one, "log": None} for one in said]
    assert facts["spares"] == a_run.SNAPSHOT["spares"]
    assert set(facts["workers"][0]) >= {"rank", "pid", "node", "state"}


@pytest.mark.parametrize(
    ("state", "how"),
    [("ended", "has ended well"), ("stopped", "was stopped"), ("failed", "has failed")],
)
def test_a_request_to_a_run_that_is_over_is_refused(tmp_path: Path, state: str, how: str) -> None:
    """`outlast stop` says how the run ended. Only if nothing says that it ended, the message is
    about a run on another node.
    """
    done = outlast("stop", a_run.ended_run(tmp_path, state=state))
    assert done.returncode == 2
    assert f"{how} already" in done.stderr
    assert "outlast report" in done.stderr
    done = outlast("stop", a_run.lost_run(tmp_path / "lost"))
    assert done.returncode == 2
    assert "is not running here" in done.stderr


def test_a_rank_without_a_process_has_no_pid(tmp_path: Path) -> None:
    """All ranks are started again: their processes are not there yet."""
    folder, ledger = a_run.live_run(tmp_path)
    nobody = [{"rank": 0, "pid": 0, "node": "", "state": "starting"}]
    with contextlib.closing(folder), contextlib.closing(ledger):
        ledger.set_snapshot(a_run.SNAPSHOT | {"workers": nobody}, now_s=a_run.clock.now_s())
        ledger.flush()
        page = outlast("status", folder.path).stdout
    (row,) = [line.split() for line in page.splitlines() if line.endswith("starting")]
    assert row == ["-", "0", "-", "starting"], page


def test_a_run_on_several_nodes_says_who_leads_and_who_votes(tmp_path: Path) -> None:
    """The newest of two coordinators counts. A run on one node has none."""
    folder, ledger = a_run.live_run(tmp_path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        assert status(folder.path)["coordinator"] is None
        for epoch, node in ((1, "alpha"), (2, "beta")):
            data = {"node": node, "epoch": epoch, "voters": ["alpha", "beta", "gamma"]}
            ledger.add(Event(a_run.clock.now_s(), 0.0, LEADS, data))
        ledger.flush()
        facts = status(folder.path)
        said = outlast("status", folder.path).stdout
    assert facts["coordinator"]["node"] == "beta"
    assert facts["coordinator"]["voters"] == ["alpha", "beta", "gamma"]
    assert "led by node beta; voters: alpha, beta, gamma" in said


def test_before_the_first_snapshot_a_run_is_starting(tmp_path: Path) -> None:
    folder, ledger = a_run.live_run(tmp_path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        facts = status(folder.path)
    assert (facts["state"], facts["step"], facts["steps_per_s"]) == ("starting", 0, 0.0)
    assert facts["waits_for"] == {
        "what": "the first report of its launcher, which has just begun",
        "left_s": None,
    }
    assert facts["workers"] == [
        {"rank": 0, "pid": 1001, "node": "here", "state": "starting", "log": None}
    ]


@pytest.mark.parametrize("state", ["ended", "failed", "stopped"])
def test_a_run_that_is_over_has_nobody_training(tmp_path: Path, state: str) -> None:
    facts = status(a_run.ended_run(tmp_path, state=state, exit_code=1, reason="because"))
    assert (facts["state"], facts["reason"], facts["steps_per_s"], facts["spares"]) == (
        state,
        "because",
        0.0,
        [],
    )
    assert {worker["state"] for worker in facts["workers"]} == {"gone"}


def test_a_run_whose_launcher_vanished_is_lost(tmp_path: Path) -> None:
    """The lock is free though the run has not ended."""
    facts = status(a_run.lost_run(tmp_path))
    assert facts["state"] == "lost"
    assert {worker["state"] for worker in facts["workers"]} == {"lost"}


def test_without_run_the_newest_is_meant(tmp_path: Path) -> None:
    a_run.ended_run(tmp_path / "runs")
    done = outlast("status", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["run"] == a_run.META.run


def test_the_page_of_a_lost_run(tmp_path: Path) -> None:
    same_as_golden("status-lost.txt", outlast("status", a_run.lost_run(tmp_path)).stdout)


def test_the_page_of_a_failed_run(tmp_path: Path) -> None:
    same_as_golden(
        "status-failed.txt",
        outlast(
            "status",
            a_run.ended_run(tmp_path, state="failed", exit_code=1, reason="crash loop at step 170"),
        ).stdout,
    )


def outlook_run(root: Path, *, ranks: int) -> tuple[a_run.RunFolder, a_run.Ledger]:
    """A live run on two nodes, and what a launcher says of it. The caller closes both."""
    folder, ledger = a_run.live_run(root)
    now_s = a_run.clock.now_s()
    verdict = {"class": "host_memory", "confidence": 0.97, "reason": "Rank 1 was killed."}
    ledger.add(replace(a_run.KILL, detected_s=now_s - 5, fault_s=now_s - 5, resumed_s=now_s - 4))
    ledger.add(Event(now_s - 4, 0.0, "verdict", {"interruption": 1, "verdict": verdict}))
    ledger.add(Event(now_s - 9, 0.0, "script", {"sharded": False}))
    ledger.add(Event(now_s - 3, 0.0, "checkpoint", {"step": 150, "folder": "c/step-150"}))
    workers = [
        {"rank": rank, "pid": 9000 + rank, "node": f"node-{rank % 2}", "state": "training"}
        for rank in range(ranks)
    ]
    said = {
        "workers": workers,
        "spares": [{"pid": 1, "kind": "hot", "node": "node-1", "parked": True}],
        "target_step": 400,
        "time_left_s": 20.0,
        "logged": {"step": 199, "values": {"loss": 2.5}},
        "redundancy": {
            "sharded": False,
            "copies": ranks,
            "nodes": 2,
            "spares_ready": 1,
            "kept_step": 196,
        },
        "steps_seen": True,
    }
    ledger.set_snapshot({**a_run.SNAPSHOT, **said}, now_s=now_s)
    ledger.flush()
    return folder, ledger


def test_it_says_target_time_left_nodes_last_checkpoint_and_redundancy(tmp_path: Path) -> None:
    folder, ledger = outlook_run(tmp_path, ranks=4)
    with contextlib.closing(folder), contextlib.closing(ledger):
        facts = status(folder.path)
        page = outlast("status", folder.path).stdout
    assert (facts["target_step"], facts["time_left_s"]) == (400, 20.0)
    assert facts["logged"] == {"step": 199, "values": {"loss": 2.5}}
    checkpoint = facts["last_checkpoint"]
    assert (checkpoint["step"], checkpoint["folder"]) == (150, "c/step-150")
    assert facts["redundancy"]["copies"] == 4
    assert facts["nodes"] == [
        {"node": "node-0", "ranks": [0, 2], "states": {"training": 2}, "spares": 0},
        {"node": "node-1", "ranks": [1, 3], "states": {"training": 2}, "spares": 1},
    ]
    assert facts["interruptions"][0]["verdict"] == "host memory (97 % sure): Rank 1 was killed."
    for said in (
        "step 200 of 400",
        "loss 2.5",
        "50.0 %   20.0 s left",
        "checkpoint: step 150, ",
        "4 copies of the state on 2 nodes, one of step 196 in shared memory",
        "host memory (97 % sure): Rank 1 was killed.",
    ):
        assert said in page, said
    by_node = [line.split() for line in page.splitlines() if " 90" in line]
    assert by_node == [
        ["node-0", "0", "9000", "training"],
        ["2", "9002", "training"],
        ["node-1", "1", "9001", "training"],
        ["3", "9003", "training"],
    ]


def test_it_says_where_the_log_of_each_rank_is(tmp_path: Path) -> None:
    """By node and folder, in a form that a shell understands. Of rank 3 it is not known."""
    folder, ledger = outlook_run(tmp_path, ranks=4)
    with contextlib.closing(folder), contextlib.closing(ledger):
        snapshot = dict(ledger.read().snapshot or {})
        for row in snapshot["workers"][:3]:
            row["log"] = f"/runs/x/logs/none_{row['node']}/attempt_0/{row['rank'] // 2}"
        ledger.set_snapshot(snapshot, now_s=a_run.clock.now_s())
        ledger.flush()
        workers = status(folder.path)["workers"]
        page = outlast("status", folder.path).stdout
    assert [one["log"] for one in workers][2:] == ["/runs/x/logs/none_node-0/attempt_0/1", None]
    assert (
        "\nLogs (stdout.log and stderr.log)\n"
        "  ranks 0, 2 on node-0  /runs/x/logs/none_node-0/attempt_0/{0,1}\n"
        "  rank 1 on node-1  /runs/x/logs/none_node-1/attempt_0/0\n"
    ) in page


@pytest.mark.parametrize(("ranks", "listed"), [(64, True), (65, False)])
def test_more_than_64_workers_are_listed_only_if_asked_for(
    tmp_path: Path, ranks: int, listed: bool
) -> None:
    folder, ledger = outlook_run(tmp_path, ranks=ranks)
    with contextlib.closing(folder), contextlib.closing(ledger):
        facts = status(folder.path)
        page = outlast("status", folder.path).stdout
        asked = json.loads(outlast("status", folder.path, "--workers", "--json").stdout)
        long = outlast("status", folder.path, "--workers").stdout
    assert (facts["workers"] is not None) == listed
    assert len(asked["workers"]) == ranks
    assert long.count("training") == ranks + 1
    if not listed:
        assert "node-0   0, 2, 4" in page
        assert "33 training" in page
        assert "9001" not in page


def test_a_run_that_is_over_has_no_time_left_and_no_copies(tmp_path: Path) -> None:
    folder, ledger = outlook_run(tmp_path, ranks=2)
    ledger.end_session(ended_s=a_run.clock.now_s(), state="ended", exit_code=0, reason="")
    ledger.close()
    folder.close()
    facts = status(folder.path)
    assert (facts["target_step"], facts["time_left_s"], facts["redundancy"]) == (400, None, None)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"target_step": "soon"},
        {"target_step": -4},
        {"logged": [1]},
        {"logged": {"values": {"loss": "low"}}},
        {"redundancy": {"copies": "many"}},
        {"time_left_s": float("inf")},
    ],
)
def test_what_no_launcher_would_say_is_not_shown(
    tmp_path: Path, nonsense: dict[str, object]
) -> None:
    folder, ledger = a_run.live_run(tmp_path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        ledger.set_snapshot({**a_run.SNAPSHOT, **nonsense}, now_s=a_run.clock.now_s())
        ledger.flush()
        facts = status(folder.path)
        assert outlast("status", folder.path).returncode == 0
    assert facts["target_step"] is None
    assert facts["logged"] is None


@pytest.mark.parametrize(
    ("count", "said"), [(0, "no node can"), (1, "any one node can"), (2, "any 2 nodes can")]
)
def test_it_says_how_many_nodes_of_sharded_state_can_be_lost(count: int, said: str) -> None:
    redundancy = {"sharded": True, "copies": None, "nodes": None, "nodes_to_lose": count}
    assert copies_words(redundancy).startswith(f"{said} be lost now")
