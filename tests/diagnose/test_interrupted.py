"""What a verdict says of an interruption that the run saw itself, and what it advises."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outlast.diagnose.fuse import decide
from outlast.diagnose.fuse.next_evidence import GATHER
from outlast.diagnose.fuse.weights import WEIGHTS
from outlast.diagnose.fuse.words import WORDS, healed_action
from outlast.diagnose.ledger import read_records
from outlast.diagnose.log_ends import read_ends, with_ends
from outlast.diagnose.logs import read_lines
from outlast.diagnose.logs.tracebacks import HEADER
from outlast.diagnose.rules import Grade
from outlast.diagnose.standing import read_standing
from outlast.model.records import Interruption, Meta, Records, Session, SessionRecords
from outlast.model.terms import FailureClass, Mechanism, Rung
from outlast.model.verdict import Verdict, summary

PLACE = '  File "/srv/train.py", line 9, in load\n'
WHY = "ranks [1] are taken by spares; survivors go on in place; step 30 is committed"
KILL = Interruption(
    1,
    Mechanism.SIGNAL,
    10.001,
    ranks=(1,),
    pids=(77,),
    nodes=("here",),
    rung=Rung.SPARE,
    fault_s=10.0,
    resumed_s=10.053,
    steps_repeated=1,
    reason=f"rank 1 (pid 77) ended: signal 9; {WHY}",
    error="signal 9",
)
DEAD: dict[str, Any] = {
    "rank": 1,
    "pid": 77,
    "kernel": {},
    "killed": False,
    "exit_code": None,
    "signal": 9,
    "oom": False,
    "oom_read": True,
}
ALIVE = DEAD | {"rank": 0, "pid": 76, "signal": None, "oom_read": False}


def of_record(one: Interruption, **process: Any) -> Verdict:
    """By the record of where the processes stood; `process`: what is different of rank 1's."""
    processes = [ALIVE, DEAD | process]
    about = one.public(began_s=0.0)
    told = {"schema": 1, "outlast": "standing", "interruption": about, "processes": processes}
    findings = read_standing(json.dumps(told).encode(), name="standing.json").findings
    return decide(findings, blame=None)


def records_of(one: Interruption, *, state: str) -> Records:
    meta = Meta("run", "toy", 2, "0.1.0", 0.0, 0.0)
    session = Session(1, 1, 0.0, 0.0, seen_s=20.0, ended_s=20.0, state=state)
    return Records(meta, (SessionRecords(session, 0.0, interruptions=(one,)),))


def of_ledger(one: Interruption, *, state: str = "ended") -> Verdict:
    records = records_of(one, state=state)
    return decide(read_records(records, name="ledger.db").findings, blame=None)


# --- what is said ---


ASKED = (
    "node b is drained: asked for by ana on pts/0: a fan, and dust; ranks [1] are taken by spares"
)


@pytest.mark.parametrize("cause", [FailureClass.HOST_MAINTENANCE, FailureClass.UNKNOWN])
def test_the_verdict_on_a_drain_says_who_asked_for_it_and_why(cause: FailureClass) -> None:
    """A drain is no failure. One that the policy decided has the class unknown."""
    moved = replace(
        KILL, mechanism=Mechanism.LOST_NODE, failure_class=cause, reason=ASKED, error="", pids=()
    )
    for verdict in (of_record(moved), of_ledger(moved)):
        assert verdict.reason.endswith(
            "Rank 1 was moved off node b, which was drained, asked for by ana on pts/0: a fan, and"
            " dust; recovered with a spare in 53 ms, 1 step repeated, 0 lost."
        )
        assert "Nothing that was read says why" not in verdict.reason
        assert verdict.failure_class is cause
        asked = cause is FailureClass.HOST_MAINTENANCE
        assert (verdict.confidence > 0.9) is asked
        assert ("somebody asked for it" in verdict.action) is asked


def test_a_node_that_is_lost_while_it_is_drained_is_a_lost_node() -> None:
    lost = replace(
        KILL, mechanism=Mechanism.LOST_NODE, reason=f"node b has no power; {ASKED}", error=""
    )
    assert "was lost with a node: node b has no power" in of_ledger(lost).reason


def test_a_rank_that_was_killed_is_told_in_one_line() -> None:
    """Who, what killed it, what was done, what it cost; and no advice to restart."""
    verdict = of_record(KILL)
    assert verdict.reason == (
        "Rank 1 (pid 77) was killed by signal 9 (SIGKILL), sent neither by outlast nor by the OOM "
        "killer; recovered with a spare in 53 ms, 1 step repeated, 0 lost."
    )
    assert verdict.action == "no restart is needed: the run went on by itself"
    assert verdict.next_test.startswith("who sent the signal")
    assert summary(verdict.public()) == verdict.reason


