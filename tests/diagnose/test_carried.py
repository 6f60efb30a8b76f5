"""What a loop carries from step to step is found in its text, and nothing else is named."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from outlast.diagnose.scripts.carried import carried, temporaries

HOME = Path(__file__).parents[2]


def names(body: str, *, before: str = "") -> dict[str, int]:
    """What the loop over `body` carries, with the line within the body."""
    head = f"{before}\nfor step in run.steps(\n    state, until=100\n):\n"
    source = head + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    return {one.name: one.line - 4 for one in carried(source, 3)}


def test_a_batch_that_was_drawn_ahead_is_carried() -> None:
    body = """
    with step:
        for micro in range(2):
            loss = model(X, Y)
            X, Y = get_batch("train")
            loss.backward()
        optimizer.step()
    """
    assert names(body) == {"X": 3, "Y": 3}


def test_best_loss_and_patience_are_carried() -> None:
    body = """
    with step:
        loss = train(step.batch)
    if loss < best:
        best, patience = loss, 0
    else:
        patience += 1
    """
    assert names(body) == {"best": 3, "patience": 6}


def test_a_running_loss_that_is_only_printed_is_no_matter() -> None:
    """But the count that decides when it is printed is one, as anybody's patience is."""
    body = """
    with step:
        loss = train(step.batch)
    running += loss.item()
    shown = loss if shown is None else 0.9 * shown + 0.1 * loss
    count += 1
    if count % 10 == 0:
        print(f"{running / 10:.3f}")
        log.info("%s", shown)
        writer.add_scalar("loss", running, count)
        running = 0.0
    """
    before = "running, shown, count = 0.0, None, 0"
    assert set(names(body, before=before)) == {"count"}
    also = body + "    x = math.log(running)\n"
    assert set(names(also, before=before)) == {"count", "running"}


def test_what_is_printed_needs_a_value_in_front_of_the_loop() -> None:
    """A rank that is replaced in the middle of an epoch would raise a NameError in each step."""
    body = """
    if (step.number - 1) % per_epoch == 0:
        running = 0.0
    with step:
        running += train(step.batch).item()
    if step.number % per_epoch == 0:
        print(running / per_epoch)
    """
    assert names(body) == {"running": 4}
    assert names(body, before="running = 0.0") == {}


@pytest.mark.parametrize(
    "body",
    [
        "x, y = step.batch\nloss = f(x, y)\nx = loss",
        "t1 = time.time()\ndt = t1 - t0\nt0 = t1",
        "dt, t0 = time.time() - t0, time.time()\nif dt > 9:\n    print(dt)",
        "losses.append(f(step.batch))\nself.best = min(self.best, 1)\nkept['n'] += 1",
        "total = 0\nfor x in step.batches:\n    total += f(x)\nlog(total)",
        "if step.number % 2:\n    a = 1\nelse:\n    a = 2\nuse(a)",
        "out = [a for a in step.batch]\na = 3",
        "out = cat([p.grad.view(-1) for p in net.parameters()])\nfor p in net:\n    p.zero()",
        "with autocast() as c:\n    loss = f(c)\nlog(loss)",
        "def closure():\n    return later\nlater = 1",
        "try:\n    v = f()\nfinally:\n    g()\nuse(v)",
        "if made is None:\n    made = make()\nuse(made)",
        "if made is None and step.number > 2:\n    made = make()\nuse(made)",
        "if (n := f()) > 1:\n    use(n)",
    ],
)
def test_what_each_step_sets_before_it_reads_is_not_carried(body: str) -> None:
    assert names(body) == {}


def test_what_is_set_in_one_branch_alone_may_be_of_an_earlier_step() -> None:
    assert names("if step.number % 10 == 0:\n    score = f()\nuse(score)") == {"score": 3}


def test_a_loop_that_is_not_there_or_cannot_be_read_says_nothing() -> None:
    assert carried("for x in y:\n    a = a\n", 1) == []
    assert carried("for step in run.steps(:\n", 1) == []


def test_our_own_scripts_carry_nothing() -> None:
    """Examples and drills keep all that they need in run.state, but one that is meant not to."""
    scripts = [*(HOME / "examples").glob("*.py"), *(HOME / "tests/drills/scripts").glob("*.py")]
    found = {}
    for path in scripts:
        text = path.read_text()
        for line, words in enumerate(text.splitlines(), 1):
            if ".steps(" in words and (some := carried(text, line)):
                found[path.name] = some
    assert [one.name for one in found.pop("plain_variable.py")] == ["x"]
    assert found == {}


# --- what each round sets before it reads it ------------------------------------------------------

TRAINER = """
class Net:
    def forward(self, x):
        return self.layer(x)

class Trainer:
    def schedule(self):
        return self.loss / 2

    def report(self):
        self.callback(self)

    def run(self):
        for step in run.steps(state, until=100):
            self.number = step.number
            {before}
            with step:
                out, self.loss = model(step.batch)
                self.loss.backward()
            self.report()
            self.total += self.loss
            self.old = self.old or self.loss
"""


def set_first(before: str) -> frozenset[str]:
    source = TRAINER.format(before=before)
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "run.steps" in text)
    return temporaries(source, line)


def test_an_attribute_that_each_round_sets_before_it_reads_is_temporary() -> None:
    assert set_first("pass") == {"step", "out", "self.number", "self.loss"}


@pytest.mark.parametrize(
    "before",
    [
        "rate = self.loss",
        "rate = self.schedule()",
        "self.report()",
        "stranger(self)",
        "if step.number > 3:\n                use(self.loss)",
    ],
)
def test_an_attribute_that_may_be_read_before_it_is_set_is_none(before: str) -> None:
    found = set_first(before)
    assert "self.loss" not in found
    assert "self.number" in found, "it is set before that"


def test_an_attribute_that_is_set_at_times_is_not_temporary() -> None:
    source = "for step in run.steps(s):\n    if step:\n        a.b = 1\n    use(a.b)\n"
    assert temporaries(source, 1) == {"step"}
