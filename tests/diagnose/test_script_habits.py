"""Habits that do not go with outlast are named, and their harmless neighbours are not."""

from __future__ import annotations

import pytest

from outlast.diagnose.scripts.assignments import last_set
from outlast.diagnose.scripts.script_text import read_script

TEXT = """\
import signal, sys
import torch
import outlast

run = outlast.join()
a, b = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
first = torch.optim.SGD(a.parameters())
second = torch.optim.SGD(b.parameters())
state = run.state(a=a, b=b, first=first, second=second)
for step in run.steps(state, until=9):
    with step:
        x = 1
"""


def said(text: str) -> list[tuple[int, str]]:
    return [(one.line, one.what.partition(":")[0]) for one in read_script(text).remarks]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("again = outlast.join()", "outlast.join() is called again"),
        ("signal.signal(signal.SIGINT, f)", "a handler for SIGINT"),
        ("signal.signal(signal.SIGUSR1, f)", "a handler for SIGUSR1"),
        ("sys.argv = []", "sys.argv is changed"),
        ("sys.argv.append('x')", "sys.argv is changed"),
        ("sys.argv[1] += 'x'", "sys.argv is changed"),
        ("del sys.argv[1]", "sys.argv is changed"),
    ],
)
def test_a_habit_is_named_with_its_line(line: str, named: str) -> None:
    assert said(TEXT + line) == [(13, named)]


@pytest.mark.parametrize(
    "line",
    [
        "def other():\n    return outlast.join()",
        "signal.signal(signal.SIGALRM, f)",
        "x = sys.argv[1]",
        "if run.rank == 0:\n    print(1)",
        "if run.rank == 0:\n    first.step()\nelse:\n    first.step()",
    ],
)
def test_its_harmless_neighbour_is_not(line: str) -> None:
    assert said(TEXT + line) == []


def test_arguments_that_are_changed_before_outlast_are_changed_again() -> None:
    assert said(TEXT.replace("run = outlast", "sys.argv.pop()\nrun = outlast")) == []


def test_optimizers_that_are_called_by_rank_are_named() -> None:
    text = TEXT + "if run.rank:\n    first.step()\n    second.step()\nelse:\n    second.step()\n"
    assert [line for line, _ in said(text)] == [14]


def test_schedulers_inside_a_kept_one_are_kept() -> None:
    more = """\
from torch.optim.lr_scheduler import LinearLR, SequentialLR
warm = LinearLR(first)
schedule = SequentialLR(first, [warm, warm])
"""
    text = TEXT.replace("state =", more + "state =")
    assert [line for line, _ in said(text)] == [11]
    assert said(text.replace("second=second)", "second=second, schedule=schedule)")) == []


def test_an_optimizer_that_a_function_returns_is_not_said_to_be_forgotten() -> None:
    """Under which name it is kept then, the text does not tell."""
    made = "def make(net):\n    fresh = torch.optim.SGD(net.parameters())\n    return [fresh]\n"
    assert said(TEXT + made) == []
    assert [line for line, _ in said(TEXT + made[made.index("fresh") :].partition("\n")[0])] == [13]


@pytest.mark.parametrize(
    ("lines", "iterator"),
    [
        ("batches = run.draw(lambda: next(data))", "data"),
        ("batches = run.draw(self.data.__next__)", "self.data"),
        ("batches = run.draw(read)\ndef read():\n    return next(data)", "data"),
        ("batches = run.draw(lambda: next(iter(loader)))", ""),
        ("batches = run.draw(read)\ndef read():\n    it = iter(x)\n    return next(it)", ""),
        ("batches = run.draw(lambda: get_batch('train'))", ""),
    ],
)
def test_batches_drawn_from_an_iterator_are_named(lines: str, iterator: str) -> None:
    """A rank that is replaced would begin the iterator anew."""
    wanted = f"what run.draw calls takes the next item of {iterator}, and a rank that is replaced"
    found = said(TEXT + lines)
    assert [(line, what.startswith(wanted)) for line, what in found] == [(13, True)] * bool(
        iterator
    )


READER = """\
class Reader:
    def batch(self):
        self.at += 1
        return data[self.at]
    def look(self):
        self.seen = data[0]
        return self.seen
reader = Reader()
"""


@pytest.mark.parametrize(
    ("draw", "moved"),
    [
        ("run.draw(reader.batch)", True),
        ("run.draw(lambda: reader.batch())", True),
        ("run.draw(reader.look)", False),
        ("run.draw(lambda n: reader.batch(), numbered=True)", False),
        ("run.draw(reader.batch)\nrun.state(reader=reader)", False),
    ],
)
def test_a_reader_that_counts_its_batches_is_named(draw: str, moved: bool) -> None:
    """As in llm.c: a rank that is replaced would begin with the first batch."""
    found = said(f"{TEXT}{READER}batches = {draw}\n")
    wanted = "what run.draw calls moves reader.at, which is not kept"
    assert found == [(21, wanted)] * moved


def test_the_last_line_that_sets_a_variable_is_found() -> None:
    text = """\
best = 1
def train(best, meter):
    best = 2
    meter.total = 3
    seen.append(1)
    table["x"] = 4
best = 5
"""
    assert [last_set(text, "train", name) for name in ("best", "meter.total", "seen", "table")] == [
        3,
        4,
        5,
        6,
    ]
    assert last_set(text, "<module>", "best") == 7
    assert last_set(text, "train", "nowhere") == 1
    assert last_set("for", "train", "best") == 1