@pytest.mark.parametrize(
    ("process", "said"),
    [
        ({"oom_read": True}, "sent neither by outlast nor by the OOM killer"),
        ({"oom_read": False}, "not sent by outlast; whether by the OOM killer was not readable"),
        ({"oom": True}, "while the kernel counted an OOM kill"),
        (
            {"oom_near": True},
            "while the kernel counted an OOM kill, and its counter does not say of which process",
        ),
        ({"killed": True}, "sent by outlast: it could no longer be led"),
    ],
)
def test_the_oom_killer_is_ruled_out_only_where_its_counters_were_read(
    process: dict[str, Any], said: str
) -> None:
    reason = of_record(KILL, **process).reason
    assert f"killed by signal 9 (SIGKILL), {said}; recovered" in reason
    assert ("nor by the OOM killer" in reason) is (process == {"oom_read": True})


def test_a_record_of_an_earlier_version_says_nothing_of_the_oom_killer() -> None:
    """It has `oom`, which was False where the counters could not be read."""
    about = KILL.public(began_s=0.0)
    dead = {key: value for key, value in DEAD.items() if key != "oom_read"}
    told = {"schema": 1, "outlast": "standing", "interruption": about, "processes": [dead]}
    found = read_standing(json.dumps(told).encode(), name="standing.json").findings
    assert "whether by the OOM killer was not readable" in decide(found, blame=None).reason


def test_a_ledger_alone_does_not_say_who_sent_the_signal() -> None:
    assert of_ledger(KILL).reason == (
        "Rank 1 (pid 77) was killed by signal 9 (SIGKILL); "
        "recovered with a spare in 53 ms, 1 step repeated, 0 lost."
    )


@pytest.mark.parametrize(
    ("one", "process", "said"),
    [
        (replace(KILL, error="signal 11"), {"signal": 11}, "died of signal 11 (SIGSEGV); reco"),
        (replace(KILL, error="signal 15"), {"signal": 15}, "(SIGTERM), not sent by outlast; reco"),
        (
            replace(KILL, mechanism=Mechanism.EXIT, error="exit code 7"),
            {"signal": None, "exit_code": 7},
            "ended: exit code 7; reco",
        ),
        (
            replace(KILL, mechanism=Mechanism.HANG, reason=f"it stands (a; b); {WHY}", error=""),
            {"killed": True},
            "hung: it stands (a; b); recovered with a spare in",
        ),
        (
            replace(KILL, mechanism=Mechanism.EXCEPTION, error="ValueError: nan"),
            {"signal": None},
            "raised ValueError: nan; reco",
        ),
        (
            replace(
                KILL,
                mechanism=Mechanism.EXCEPTION,
                error="RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.",
            ),
            {"signal": None},
            "lost a worker of its DataLoader (pid 77), which was killed by signal 9 (SIGKILL);",
        ),
        (
            replace(
                KILL,
                mechanism=Mechanism.EXCEPTION,
                error="RuntimeError: DataLoader worker (pid 77) is killed by signal: User defined"
                " signal 1.",
            ),
            {"signal": None},
            "(pid 77), which was killed by a signal (User defined signal 1); reco",
        ),
    ],
)
def test_each_way_to_fail_has_its_sentence(
    one: Interruption, process: dict[str, Any], said: str
) -> None:
    reason = of_record(one, **process).reason
    assert said in reason
    assert WHY not in reason, "what the engine decided is evidence, and no part of the sentence"


def test_ranks_that_were_lost_together_are_told_together() -> None:
    both = replace(KILL, ranks=(0, 1), pids=(76, 77))
    told = [ALIVE | {"signal": 9, "oom_read": True}, DEAD]
    about = {"schema": 1, "outlast": "standing", "interruption": both.public(began_s=0.0)}
    raw = json.dumps(about | {"processes": told}).encode()
    reason = decide(read_standing(raw, name="standing.json").findings, blame=None).reason
    assert reason.startswith("Ranks 0, 1 (pids 76, 77) were killed by signal 9 (SIGKILL), sent n")
    assert "; recovered with spares in 53 ms" in reason
    assert reason.count("Ranks 0, 1") == 1


