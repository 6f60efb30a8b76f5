"""A script without an outlast call is supervised, and restarted as a whole from warm processes. Its
hangs are found by silence if the user asks for that.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.drills._run import CalmRun, Drill, Outcome, drilled

pytestmark = pytest.mark.timeout(200)
SCRIPT = "plain.py"


def counted(folder: Path, *arguments: str | int, **options: Any) -> Outcome:
    return drilled(folder, SCRIPT, folder, *arguments, workers=2, **options)


def ends(outcome: Outcome) -> dict[int, tuple[int, int]]:
    """Return a dict from rank to (restarts, last number)."""
    rows = [
        list(map(int, line.split()[1:]))
        for line in outcome.stdout.splitlines()
        if line.startswith("done ")
    ]
    return {rank: (restarts, number) for rank, restarts, number in rows}


def test_a_killed_worker_restarts_all_and_the_count_is_in_the_script(
    tmp_path: Path,
) -> None:
    """Both ranks are in a process group that the script made, which the peer of a dead rank cannot
    leave by itself.
    """
    outcome = counted(
        tmp_path, "--group", strikes=[{"at": "count", "rank": 1, "step": 5, "do": "SIGKILL"}]
    )
    assert outcome.code == 0, outcome
    assert ends(outcome) == {0: (1, 10), 1: (1, 10)}, outcome
    (one,) = outcome.interruptions
    # rank 0 may have died of it before it was ended
    assert (one["mechanism"], one["rung"], one["ranks"][0]) == ("signal", "restart", 1), outcome
    outcome.ledger_is_sound()


@pytest.mark.drill
@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("import outlats", "ModuleNotFoundError: No module named 'outlats'"),
        ("exec('def f(:')", "SyntaxError: invalid syntax"),
        (
            "import argparse; p = argparse.ArgumentParser();"
            " p.add_argument('--data', required=True); p.parse_args()",
            "train.py: error: the following arguments are required: --data",
        ),
    ],
)
def test_a_script_that_cannot_start_is_started_once(tmp_path: Path, line: str, error: str) -> None:
    """The message comes at most once from each rank, and then the run ends with it."""
    (tmp_path / "train.py").write_text(line + "\n")
    outcome = drilled(tmp_path, str(tmp_path / "train.py"), workers=2)
    assert outcome.code == 1, outcome
    assert f"started again; last error: {error}" in outcome.stderr, outcome
    assert len(outcome.interruptions) <= 2, outcome
    assert len({one["generation"] for one in outcome.interruptions}) <= 1, outcome


@pytest.mark.drill
def test_a_failing_worker_restarts_all_until_the_budget_is_spent(
    tmp_path: Path,
) -> None:
    strikes = [{"at": "count", "rank": 0, "step": 3, "do": "raise", "always": True}]
    outcome = counted(tmp_path, "--record", flags=("--max-restarts", 2), strikes=strikes)
    assert outcome.code == 1, outcome
    assert outcome.stderr.count("strikes.Struck: struck at count") >= 3, outcome
    assert "2 whole restarts" in outcome.stderr, outcome
    assert [one["rung"] for one in outcome.interruptions] == ["restart", "restart", "stop"], outcome
    assert all("struck at count" in one["error"] for one in outcome.interruptions), outcome


@pytest.mark.drill
def test_a_plain_script_that_may_not_restart_ends_at_its_first_failure(tmp_path: Path) -> None:
    """This is torchrun's default, and works as under torchrun. Rank 0 would not end by itself."""
    strikes = [{"at": "count", "rank": 1, "step": 5, "do": "SIGKILL"}]
    outcome = counted(tmp_path, "--numbers", 100_000, flags=("--max-restarts", 0), strikes=strikes)
    assert outcome.code == 1, outcome
    assert ends(outcome) == {}, outcome
    assert [one["rung"] for one in outcome.interruptions] == ["stop"], outcome
    assert "0 whole restarts are allowed (--max-restarts), and all ranks" in outcome.stderr, outcome


@pytest.mark.drill
def test_a_rank_is_replaced_though_no_whole_restart_is_allowed(
    tmp_path: Path, calm_run: CalmRun
) -> None:
    """The script calls outlast, so the other ranks keep their processes."""
    arguments = ("--steps", 20)
    expected = calm_run("quick.py", *arguments, workers=2)
    strikes = [{"at": "forward", "rank": 1, "step": 5, "do": "SIGKILL"}]
    outcome = drilled(
        tmp_path, "quick.py", *arguments, workers=2, flags=("--max-restarts", 0), strikes=strikes
    )
    assert outcome.code == 0, outcome
    assert outcome.digests == expected.digests, outcome
    assert [one["rung"] for one in outcome.interruptions] == ["respawn"], outcome


@pytest.mark.drill
def test_error_files_are_where_torchrun_puts_them_and_reach_the_ledger(tmp_path: Path) -> None:
    strikes = [{"at": "count", "rank": 1, "step": 3, "do": "raise"}]
    outcome = counted(tmp_path, "--record", strikes=strikes)
    assert outcome.code == 0, outcome
    (path,) = (tmp_path / "run" / "logs").glob("*/attempt_0/1/error.json")
    message = json.loads(path.read_text())["message"]["message"]
    assert "struck at count" in message, message
    (one,) = outcome.interruptions
    assert "struck at count" in one["error"], outcome
    assert "Traceback" in one["traceback"], one


