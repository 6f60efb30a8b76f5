"""A variable that a script only updates and shows is told from one that decides something."""

from __future__ import annotations

import pytest

from outlast.diagnose.scripts.only_shown import is_only_shown, is_read_before

HEAD = "def main():\n    run = 0.0\n    for x in y:\n        run += f(x)\n"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("print(f'{run:.3f}')", True),
        ("bar.set_postfix(loss=run / 3)", True),
        ("run = 0.9 * run; print(run)", True),
        ("x, run = 1, g(run); print(run)", False),
        ("run = 0.9 * run", False),
        ("bar.update(f'loss {run}')", True),
        ("text = 'loss %.3f' % run", True),
        ("text = '{}'.format(run)", True),
        ("math.log(run)", False),
        ("if run > 3: break", False),
        ("history.append(run)", False),
        ("return run", False),
    ],
)
def test_each_line_that_reads_it_counts(line: str, shown: bool) -> None:
    assert is_only_shown(f"{HEAD}        {line}\n", "main", "run") == shown


def test_of_a_global_all_functions_count_and_what_cannot_be_read_is_used() -> None:
    source = "run = 0\ndef show():\n    print(run)\n"
    assert is_only_shown(source, "<module>", "run")
    assert not is_only_shown(source + "def stop():\n    return run > 3\n", "<module>", "run")
    assert not is_only_shown("def main(:\n", "main", "run")
    assert not is_only_shown(HEAD, "other", "run")


@pytest.mark.parametrize(
    ("before", "within", "unused"),
    [
        ("model.load_state_dict(d)", "x = step.batch", True),
        ("model.load_state_dict(d)", "d = step.batch", True),
        ("model.load_state_dict(d)", "f(d)", False),
        ("model.load_state_dict(d)", "d += 1", False),
        ("def f(): return d", "f()", False),
        ("f = lambda: d", "f()", False),
    ],
)
def test_a_variable_that_is_read_only_before_the_loop_is_unused(
    before: str, within: str, unused: bool
) -> None:
    """An example is the checkpoint that a script has loaded: `d = torch.load(p)`."""
    lines = ["d = load()", before, "for step in run.steps(state):", f"    {within}"]
    assert is_read_before("\n".join(lines), "<module>", "d", 3) == unused
    inner = "def main():\n" + "\n".join(f"    {line}" for line in lines)
    assert is_read_before(inner, "main", "d", 4) == unused
    around = "for epoch in range(9):\n" + "\n".join(f"    {line}" for line in lines)
    assert not is_read_before(around, "<module>", "d", 4)
