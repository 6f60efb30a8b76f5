"""Scripts that cannot be made safe are refused: exit code 2, the reason and the place, a hint, and
nothing left behind.

Each runs on two real ranks. A few, one of each kind, run in `make test`. The others are drills.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.command import outlast_anew
from tests.drills._scripts import go

LOOP = """
state = named()
for step in run.steps(state, until=4):
"""
# name: body, the text of the line that the message names ("": none), words of the message, and
# words of the hint
REFUSED = {
    "closure": (
        "def closure(): return loss_of(step)\n"
        + LOOP
        + "    with step:\n        opt.step(closure)  # here\n",
        "# here",
        "given a closure",
        "step() without arguments",
    ),
    "lbfgs": (
        "opt = torch.optim.LBFGS(model.parameters())\n"
        + LOOP
        + "    with step:\n        opt.step(lambda: loss_of(step))\n",
        "for step in",
        "LBFGS evaluates the model inside its step",
        "AdamW",
    ),
    "stepped twice": (
        LOOP + "    with step:\n        update(step)\n        opt.step()  # here\n",
        "# here",
        "a second time",
        "accumulate=n",
    ),
    "collective after the optimizer": (
        LOOP
        + "    with step:\n        loss = update(step)\n        dist.all_reduce(loss)  # here\n",
        "# here",
        "torch.distributed.all_reduce",
        "step.log",
    ),
    "functional collective after the optimizer": (
        "import torch.distributed._functional_collectives as functional\n"
        + LOOP
        + "    with step:\n        loss = update(step)\n        float(functional.all_reduce(loss,"
        ' "sum", dist.group.WORLD))\n',
        "loss.backward(); opt.step()",
        "collectives ran after",
        "nothing that communicates",
    ),
    "optimizer in backward": (
        "from torch.distributed.optim import _apply_optimizer_in_backward\n"
        '_apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})\n'
        + LOOP
        + "    with step:\n        loss_of(step).backward()\n",
        "for step in",
        "stepped during backward",
        "after loss.backward()",
    ),
    "optimizer in a gradient hook": (
        LOOP.replace(
            "for step",
            "next(model.parameters()).register_post_accumulate_grad_hook(lambda _: opt.step())  #"
            " here\nfor step",
        )
        + "    with step:\n        loss_of(step).backward()\n",
        "# here",
        "while a backward is running",
        "after loss.backward()",
    ),
    "ZeroRedundancyOptimizer": (
        "from torch.distributed.optim import ZeroRedundancyOptimizer\nopt ="
        " ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)\n"
        + LOOP
        + "    with step:\n        update(step)\n",
        "for step in",
        "ZeroRedundancyOptimizer communicates",
        "fully_shard",
    ),
    "another shape": (
        'model.module.register_buffer("seen", torch.zeros(2))\n'
        + LOOP
        + "    with step:\n        update(step)\n        if step.number == 2: model.module.seen ="
        " torch.zeros(3)\n",
        "",
        "model.seen was torch.float32 [2] and is now torch.float32 [3]",
        "final size",
    ),
    "nested": (
        LOOP + "    with step:\n        with step:  # here\n            update(step)\n",
        "# here",
        "inside another step",
        "enter each step once",
    ),
    "skipped": (
        LOOP.replace("4):", "4):  # here")
        + "    if step.number == 2: continue\n    with step:\n        update(step)\n",
        "# here",
        "step 2 was skipped",
        "once",
    ),
    "entered twice": (
        LOOP + "    with step:\n        update(step)\n    with step:  # here\n        pass\n",
        "# here",
        "is entered twice",
        "once",
    ),
    "step.batch of an accumulated step": (
        LOOP.replace("until=4", "until=4, accumulate=2") + "    with step:\n        update(step)\n",
        "",
        "step.batch with 2 micro-batches",
        "step.batches",
    ),
    "step.batch without a loader": (
        LOOP.replace("named()", "named(loader=None)") + "    with step:\n        update(step)\n",
        "",
        "step.batch without a loader",
        "loader=loader",
    ),
    "something that cannot be saved": (
        "named(thing=[1])\n",
        "",
        "run.state(thing=...) is of type list",
        "these two methods",
    ),
    "a foreign sampler": (
        "named(loader=DataLoader(Points(), batch_size=8, shuffle=True))\n",
        "",
        "loader is a DataLoader over RandomSampler",
        "StepSampler",
    ),
    "another state in the second call of run.steps": (
        (
            "for state in (named(), named()):\n    for step in run.steps(state, until=2):\n       "
            " with step:\n            update(step)\n"
        ),
        "",
        "called again with another state",
        "one run.state",
    ),
    "a refusal that the body swallows": (
        LOOP + "    with step:\n        loss = update(step)\n        try: dist.all_reduce(loss)  #"
        " here\n        except Exception: pass\n",
        "# here",
        "torch.distributed.all_reduce",
        "step.log",
    ),
}
CORE = ("collective after the optimizer",)


@pytest.mark.parametrize(
    "name",
    [name if name in CORE else pytest.param(name, marks=pytest.mark.drill) for name in REFUSED],
)
def test_an_unsafe_script_is_refused_with_its_place_and_a_hint(tmp_path: Path, name: str) -> None:
    """Method: two ranks run the script. stderr of `outlast run` has the message, the line if there
    is one, and the hint. Nothing is left behind.
    """
    body, at, what, hint = REFUSED[name]
    ran = go(tmp_path, body)
    assert ran.code == 2, ran.outcome
    said = ran.err[ran.err.index("error: ") :]
    assert what in said, said
    assert hint in said.partition("hint: ")[2], said
    assert not at or ran.line(at) in said, said
    assert not ran.outcome.interruptions, "a refusal is no interruption"
    ran.ended_clean()


@pytest.mark.drill
def test_a_module_outside_the_state_causes_one_warning(tmp_path: Path) -> None:
    """Method: the model's output passes through a layer that was not registered."""
    body = (
        "head = torch.nn.Linear(2, 2)\nstate = named()\nfor step in run.steps(state, until=4):\n   "
        " with step:\n"
    )
    ran = go(
        tmp_path,
        body + "        head(model(step.batch[0])).sum().backward(); opt.step();"
        " opt.zero_grad()\nend()\n",
    )
    assert ran.code == 0, ran.outcome
    assert ran.err.count("is not in run.state(...)") == 1, ran.err
    assert "Linear" in ran.err
    ran.ended_clean()


def test_an_unknown_flag_is_answered_with_the_one_that_was_meant(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    done = outlast_anew("run", "--nproc-per-nod", "2", "--sparse", "1", "script.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean --" in done.stderr, done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.drill
def test_a_script_that_does_not_exist_is_refused_before_a_run_begins(tmp_path: Path) -> None:
    done = outlast_anew("run", "--nproc-per-node", "2", "missing.py", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "missing.py" in done.stderr
    assert "hint:" in done.stderr
    assert not (tmp_path / "runs").exists()