def test_a_rank_that_ended_with_an_exit_code_was_not_killed() -> None:
    """Beside a killed rank, a peer raises: the sentence tells how each of them ended."""
    why = "rank 1 (pid 77) ended: signal 9; rank 0 (pid 76) ended: exit code 1; all start again"
    both = replace(KILL, ranks=(1, 0), pids=(77, 76), reason=why)
    told = [ALIVE | {"pid": 76, "exit_code": 1}, DEAD]
    about = {"schema": 1, "outlast": "standing", "interruption": both.public(began_s=0.0)}
    raw = json.dumps(about | {"processes": told}).encode()
    recorded = decide(read_standing(raw, name="standing.json").findings, blame=None).reason
    for reason in (recorded, of_ledger(both).reason):
        assert reason.startswith("Rank 1 (pid 77) was killed by signal 9 (SIGKILL)"), reason
        assert "; rank 0 (pid 76) ended as well, with exit code 1; recovered" in reason, reason


def test_no_error_is_cut_within_a_word() -> None:
    """A line of an error is as long as its author likes."""
    error = "ValueError: " + "unexpected sample " * 40
    one = replace(KILL, mechanism=Mechanism.EXCEPTION, error=error)
    said = of_record(one, signal=None).reason
    assert "unexpected...; recovered" in said or "sample...; recovered" in said


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("MemoryError", FailureClass.HOST_MEMORY),
        ("StopIteration", FailureClass.USER_DATA),
        ("MyProblem", FailureClass.USER_CODE),
    ],
)
def test_an_exception_without_a_message_is_no_riddle(error: str, name: FailureClass) -> None:
    """The ledger blames the program for every exception, and the exception's name says more.

    Both votes once ended in a tie, and the reason was "Nothing that was read says why".
    """
    raised = replace(
        KILL,
        mechanism=Mechanism.EXCEPTION,
        failure_class=FailureClass.USER_CODE,
        rung=Rung.REPEAT,
        resumed_s=None,
        reason="rank 1 raised; every process lives: the step is repeated in place",
        error=error,
        traceback=f"{HEADER}:\n{PLACE}    load()\n{error}\n",
    )
    recorded = read_records(records_of(raised, state="failed"), name="ledger.db")
    lines = read_lines(recorded.lines, name="ledger.db")
    verdict = decide([*recorded.findings, *lines], blame=None)
    assert verdict.failure_class is name
    assert "says why" not in verdict.reason
    assert f"Rank 1 (pid 77) raised {error}" in verdict.reason
    assert name is FailureClass.USER_CODE or "raised in load (srv/train.py:9)" in verdict.reason


def test_without_a_class_the_reason_still_says_where_it_was_raised() -> None:
    """Two causes that are as likely leave no class, but there is a traceback."""
    text = f"{HEADER}:\n{PLACE}    load()\nStopIteration\n"
    about = replace(KILL, mechanism=Mechanism.EXCEPTION, resumed_s=None, error="StopIteration")
    recorded = read_records(records_of(about, state="failed"), name="ledger.db")
    lines = read_lines(text.encode().splitlines(), name="ledger.db")
    unsure = replace(WEIGHTS, grades={**WEIGHTS.grades, Grade.POSSIBLE: 0.3})
    verdict = decide([*recorded.findings, *lines], blame=None, weights=unsure)
    assert verdict.failure_class is FailureClass.UNKNOWN
    assert verdict.reason.endswith("StopIteration was raised in load (srv/train.py:9).")


def test_a_sigkill_is_not_blamed_on_errors_of_the_program_in_the_logs() -> None:
    """A program that fails by its own error ends with a code. Nobody sends it SIGKILL.

    Method: a peer's log has an error about its arguments, which did not end the peer. The same line
    counts if the rank raised an exception, or if the OOM killer may have killed it.
    """
    line = b"train.py: error: unrecognized arguments: --resume\n"
    argued = list(read_lines([line], name="stderr-rank0.log"))

    def verdict(one: Interruption, **process: Any) -> Verdict:
        processes = [ALIVE, DEAD | process]
        told = {"schema": 1, "outlast": "standing", "interruption": one.public(began_s=0.0)}
        record = json.dumps(told | {"processes": processes}).encode()
        return decide([*argued, *read_standing(record, name="standing.json").findings], blame=None)

    killed = verdict(KILL)
    assert killed.failure_class is FailureClass.UNKNOWN
    assert killed.reason.startswith("Rank 1 (pid 77) was killed by signal 9 (SIGKILL), sent")
    for other in (
        verdict(replace(KILL, mechanism=Mechanism.EXCEPTION, error="SystemExit: 2")),
        verdict(KILL, oom_read=False),
    ):
        assert other.failure_class is FailureClass.USER_CODE


