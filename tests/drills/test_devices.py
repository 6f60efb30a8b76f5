"""Each rank computes on its own GPU: at the first start, as a hot spare, and when it enters main
again.

Method: no GPU is needed. Workers are forked from a process that has loaded `scripts/fake_cuda.py`,
which stands for four GPUs and records, in order, which process chooses a device or builds a group.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.drills._run import SCRIPTS, Drill, Outcome

pytestmark = pytest.mark.timeout(120)
RANKS = 4
KILL = {"at": "forward", "rank": 3, "step": 6, "do": "SIGKILL"}
STEPS = 150

# FIRST is what the script does first of all. It draws on its GPU in each step, and waits after step
# 3 until the test says that a spare stands ready.
SCRIPT = f"""
import os, time
import torch
import fake_cuda, outlast

run = outlast.join()
FIRST
model = run.replicate(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(64, 8))
sampler = outlast.StepSampler(data, batch_size=4)
loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
state = run.state(model=model, optimizer=optimizer, loader=loader)
for step in run.steps(state, until={STEPS}):
    with step:
        drawn = fake_cuda.draw(run.device)
        torch.cuda.set_device(0)  # a script may: what is kept is the state of the rank's own GPU
        model(step.batch[0]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step.on_commit(
            lambda number=step.number, drawn=drawn: fake_cuda.note(
                "drew", rank=run.rank, step=number, number=drawn
            )
        )
    with open(os.environ["DRILL_COMMITS"], "a") as file:
        file.write(f"{{run.rank}} {{step.number}} {{os.getpid()}}\\n")
    while step.number == 3 and not os.path.exists(os.environ["SPARE_IS_READY"]):
        time.sleep(0.01)
"""


class Log:
    """The calls that the processes of one run made to the GPUs, in order."""

    def __init__(self, path: Path) -> None:
        self.calls: list[dict[str, Any]] = list(map(json.loads, path.read_text().splitlines()))

    def of(self, pid: int) -> list[dict[str, Any]]:
        return [call for call in self.calls if call["pid"] == pid]

    def named(self, call: str) -> list[dict[str, Any]]:
        return [one for one in self.calls if one["call"] == call]

    def holders(self, rank: int) -> list[int]:
        """Return the processes that built a group as this rank, in order."""
        pids = [one["pid"] for one in self.named("init_process_group") if one["rank"] == rank]
        return list(dict.fromkeys(pids))


def run_on_gpus(
    folder: Path,
    script: str,
    *arguments: str,
    then: Callable[[Drill, Path], object] = lambda drill, ready: None,
    **options: Any,
) -> tuple[Outcome, Log]:
    path = folder / "cuda.log"
    imports = os.pathsep.join([str(SCRIPTS), *filter(None, sys.path)])
    ready = folder / "ready"
    env = {"FAKE_CUDA": str(path), "PYTHONPATH": imports, "SPARE_IS_READY": str(ready)}
    flags = ("--preload", "fake_cuda", *options.pop("flags", ()))
    with Drill(folder, script, *arguments, workers=RANKS, flags=flags, env=env, **options) as drill:
        then(drill, ready)
        outcome = drill.finish()
    assert outcome.code == 0, outcome
    return outcome, Log(path)


def kill_rank_3_once_spares_are_ready(drill: Drill, ready: Path) -> None:
    """Kill rank 3 once two spares are ready. gloo can block a second rank for ever in a send to the
    killed one.
    """
    drill.until(lambda: len(drill.parked()) == 2, "two spares")
    ready.touch()
    drill.until(lambda: drill.oldest >= 5, "five steps")
    os.kill(drill.pid_of(3), signal.SIGKILL)


def each_group_is_on_the_ranks_gpu(log: Log) -> None:
    """Check that each process has chosen its rank's GPU before it builds a group, and names it to
    the group.
    """
    built = log.named("init_process_group")
    assert {one["rank"] for one in built} == set(range(RANKS))
    for one in built:
        gpu = one["rank"]
        assert (one["device"], one["current"]) == (f"cuda:{gpu}", gpu), one
        before = log.calls[: log.calls.index(one)]
        mine = [call for call in before if call["pid"] == one["pid"]]
        assert [call["device"] for call in mine if call["call"] == "set_device"][-1] == gpu, one


@pytest.mark.drill
@pytest.mark.parametrize(
    "first",
    [
        pytest.param("torch.cuda.init()", id="it uses CUDA"),
        pytest.param("run.device", id="it asks for its device"),
        pytest.param("pass", id="it wraps its model"),
    ],
)
def test_a_hot_spare_touches_no_gpu_before_it_has_a_rank(tmp_path: Path, first: str) -> None:
    """Method: four ranks have one GPU each. Rank 3 is killed, and a hot spare takes it, and GPU 3.

    The script leaves GPU 0 current in each step. Ranks 1 and 3 have GPUs with the same seed, so
    they draw the same numbers, and so does the spare: the sealed state is that of GPU 3, not of the
    current one.
    """
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("FIRST", first))
    outcome, log = run_on_gpus(
        tmp_path, str(script), flags=("--spares", 2), then=kill_rank_3_once_spares_are_ready
    )
    assert [one["rung"] for one in outcome.interruptions] == ["spare"], outcome
    each_group_is_on_the_ranks_gpu(log)
    pids = log.holders(3)
    assert len(pids) == 2
    for pid in pids:
        assert log.of(pid)[0] == {"pid": pid, "call": "set_device", "device": 3}
    drew = {
        rank: {one["step"]: one["number"] for one in log.named("drew") if one["rank"] == rank}
        for rank in (1, 3)
    }
    unsaid = set(range(1, STEPS + 1)) - drew[3].keys()
    assert len(unsaid) <= 1, (
        "killed between a commit and what it does on it, a rank leaves that step out, and no other"
    )
    assert drew[3] == {step: number for step, number in drew[1].items() if step not in unsaid}
    assert len(set(drew[3].values())) == STEPS - len(unsaid)


@pytest.mark.drill
def test_a_rank_that_enters_main_again_chooses_its_gpu_again(tmp_path: Path) -> None:
    """The function may have left another device current. Each survivor builds two groups.

    gloo may drop a survivor's send to the killed rank (see wake.py). Such a survivor cannot leave
    its collective, so it is replaced as well.
    """
    arguments = ("--main", "--collectives")
    outcome, log = run_on_gpus(tmp_path, "ddp.py", *arguments, strikes=[KILL])
    (one,) = outcome.interruptions
    replaced = set(one["ranks"])
    assert KILL["rank"] in replaced, outcome
    assert len(replaced) == 1 or "did not leave its collective" in one["reason"], outcome
    each_group_is_on_the_ranks_gpu(log)
    survivors = set(range(RANKS)) - replaced
    assert len(survivors) >= 2, outcome
    for rank in survivors:
        pids = log.holders(rank)
        assert len(pids) == 1, (rank, pids, outcome)
        order = ["set_device", "init_process_group"]
        assert [one["call"] for one in log.of(pids[0]) if one["call"] in order] == order * 2


@pytest.mark.drill
def test_a_vote_waits_for_the_work_of_the_gpu(tmp_path: Path) -> None:
    """Method: the gradients of rank 0 are in transit between the GPUs when rank 3 is lost, which
    has voted.

    The collective of rank 0 is aborted then, and ends without an error. If rank 0 voted without
    waiting for it, or only after it, the step would be committed with gradients that never arrived.
    """
    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT.replace("FIRST", "pass").replace(
            "        optimizer.step()\n",
            "        if (run.rank, step.number, step.attempt) == (0, 9, 0):\n"
            "            fake_cuda.begin_work()\n"
            "        optimizer.step()\n",
        )
    )

    def kill_rank_3_behind_its_vote(drill: Drill, ready: Path) -> None:
        ready.touch()
        drill.until(lambda: drill.step >= 8, "eight steps")

        def others_have_voted() -> bool:
            log = Log(tmp_path / "cuda.log")
            votes = Counter(one["rank"] for one in log.named("put") if one["act"] == "vote")
            return bool(log.named("waits")) and all(votes[rank] > votes[0] for rank in (1, 2, 3))

        drill.until(others_have_voted, "all others have voted")
        os.kill(drill.pid_of(3), signal.SIGKILL)

    outcome, log = run_on_gpus(tmp_path, str(script), then=kill_rank_3_behind_its_vote)
    (waited,) = log.named("waits")
    assert waited["device"] == 0
    (one,) = outcome.interruptions
    assert (one["ranks"], one["steps_repeated"], one["steps_lost"]) == ([3], 1, 0), outcome
    drawn = [one for one in log.named("drew") if (one["rank"], one["step"]) == (0, 9)]
    assert len(drawn) == 1, "committed once"
