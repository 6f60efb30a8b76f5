"""planner/imports/: records of other programs in the form of a ledger."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.errors import UsageError
from outlast.model.records import Records
from outlast.model.terms import FailureClass, Mechanism
from outlast.planner.fit.calibration import calibrate
from outlast.planner.fit.failures_table import Fleet, read_failures, read_table
from outlast.planner.fit.ledgers import observe
from outlast.planner.foreign_records import is_imported, records_of
from outlast.planner.imports.foreign_table import session_of
from outlast.planner.imports.sacct import expand, read_sacct
from outlast.planner.imports.torchrun_attempts import RankFiles, sessions_of
from outlast.planner.scenario import Extent, Unit

HOUR_S = 3600.0


def records(sessions: Any, *, kind: str = "sacct", unit: str = "gpu") -> Records:
    return records_of(sessions, name="x", kind=kind, source="x", unit=unit, version="1")


# --- a table --------------------------------------------------------------------------------------

WATCHED = """node,time,class,start,end
a,20,gpu,0,100
a,60,network,0,100
a,250,hbm,200,300
b,,,0,300
c,299.5,user_code,100,300
"""
TABLE = "gpu,time,class\n1,5,hbm\n2,6,DBE\n2,9,straggler\n"


@pytest.mark.parametrize(
    ("text", "fleet"), [(WATCHED, None), (TABLE, Fleet(units=64, from_s=0.0, to_s=10.0))]
)
def test_a_ledger_of_a_table_says_what_the_table_says(text: str, fleet: Fleet | None) -> None:
    """The unit-seconds (with gaps in the watch), the failures, the classes, the lost records and
    the rates are equal.
    """
    told: dict[str, Any] = {
        "source": "x",
        "fleet": fleet,
        "dates": None if fleet is None else False,
        "classes": {"DBE": FailureClass.HBM},
    }
    from_table = read_failures(text.splitlines(), **told)
    table = read_table(text.splitlines(), **told)
    made = records([session_of(table)], kind="csv", unit=table.unit.name.lower())
    from_ledger = observe(made, now_s=None, source="x")
    assert from_ledger.exposure_s == pytest.approx(from_table.exposure_s)
    assert from_ledger.failures == from_table.failures
    assert from_ledger.units == pytest.approx(from_table.units)
    rates = [calibrate([one]).rates for one in (from_table, from_ledger)]
    assert [(one.failure_class, one.count, one.rate_per_s) for one in rates[0]] == [
        (one.failure_class, one.count, pytest.approx(one.rate_per_s)) for one in rates[1]
    ]
    assert is_imported(made)


# --- Slurm ----------------------------------------------------------------------------------------

HEAD = "JobID|JobName|State|ExitCode|Start|End|Elapsed|NNodes|NodeList|AllocTRES|FailedNode"
GPUS = "billing=16,gres/gpu=16,node=2"
JOBS = f"""{HEAD}
1|llama|NODE_FAIL|1:0|2025-03-02T04:00:00|2025-03-02T10:00:00|06:00:00|2|n[01-02]|{GPUS}|n02
1.batch|batch|CANCELLED|0:0|2025-03-02T04:00:00|2025-03-02T10:00:00|06:00:00|1|n01||
2|llama|OUT_OF_MEMORY|0:125|2025-03-02T10:10:00|2025-03-02T12:10:00|02:00:00|2|n[01-02]|{GPUS}|
3|llama|FAILED|0:9|2025-03-02T12:20:00|2025-03-02T13:20:00|01:00:00|2|n[01-02]|{GPUS}|
4|llama|FAILED|7:0|2025-03-02T13:30:00|2025-03-02T14:30:00|01:00:00|2|n[01-02]|{GPUS}|
5|llama|CANCELLED by 7|0:0|2025-03-02T15:00:00|2025-03-02T16:00:00|01:00:00|2|n[01-02]|{GPUS}|
6|llama|TIMEOUT|0:0|2025-03-02T16:00:00|2025-03-02T17:00:00|01:00:00|2|n[01-02]|{GPUS}|
7|llama|COMPLETED|0:0|2025-03-02T17:00:00|2025-03-02T18:00:00|01:00:00|2|n[01-02]|{GPUS}|
8|llama|RUNNING|0:0|2025-03-02T18:00:00|Unknown|1-02:00:00|2|n[01-02]|{GPUS}|
9|llama|PENDING|0:0|Unknown|Unknown|00:00:00|2|None assigned||
"""


def slurm(text: str = JOBS, job_name: str | None = None) -> Any:
    return read_sacct(text.splitlines(), source="jobs", job_name=job_name)


def test_each_job_that_ran_is_a_session_and_its_state_says_how_it_ended() -> None:
    sessions = slurm()
    assert [one.state for one in sessions] == [
        "failed",
        "failed",
        "failed",
        "failed",
        "stopped",
        "stopped",
        "ended",
        "stopped",
    ]
    failures = [failure for one in sessions for failure in one.failures]
    assert [(one.mechanism, one.failure_class) for one in failures] == [
        (Mechanism.LOST_NODE, FailureClass.UNKNOWN),
        (Mechanism.SIGNAL, FailureClass.HOST_MEMORY),
        (Mechanism.SIGNAL, FailureClass.UNKNOWN),
        (Mechanism.EXIT, FailureClass.UNKNOWN),
    ]
    assert failures[0].nodes == ("n02",)
    assert [one.reason for one in failures[2:]] == ["FAILED: signal 9", "FAILED: exit code 7"]
    assert sessions[-1].to_s - sessions[-1].from_s == 26 * HOUR_S, "it runs, by Elapsed"
    assert {(life.rank, life.name) for life in sessions[0].lives} == {
        (rank, "n01" if rank < 8 else "n02") for rank in range(16)
    }


def test_the_planner_gets_gpu_seconds_and_failures_of_the_run() -> None:
    observed = observe(records(slurm()), now_s=None, source="jobs")
    hours = 6 + 2 + 1 + 1 + 1 + 1 + 1 + 26
    assert observed.exposure_s == pytest.approx(
        {Unit.NODE: 2 * hours * HOUR_S, Unit.GPU: 16 * hours * HOUR_S, Unit.RUN: hours * HOUR_S}
    )
    assert [one.extent for one in observed.failures] == [Extent.RUN] * 4
    assert [one.at_s / HOUR_S for one in observed.failures] == pytest.approx([6, 8, 9, 10])


def test_lines_that_end_in_a_bar_and_few_columns_are_read_too() -> None:
    text = "JobID|State|Start|Elapsed|\n7|NODE_FAIL|2025-01-01T00:00:00|10:00|\n"
    (one,) = slurm(text)
    assert (one.to_s - one.from_s, len(one.lives)) == (600.0, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "when it ran"),
        ("JobID|State|End\n", "the first line names no column Start"),
        ("JobID|State|Start\n", "names no column End"),
        (f"{HEAD}\n1|x|FAILED\n", "jobs, line 2 has 3 cells"),
        (JOBS.replace("TIMEOUT", "TIMEUOT"), "jobs, line 8: State is 'TIMEUOT'"),
        (JOBS.replace("2025-03-02T17:00:00|2025", "soon|2025"), "line 9: Start is 'soon'"),
        (JOBS.replace("7|llama", "7|bert"), "several names: bert, llama"),
        (
            "JobID|State|Start|End\n1|FAILED|2025-01-02|2025-01-01\n",
            "line 2: it ended before it began",
        ),
    ],
)
def test_what_is_wrong_with_sacct_is_said_with_its_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("|", r"\|")):
        records(slurm(text))


def test_of_several_names_one_is_chosen() -> None:
    text = JOBS.replace("7|llama", "7|bert")
    assert [one.state for one in slurm(text, "bert")] == ["ended"]
    with pytest.raises(UsageError, match="has no job 'bart'"):
        slurm(text, "bart")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ("n1",)),
        ("n[08-10,12],login", ("n08", "n09", "n10", "n12", "login")),
        ("r[1-2]-ib", ("r1-ib", "r2-ib")),
        ("n[3-1]", ()),
        ("n[1-", ()),
    ],
)
def test_short_lists_of_nodes_are_written_out(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


def test_a_list_of_a_billion_nodes_is_refused_at_once() -> None:
    text = JOBS.replace("n[01-02]|billing", "n[1-999999999]|billing")
    with pytest.raises(UsageError, match="more than 1,000,000"):
        records(slurm(text.replace("gres/gpu=16", "gres/gpu=9999999")))


# --- torchrun -------------------------------------------------------------------------------------


def attempts(**more: Any) -> Any:
    """Return the files of two attempts of two ranks. In the first attempt rank 1 fails at 108 s,
    and rank 0 fails after it.
    """
    return [
        RankFiles("job_x", 0, 0, 100.0, 109.0, 109.0, "RuntimeError: connection closed by peer"),
        RankFiles("job_x", 0, 1, 100.5, 108.0, 108.0, "RuntimeError: ECC\nmore", "Traceback"),
        RankFiles("job_x", 1, 0, 120.0, 190.0),
        RankFiles("job_x", 1, 1, 120.1, 200.0, **more),
    ]


def test_each_attempt_but_the_last_has_failed_and_its_first_rank_is_named() -> None:
    verdict = {"class": "hbm", "confidence": 0.9, "reason": "ECC"}
    (one,) = sessions_of(attempts(), node="n", source="logs", verdicts={("job_x", 0): verdict})
    assert (one.from_s, one.to_s, one.state) == (100.0, 200.0, "ended")
    (failure,) = one.failures
    assert (failure.at_s, failure.resumed_s, failure.ranks) == (108.0, 120.0, (1,))
    assert (failure.failure_class, failure.reason) == (
        FailureClass.HBM,
        "rank 1: RuntimeError: ECC",
    )
    assert [(life.rank, life.from_s, life.to_s) for life in one.lives] == [
        (0, 100.0, 109.0),
        (1, 100.0, 109.0),
        (0, 120.0, 200.0),
        (1, 120.0, 200.0),
    ]
    made = records([one], kind="torchrun")
    (event,) = [event for event in made.sessions[0].events if event.kind == "verdict"]
    assert event.data == {"interruption": 1, "verdict": verdict}


def test_a_last_attempt_with_an_error_file_has_failed() -> None:
    files = attempts(failed_s=199.0, message="ValueError: loss is nan")
    (one,) = sessions_of(files, node="n", source="logs", verdicts={})
    assert (one.state, one.exit_code, one.reason) == (
        "failed",
        1,
        "rank 1: ValueError: loss is nan",
    )
    assert one.failures[-1].resumed_s is None
    observed = observe(records([one], kind="torchrun"), now_s=None, source="logs")
    assert [one.extent for one in observed.failures] == [Extent.PROCESS, Extent.RUN]


def test_a_copy_without_times_and_an_empty_folder_are_refused() -> None:
    same = [RankFiles("job", 0, 0, 5.0, 5.0), RankFiles("job", 1, 0, 5.0, 5.0)]
    with pytest.raises(UsageError, match=r"logs/job: all of its files have the same time"):
        sessions_of(same, node="n", source="logs", verdicts={})
    with pytest.raises(UsageError, match="holds no logs of torchrun"):
        sessions_of([], node="n", source="logs", verdicts={})
