"""A traceback that several processes print is whole on the console, and there in full only once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.model.limits import LOG_TRACEBACK_MAX_BYTES, LOG_TRACEBACKS_COUNT
from outlast.runtime.agent import console_tracebacks
from outlast.runtime.agent.logs import ConsolePolicy, make_log_folder
from tests.processes.test_logs import Desk

FRAMES = (
    'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    import data\n'
)
ERROR = "ModuleNotFoundError: No module named 'data'\n"
WHOLE = FRAMES + ERROR
BEFORE = "\nDuring handling of the above exception, another exception occurred:\n\n"

MakeDesk = Callable[..., Desk]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeDesk]:
    """Make desks on which a traceback is shown once its stream has ended, unless a test says so."""
    monkeypatch.setattr(console_tracebacks, "LOG_TRACEBACK_QUIET_S", 60.0)
    monkeypatch.setattr(console_tracebacks, "LOG_TRACEBACK_MAX_S", 60.0)
    desks: list[Desk] = []

    def make(*, files: bool = True, **policy: object) -> Desk:
        folder = make_log_folder(tmp_path / "logs", "run") if files else None
        desks.append(Desk(folder, ConsolePolicy(**policy)))  # type: ignore[arg-type]
        return desks[-1]

    yield make
    for one in desks:
        one.done()


def starts(one: Desk, worker: int, place: int, attempt: int = 0) -> None:
    one.attach(worker, place)
    one.logs.move(worker, attempt=attempt, place=place)


def shown(one: Desk) -> str:
    return "".join(text for _, text in one.console)


def ends(one: Desk, worker: int) -> None:
    one.logs.drain(worker)


def same(one: Desk, rank: int, attempt: int, error: str = ERROR) -> str:
    """Return the line that is shown in place of the traceback of a rank."""
    assert one.folder is not None
    log = one.folder / f"attempt_{attempt}/{rank}/stderr.log"
    who = f"rank {rank} (attempt {attempt})"
    return f"outlast: {who} has the same error: {error[:-1]}; its log: {log}\n"


def test_an_error_of_all_ranks_in_all_attempts_is_shown_in_full_once(desk: MakeDesk) -> None:
    """Method: two ranks, four starts. Each log has the whole traceback."""
    one = desk()
    for attempt in range(4):
        for rank in (0, 1):
            worker = 2 * attempt + rank
            starts(one, worker, rank, attempt)
            one.say(worker, WHOLE.encode(), err=True)
            ends(one, worker)
    repeated = [(rank, attempt) for attempt in range(4) for rank in (0, 1)][1:]
    assert shown(one) == WHOLE + "".join(same(one, *who) for who in repeated)
    assert one.folder is not None
    logs = [path.read_text() for path in sorted(one.folder.rglob("stderr.log"))]
    assert logs == [WHOLE] * 8


def test_lines_of_two_ranks_do_not_mix_inside_a_traceback(desk: MakeDesk) -> None:
    one = desk()
    starts(one, 1, 0)
    starts(one, 2, 1)
    mine = [f"{line}\n".encode() for line in WHOLE.splitlines()]
    theirs = [line.replace(b"data", b"model") for line in mine]
    for left, right in zip(mine, theirs, strict=True):
        one.say(1, left, err=True)
        one.say(2, right, err=True)
    assert shown(one) == ""
    ends(one, 2)
    ends(one, 1)
    assert shown(one) == WHOLE.replace("data", "model") + WHOLE, "each is whole; they differ"


@pytest.mark.parametrize(
    "other",
    [
        WHOLE.replace("line 3", "line 4"),
        WHOLE.replace("'data'", "'model'"),
        WHOLE + BEFORE + FRAMES + "ValueError: no data\n",
        FRAMES,
    ],
    ids=["line", "error", "chained", "cut"],
)
def test_a_traceback_that_differs_is_shown_in_full(desk: MakeDesk, other: str) -> None:
    one = desk()
    for worker, text in ((1, WHOLE), (2, other)):
        starts(one, worker, worker - 1)
        one.say(worker, text.encode(), err=True)
        ends(one, worker)
    assert shown(one) == WHOLE + other


def test_what_follows_a_traceback_is_shown_where_it_differs(desk: MakeDesk) -> None:
    """The rest of a message may name what is special of a rank."""
    one = desk()
    said = "tried these folders:\n/data/{}\n"
    for worker in (1, 2):
        starts(one, worker, worker - 1)
        one.say(worker, (WHOLE + said.format(worker)).encode(), err=True)
        ends(one, worker)
    assert shown(one) == WHOLE + said.format(1) + same(one, 1, 0) + "/data/2\n"


def test_chained_errors_are_one_traceback(desk: MakeDesk) -> None:
    """Two that have nothing to do with each other are two, and the second may be known alone."""
    one = desk()
    chained = WHOLE + BEFORE + FRAMES + "ValueError: no data\n"
    for worker, text in ((1, chained), (2, chained), (3, WHOLE), (4, "warning\n" + WHOLE + WHOLE)):
        starts(one, worker, worker - 1)
        one.say(worker, text.encode(), err=True)
        ends(one, worker)
    assert shown(one) == (
        chained
        + same(one, 1, 0, "ValueError: no data\n")
        + WHOLE
        + "warning\n"
        + same(one, 3, 0) * 2
    )


def test_the_rank_that_torch_puts_in_front_makes_no_difference(desk: MakeDesk) -> None:
    one = desk()
    texts = ["".join(f"[rank{rank}]: {line}\n" for line in WHOLE.splitlines()) for rank in range(2)]
    for worker, text in enumerate(texts):
        starts(one, worker, worker)
        one.say(worker, text.encode(), err=True)
        ends(one, worker)
    assert shown(one) == texts[0] + same(one, 1, 0)


def test_a_progress_bar_before_a_traceback_makes_no_difference(desk: MakeDesk) -> None:
    """A bar has no newline at its end. What of it is shown already is not repeated."""
    one = desk()
    for worker in (1, 2, 3):
        starts(one, worker, worker - 1)
    one.say(1, b"  5%|  | 1/20" + WHOLE.encode(), err=True)
    ends(one, 1)
    one.say(2, b"  5%|  | 1/20" + WHOLE.encode(), err=True)
    ends(one, 2)
    one.say(3, b"  5%|  | 1/20", err=True)
    ends(one, 3)  # shows the bar
    one.say(3, WHOLE.encode(), err=True)
    ends(one, 3)
    bar = "  5%|  | 1/20"
    assert shown(one) == (bar + WHOLE + f"{bar}\n" + same(one, 1, 0) + f"{bar}\n" + same(one, 2, 0))


def test_an_error_of_the_compiler_is_shown_once_too(desk: MakeDesk) -> None:
    """It has no frame of the script, and so no head."""
    one = desk()
    text = "  File \"train.py\", line 2\n    step(\n        ^\nSyntaxError: '(' was never closed\n"
    for worker in (1, 2):
        starts(one, worker, worker - 1)
        one.say(worker, text.encode(), err=True)
        ends(one, worker)
    assert shown(one) == text + same(one, 1, 0, "SyntaxError: '(' was never closed\n")


def test_a_process_may_print_its_own_error_again(desk: MakeDesk) -> None:
    """It may catch it each time, and go on."""
    one = desk()
    starts(one, 1, 0)
    for _ in range(3):
        one.say(1, WHOLE.encode(), err=True)
    ends(one, 1)
    assert shown(one) == WHOLE * 3


def test_without_log_files_each_traceback_is_shown_in_full(desk: MakeDesk) -> None:
    one = desk(files=False)
    for worker in (1, 2):
        starts(one, worker, worker - 1)
        one.say(worker, WHOLE.encode(), err=True)
        ends(one, worker)
    assert shown(one) == WHOLE * 2


def test_a_stream_that_is_not_shown_neither_shows_nor_repeats(desk: MakeDesk) -> None:
    one = desk(only_ranks=frozenset({1}))
    for worker in (1, 2):
        starts(one, worker, worker - 1)
        one.say(worker, WHOLE.encode(), err=True)
        ends(one, worker)
    assert shown(one) == WHOLE, "rank 0 is not on the console, so rank 1 is shown in full"


def test_each_line_keeps_the_prefix_that_was_asked_for(desk: MakeDesk) -> None:
    one = desk(tee=3)
    starts(one, 1, 0)
    one.say(1, WHOLE.encode(), err=True)
    ends(one, 1)
    assert shown(one) == "".join(f"[default0]:{line}\n" for line in WHOLE.splitlines())


def test_a_traceback_of_a_process_that_goes_on_is_shown_when_it_is_quiet(
    desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows it is not held back."""
    monkeypatch.setattr(console_tracebacks, "LOG_TRACEBACK_QUIET_S", 0.05)
    one = desk()
    starts(one, 1, 0)
    one.say(1, WHOLE.encode(), err=True)
    assert one.loop.run_until(lambda: shown(one) == WHOLE, within_s=10.0), shown(one)
    one.say(1, b"step 8\n", err=True)
    assert shown(one) == WHOLE + "step 8\n"


