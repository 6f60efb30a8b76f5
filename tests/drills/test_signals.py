"""Ctrl-C, SIGTERM, SIGHUP and SIGQUIT to the launcher: every rank ends at the same committed step,
whatever the run was doing.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from outlast.runtime.tiers import local
from tests.drills._pids import alive, below, until
from tests.drills._run import Drill, Outcome

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)]


def ended_at_one_step(outcome: Outcome, code: int) -> int:
    """Return the step that every rank has committed as its last."""
    assert outcome.code == code, outcome
    assert outcome.report["state"] == "stopped", outcome
    steps = {
        max((step for of, step, _ in outcome.commits if of == rank), default=0) for rank in range(4)
    }
    assert len(steps) == 1, outcome
    return steps.pop()


def newest_checkpoint(folder: Path) -> int:
    found = local.newest_good(folder / "run" / "checkpoints").checkpoint
    assert found is not None
    return found.manifest.step


@pytest.mark.timeout(200)
def test_ctrl_c_ends_sharded_training_at_a_step_with_its_checkpoint(
    tmp_path: Path,
) -> None:
    steps = ("--steps", 100_000, "--step-s", 0.1)
    with Drill(tmp_path, "fsdp.py", *steps, flags=("--checkpoint-every", 100_000)) as drill:
        drill.until(lambda: drill.step >= 5, "step 5")
        pids = below(drill.process.pid)
        drill.process.send_signal(signal.SIGINT)
        outcome = drill.finish()
    step = ended_at_one_step(outcome, 130)
    assert newest_checkpoint(tmp_path) == step, outcome
    assert not alive(pids)


@pytest.mark.drill
@pytest.mark.timeout(200)
def test_a_terminal_that_is_closed_ends_training_with_its_checkpoint(tmp_path: Path) -> None:
    steps = ("--steps", 100_000, "--pause", 0.1)
    with Drill(tmp_path, "ddp.py", *steps, flags=("--checkpoint-every", 100_000)) as drill:
        drill.until(lambda: drill.step >= 5, "step 5")
        pids = below(drill.process.pid)
        vault = drill.vault()
        drill.process.send_signal(signal.SIGHUP)
        outcome = drill.finish()
    step = ended_at_one_step(outcome, 129)
    assert newest_checkpoint(tmp_path) == step, outcome
    assert not alive(pids)
    assert not vault.exists()


@pytest.mark.drill
@pytest.mark.timeout(200)
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_was_ignored_from_the_start_stays_ignored(
    tmp_path: Path, number: signal.Signals
) -> None:
    """This is how a run starts under nohup."""
    ignoring = (
        sys.executable,
        "-c",
        (
            f"import os, signal, sys; signal.signal({int(number)}, signal.SIG_IGN);"
            " os.execvp(sys.argv[1], sys.argv[1:])"
        ),
    )
    with Drill(tmp_path, "ddp.py", "--steps", 60, before=ignoring) as drill:
        drill.until(lambda: drill.step >= 5, "step 5")
        drill.process.send_signal(number)
        outcome = drill.finish()
    assert outcome.code == 0, outcome
    assert outcome.report["steps"] == 60, outcome


@pytest.mark.drill
@pytest.mark.timeout(200)
def test_a_signal_that_the_parent_has_blocked_is_heard(tmp_path: Path) -> None:
    """A launcher inherits the blocked signals of the process that started it."""
    blocking = (
        sys.executable,
        "-c",
        (
            "import os, signal, sys;"
            " signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT]);"
            " os.execvp(sys.argv[1], sys.argv[1:])"
        ),
    )
    with Drill(tmp_path, "ddp.py", "--steps", 100_000, before=blocking) as drill:
        drill.until(lambda: drill.step >= 5, "step 5")
        drill.process.send_signal(signal.SIGTERM)
        outcome = drill.finish()
    ended_at_one_step(outcome, 143)


@pytest.mark.drill
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize("flags", [(), ("--spares", 1)])
def test_a_signal_while_training_ends_all_ranks_at_one_step(
    tmp_path: Path, number: signal.Signals, code: int, flags: tuple[str, ...]
) -> None:
    with Drill(tmp_path, "ddp.py", "--steps", 100_000, flags=flags) as drill:
        drill.until(lambda: drill.step >= 5, "step 5")
        pids = below(drill.process.pid)
        drill.process.send_signal(number)
        outcome = drill.finish()
    ended_at_one_step(outcome, code)
    assert outcome.interruptions == [], outcome
    assert not (tmp_path / "run" / "checkpoints").exists() or not local.checkpoints(
        tmp_path / "run" / "checkpoints"
    )
    assert not alive(pids)


@pytest.mark.drill
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize("script", ["ddp.py", "fsdp.py"])
def test_a_signal_while_regrouping_waits_for_the_step_in_flight(
    tmp_path: Path, script: str, number: signal.Signals, code: int
) -> None:
    """Method: rank 1 is killed. Rank 3 is slow on the way into the next generation, and meanwhile
    the signal comes.
    """
    strikes = [{"at": "forward", "rank": 1, "step": 6, "do": "SIGKILL"}]
    marks = [{"mark": "grouping", "rank": 3, "generation": 2, "do": "sleep", "for_s": 1.5}]
    with Drill(
        tmp_path,
        script,
        "--steps",
        100_000,
        flags=("--checkpoint-every", 100_000),
        strikes=strikes,
        marks=marks,
    ) as drill:
        drill.until(drill.fired, "the regroup")
        drill.process.send_signal(number)
        outcome = drill.finish()
    step = ended_at_one_step(outcome, code)
    assert step >= 6, outcome
    assert newest_checkpoint(tmp_path) == step, outcome
    assert all(one["resumed_s"] is not None for one in outcome.interruptions), outcome


@pytest.mark.drill
@pytest.mark.timeout(200)
@pytest.mark.parametrize("script", ["ddp.py", "fsdp.py"])
def test_a_rank_lost_after_the_last_vote_holds_up_no_peer(tmp_path: Path, script: str) -> None:
    """Method: the signal comes while rank 1 is about to vote on step 6. It is killed once that vote
    has passed. The others know that the run is to end, its successor does not: all execute one more
    step together.
    """
    marks = [
        {"mark": "voting", "rank": 1, "step": 6, "do": "sleep", "for_s": 0.7},
        {"mark": "committed", "rank": 1, "step": 6, "do": "SIGKILL"},
    ]
    with Drill(
        tmp_path, script, "--steps", 100_000, flags=("--checkpoint-every", 100_000), marks=marks
    ) as drill:
        drill.until(drill.fired, "the vote")
        drill.process.send_signal(signal.SIGINT)
        outcome = drill.finish()
    assert ended_at_one_step(outcome, 130) == 7, outcome
    assert [one["ranks"] for one in outcome.interruptions] == [[1]], outcome
    outcome.ledger_is_sound()


@pytest.mark.drill
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize(("script", "place"), [("ddp.py", "start"), ("fsdp.py", "setup")])
def test_a_signal_before_the_first_step_ends_at_once(
    tmp_path: Path, script: str, place: str, number: signal.Signals, code: int
) -> None:
    """The script's set-up would take an hour."""
    with Drill(tmp_path, script, strikes=[{"at": place, "do": "sleep"}]) as drill:
        drill.until(lambda: drill.fired(kind="strike"), "the set-up")
        pids = below(drill.process.pid)
        drill.process.send_signal(number)
        outcome = drill.finish()
    assert outcome.code == code, outcome
    assert outcome.commits == [], outcome
    until("nobody is left", lambda: not alive(pids), within_s=5.0)


