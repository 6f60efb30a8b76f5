"""Whether evidence is of one job and one clock: what is said, and what is left unsaid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.diagnose.same_job import Sample, notes_of, time_of


def sample(name: str, *lines: str) -> Sample:
    out = Sample(name)
    out.look(line.encode() for line in lines)
    return out


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ("WORLD_SIZE=8", "WORLD_SIZE=16", "world size 8 in a, 16 in b"),
        (
            "torchrun --rdzv-id=llama --nnodes 2",
            "torchrun --rdzv_id mixtral --nnodes 2",
            "run id llama in a, mixtral in b",
        ),
        ("  run_id           : 17", "  run_id           : 18", "run id 17 in a, 18 in b"),
        (
            "slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED",
            "SLURM_JOB_ID=4712",
            "Slurm job 4711 in a, 4712 in b",
        ),
        (
            "{'world_size': 8, 'master_port': '29500'}",
            "world_size = 4, --master-port 29501",
            "world size 8 in a, 4 in b; master port 29501 in b",
        ),
    ],
)
def test_two_jobs_are_noticed(one: str, other: str, said: str) -> None:
    [note] = notes_of([sample("a", one), sample("b", other)])
    assert note.startswith("this may be evidence of more than one job: ")
    assert said.split(";")[0] in note


@pytest.mark.parametrize(
    "logs",
    [
        # torchrun started its workers again
        (["MASTER_PORT=29500 WORLD_SIZE=8"], ["MASTER_PORT=31234 WORLD_SIZE=8"]),
        (["world size: 8", "world size: 4"], ["world size: 4"]),  # a job that shrank
        (["run_id : none"], ["run_id : 17"]),
        (["loss 0.1"], ["step 3"]),
    ],
)
def test_one_job_is_not_taken_for_two(logs: tuple[list[str], ...]) -> None:
    assert notes_of([sample(str(number), *lines) for number, lines in enumerate(logs)]) == ()


def test_clocks_hours_apart_are_said_with_what_it_may_be() -> None:
    here = sample("n1.log", "2026-01-02 10:00:00 start", "2026-01-02 10:30:00 hang")
    zone = sample("n2.log", "2026-01-02 17:00:20 start", "2026-01-02 17:30:10 hang")
    wrong = sample("n3.log", "2031-05-06 01:02:03 start")
    assert (
        "the times in n2.log begin 6.5 hours after those in n1.log end: clocks that differ by a"
        " time zone, or two jobs" in notes_of([here, zone])[0]
    )
    assert "a clock that is wrong" in notes_of([here, wrong])[0]


def test_logs_of_one_clock_are_not_said_to_differ() -> None:
    """Ranks whose logs follow one another within the hour, and one in another zone that says so."""
    logs = [
        sample("a", "2026-01-02 10:00:00,1 x", "2026-01-02 10:30:00 x"),
        sample("b", "2026-01-02T11:20:00Z x"),
        sample("c", "2026-01-02T03:10:00-08:00 x"),
        sample("d", "no time"),
    ]
    assert notes_of(logs) == ()


@pytest.mark.parametrize(
    ("line", "at_s"),
    [
        (b"2026-01-02T03:04:05Z x", 1767323045),
        (b"[2026/01/02 04:04:05.123 +0100] x", 1767323045),
        (b"2026-13-02 03:04:05", None),
        (b"2026-02-31 03:04:05", None),
        (b"", None),
    ],
)
def test_times(line: bytes, at_s: float | None) -> None:
    assert time_of(line) == at_s


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_lines_can_be_looked_at(lines: list[bytes]) -> None:
    one, other = Sample("a"), Sample("b")
    one.look(lines)
    other.look(reversed(lines))
    assert isinstance(notes_of([one, other]), tuple)