@pytest.mark.drill
def test_an_exit_code_that_is_not_0_is_a_failure(tmp_path: Path) -> None:
    outcome = counted(
        tmp_path, strikes=[{"at": "count", "rank": 1, "step": 3, "do": "exit", "code": 9}]
    )
    assert outcome.code == 0, outcome
    (one,) = outcome.interruptions
    assert (one["mechanism"], one["error"]) == ("exit", "exit code 9"), outcome
    assert ends(outcome)[0][0] == 1, outcome


@pytest.mark.drill
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("on_term", ["end", "clean"])
def test_a_signal_to_the_launcher_is_forwarded_as_sigterm(
    tmp_path: Path, number: signal.Signals, code: int, on_term: str
) -> None:
    with Drill(
        tmp_path, SCRIPT, tmp_path, "--numbers", 100_000, "--on-term", on_term, workers=2
    ) as drill:
        drill.until(
            lambda: (tmp_path / "count-0").exists() and (tmp_path / "count-1").exists(),
            "both at work",
        )
        drill.process.send_signal(number)
        outcome = drill.finish()
    assert outcome.code == code, outcome
    assert outcome.stdout.count("told to end") == (2 if on_term == "clean" else 0), outcome
    assert outcome.interruptions == [], outcome


@pytest.mark.drill
def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    with Drill(
        tmp_path,
        SCRIPT,
        tmp_path,
        "--numbers",
        100_000,
        "--on-term",
        "ignore",
        workers=2,
        flags=("--shutdown-timeout", 1),
    ) as drill:
        drill.until(
            lambda: (tmp_path / "count-0").exists() and (tmp_path / "count-1").exists(),
            "both at work",
        )
        drill.process.send_signal(signal.SIGTERM)
        outcome = drill.finish()
    assert outcome.code == 143, outcome


@pytest.mark.drill
def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with Drill(
        tmp_path,
        SCRIPT,
        tmp_path,
        "--numbers",
        100_000,
        "--on-term",
        "ignore",
        workers=2,
        flags=("--shutdown-timeout", 60),
    ) as drill:
        drill.until(
            lambda: (tmp_path / "count-0").exists() and (tmp_path / "count-1").exists(),
            "both at work",
        )
        drill.process.send_signal(signal.SIGINT)
        drill.until(
            lambda: "stopping" in (tmp_path / "stderr").read_text(), "the first to be heard"
        )
        drill.process.send_signal(signal.SIGINT)
        assert drill.process.wait(20) == 130


@pytest.mark.drill
def test_silence_is_a_hang_only_where_a_bound_was_given(tmp_path: Path) -> None:
    """Method: rank 1 sleeps without any output, and rank 0 waits for it in a collective.

    All ranks restart once none has printed anything for five seconds.
    """
    strikes = [{"at": "count", "rank": 1, "step": 5, "do": "sleep"}]
    outcome = counted(tmp_path, "--group", flags=("--hang-after", "5"), strikes=strikes)
    assert outcome.code == 0, outcome
    assert ends(outcome) == {0: (1, 10), 1: (1, 10)}, outcome
    (one,) = outcome.interruptions
    assert (one["mechanism"], one["ranks"]) == ("hang", [0, 1]), outcome
    assert "no worker has printed anything for 5 s" in one["reason"], outcome
    assert one["detected_s"] - one["fault_s"] >= 5, one
    outcome.ledger_is_sound()


@pytest.mark.drill
def test_the_silence_of_one_rank_is_no_hang_while_a_peer_prints(tmp_path: Path) -> None:
    """Method: rank 1 prints nothing for three times the bound, while rank 0 goes on printing."""
    strikes = [{"at": "count", "rank": 1, "step": 5, "do": "sleep", "for_s": 4.0}]
    outcome = counted(
        tmp_path, "--numbers", 60, "--each-s", 0.1, flags=("--hang-after", "1.4"), strikes=strikes
    )
    assert outcome.code == 0, outcome
    assert outcome.interruptions == [], outcome


@pytest.mark.drill
def test_without_a_bound_silence_is_no_hang(tmp_path: Path) -> None:
    outcome = counted(tmp_path, "--quiet", "--numbers", 40, "--each-s", 0.1)
    assert outcome.code == 0, outcome
    assert outcome.interruptions == [], outcome


@pytest.mark.drill
def test_a_stopped_worker_is_found_without_a_bound(tmp_path: Path) -> None:
    outcome = counted(
        tmp_path, "--group", strikes=[{"at": "count", "rank": 1, "step": 5, "do": "SIGSTOP"}]
    )
    assert outcome.code == 0, outcome
    assert [one["mechanism"] for one in outcome.interruptions] == ["hang"], outcome
    assert ends(outcome) == {0: (1, 10), 1: (1, 10)}, outcome


@pytest.mark.drill
def test_status_shows_a_plain_run_while_it_works_and_when_it_is_over(tmp_path: Path) -> None:
    with Drill(tmp_path, SCRIPT, tmp_path, "--numbers", 100, workers=2) as drill:
        drill.until(lambda: drill.status.get("state") == "training", "the state training")
        assert sorted(worker["rank"] for worker in drill.status["workers"]) == [0, 1]
        assert all(os.path.exists(f"/proc/{worker['pid']}") for worker in drill.status["workers"])
        assert drill.finish().code == 0
        assert drill.status["state"] == "ended"