def test_a_launcher_that_is_late_reads_the_rest_before_it_shows_a_part(
    desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the rest is in the pipe when the time is over, and both are due in one turn."""
    one = desk()
    for worker in (1, 2):
        starts(one, worker, worker - 1)
    one.say(1, WHOLE.encode(), err=True)
    ends(one, 1)
    monkeypatch.setattr(console_tracebacks, "LOG_TRACEBACK_QUIET_S", 0.0)
    one.say(2, FRAMES.encode(), err=True)
    os.write(one.writers[2][1], ERROR.encode())
    assert one.loop.run_until(lambda: shown(one) != WHOLE, within_s=10.0)
    assert shown(one) == WHOLE + same(one, 1, 0)


def test_lines_that_never_pause_are_held_for_so_long_only(
    desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_tracebacks, "LOG_TRACEBACK_MAX_S", 0.05)
    one = desk()
    starts(one, 1, 0)
    one.say(1, WHOLE.encode(), err=True)

    def more() -> bool:
        one.say(1, b"line\n", err=True)
        return bool(shown(one))

    assert one.loop.run_until(more, within_s=10.0)
    assert shown(one).startswith(WHOLE)


def test_no_more_than_so_many_bytes_are_held(desk: MakeDesk) -> None:
    one = desk()
    starts(one, 1, 0)
    frame = b'  File "train.py", line 3, in again\n    again()\n'
    head = b"Traceback (most recent call last):\n"
    one.say(1, head, err=True)
    frames = 0
    while len(head) + frames * len(frame) <= LOG_TRACEBACK_MAX_BYTES:
        assert shown(one) == ""
        one.say(1, frame, err=True)
        frames += 1
    assert shown(one).count("in again") == frames
    one.say(1, ERROR.encode(), err=True)
    assert shown(one).endswith(ERROR)


def test_only_so_many_tracebacks_are_known(desk: MakeDesk) -> None:
    one = desk()
    texts = [WHOLE.replace("line 3", f"line {at}") for at in range(LOG_TRACEBACKS_COUNT + 1)]
    for worker, text in enumerate([*texts, texts[-1], texts[0]]):
        starts(one, worker, worker)
        one.say(worker, text.encode(), err=True)
        ends(one, worker)
    last = len(texts)
    assert shown(one) == "".join(texts) + same(one, last, 0) + texts[0]