@pytest.mark.drill
@pytest.mark.timeout(200)
def test_a_signal_while_torch_is_imported_ends_at_once(tmp_path: Path) -> None:
    with Drill(tmp_path, "ddp.py") as drill:
        until("the zygote is there", lambda: below(drill.process.pid), within_s=20.0)
        drill.process.send_signal(signal.SIGINT)
        assert drill.process.wait(20) == 130, str(drill)


@pytest.mark.drill
@pytest.mark.timeout(200)
def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    """Rank 2 would be in its second step for an hour. The first Ctrl-C waits for it, and the second
    does not.
    """
    with Drill(
        tmp_path,
        "ddp.py",
        strikes=[{"at": "forward", "rank": 2, "step": 2, "do": "sleep"}],
        flags=("--shutdown-timeout", 600),
    ) as drill:
        drill.until(lambda: drill.fired(kind="strike"), "the long step")
        drill.process.send_signal(signal.SIGINT)
        drill.until(lambda: "stopping" in (tmp_path / "stderr").read_text(), "the first is heard")
        began_s = time.monotonic()
        drill.process.send_signal(signal.SIGINT)
        outcome = drill.finish()
        assert time.monotonic() - began_s < 10.0
    assert outcome.code == 130, outcome


@pytest.mark.drill
@pytest.mark.timeout(200)
def test_a_step_that_does_not_end_is_given_up_after_the_grace(tmp_path: Path) -> None:
    with Drill(
        tmp_path,
        "ddp.py",
        strikes=[{"at": "forward", "rank": 2, "step": 2, "do": "sleep"}],
        flags=("--shutdown-timeout", 1),
    ) as drill:
        drill.until(lambda: drill.fired(kind="strike"), "the long step")
        drill.process.send_signal(signal.SIGTERM)
        assert drill.finish().code == 143