def test_a_run_whose_steps_are_not_seen_is_not_said_to_have_recovered() -> None:
    """All ranks were started again. Whether the script trains is not known."""
    unseen = replace(KILL, rung=Rung.RESTART, steps_repeated=-2, steps_lost=-2)
    assert not unseen.steps_seen
    verdict = of_record(unseen)
    assert verdict.reason.endswith("; all ranks were started again, steps not seen.")
    assert verdict.action == (
        f"see in the logs whether the script trains again; if it does not, {GATHER['signal']}"
    )
    assert of_ledger(unseen, state="failed").action == GATHER["signal"]


@pytest.mark.parametrize(
    ("state", "said", "action"),
    [
        ("ended", "The run ended well: its ledger says so, and has no interruption.", "is over"),
        ("stopped", "The run was stopped (outlast stop), and its ledger has no", "is over"),
        ("", "", "if it hangs"),
    ],
)
def test_the_verdict_says_how_a_run_without_interruptions_ended(
    state: str, said: str, action: str
) -> None:
    """By the ends of its logs alone it would not be known whether it hangs."""
    meta = Meta("run", "toy", 2, "0.1.0", 0.0, 0.0)
    session = Session(1, 1, 0.0, 0.0, seen_s=9.0, ended_s=9.0, state=state, reason="outlast stop")
    found = read_records(Records(meta, (SessionRecords(session, 0.0),)), name="ledger.db")
    ends = read_ends("0/stdout.log", [b"step %d loss 1\n" % step for step in range(9)])
    verdict = decide(with_ends(found.findings, ends), blame=None)
    assert found.is_quiet
    assert said in verdict.reason
    assert ("ends at step 8" in verdict.reason) == (not said)
    assert action in verdict.action


# --- what is advised ---


def test_a_run_that_did_not_go_on_is_told_what_to_keep() -> None:
    stopped = replace(KILL, rung=Rung.STOP, resumed_s=None)
    for verdict in (of_record(stopped), of_ledger(stopped, state="failed")):
        assert verdict.action == GATHER["signal"]
        assert "recovered" not in verdict.reason


def test_a_run_that_went_on_and_then_failed_is_told_what_to_keep() -> None:
    assert of_ledger(KILL, state="failed").action == GATHER["signal"]
    assert "no restart" in of_ledger(KILL, state="ended").action


@pytest.mark.parametrize("mechanism", [Mechanism.EXCEPTION, Mechanism.HANG])
@pytest.mark.parametrize("name", list(WORDS))
def test_of_no_class_a_healed_run_is_told_to_start_again(
    name: FailureClass, mechanism: Mechanism
) -> None:
    """Wrong results are apart: they are in the weights of a run that went on, too."""
    action = healed_action(name, mechanism)
    asks = ("then restart", "restart from", "resume from", "a restart", "go back")
    if name is not FailureClass.SILENT_DATA_CORRUPTION:
        assert not [one for one in asks if one in action], action


def test_on_several_nodes_the_node_is_named_and_what_it_did_not_send() -> None:
    """On one node the sentence has neither."""
    assert of_record(KILL).reason.startswith("Rank 1 (pid 77) was killed by signal 9")
    assert of_record(KILL, node="here").reason.startswith("Rank 1 (pid 77) on node here was killed")
    about = replace(KILL, mechanism=Mechanism.LOST_NODE, reason="node here was not heard of")
    told = {
        "schema": 1,
        "outlast": "standing",
        "interruption": about.public(began_s=0.0),
        "processes": [ALIVE | {"node": "there"}],
        "missing": {"here": "it is not in the run any more", "there": "it did not send it in time"},
    }
    read = read_standing(json.dumps(told).encode(), name="standing.json")
    said = decide(read.findings, blame=None).reason
    assert said.startswith(
        "Rank 1 (pid 77) was lost with a node: node here was not heard of; no evidence came from"
        " node here, because it is not in the run any more; recovered with a spare in"
    ), said
    assert read.notes[1] == "no evidence of node there: it did not send it in time"


def test_the_verdict_names_a_node_that_acknowledged_nothing() -> None:
    """The bytes tell a cut link from processes that have ended."""
    link = "9,216 bytes not acknowledged towards node here (from there)"
    why = f"node here was not heard of; {link}; the vote has passed"
    about = replace(KILL, mechanism=Mechanism.LOST_NODE, reason=why)
    said = of_record(about, node="here").reason
    assert said.startswith(
        f"Rank 1 (pid 77) was lost with a node: node here was not heard of; {link}; recovered with"
    ), said
    nobody = replace(about, ranks=(), pids=(), mechanism=Mechanism.LOST_CONTACT)
    assert f"; {link}; " in of_record(nobody).reason
