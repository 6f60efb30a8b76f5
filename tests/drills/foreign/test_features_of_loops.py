"""Features of users' own loops under kills: each run ends with the bits of an undisturbed one."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.drills._run import Drill
from tests.drills._scripts import HEAD, Ran, go, write

KILLS = (
    {"mark": "prepared", "rank": 1, "step": 4, "signal": "KILL"},
    {"mark": "passed", "rank": 0, "step": 6, "signal": "KILL"},
)
RAISES = ({"mark": "stepping", "rank": 0, "step": 4, "do": "raise"},)


def same(folder: Path, body: str, *, within_s: float = 50.0, **options: Any) -> Ran:
    """Run a script undisturbed and under two kills, and compare all ranks."""
    ran = []
    for name, marks in (("calm", ()), ("hit", KILLS)):
        (folder / name).mkdir()
        ran.append(go(folder / name, body, marks=marks, within_s=within_s, **options))
    calm, hit = ran
    assert calm.code == hit.code == 0, hit.outcome
    assert hit.outcome.digests == calm.outcome.digests, hit.outcome
    assert sorted(hit.outcome.digests) == [0, 1], hit.outcome
    assert [one["steps_lost"] for one in hit.outcome.interruptions] == [0, 0], hit.outcome
    assert "not bit-exact" not in hit.err, hit.outcome
    return hit


BREAK = """
kept = run.values(best=1e9, patience=0, seen=0)
for step in run.steps(named(kept=kept), until=1_000):
    with step:
        loss = update(step)
        step.log(loss=loss, reduce="mean")
        kept.seen = step.number
    for attempt in run.phase("look"):
        with attempt:
            total = loss.clone()
            dist.all_reduce(total)
            better = total.item() < kept.best - 0.05
            kept.patience = 0 if better else kept.patience + 1
            kept.best = total.item() if better else kept.best
    if kept.patience == 7:
        break
print(f"stopped {run.rank} {kept.seen}", flush=True)
end()
"""


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_an_early_stop_by_break_comes_at_the_step_of_an_undisturbed_run(tmp_path: Path) -> None:
    """Both ranks are killed before that step. The patience is a value that is kept."""
    hit = same(tmp_path, BREAK)
    alone = {line for line in hit.out.splitlines() if line.startswith("stopped ")}
    assert len(alone) == 2, hit.outcome
    assert len({line.split()[2] for line in alone}) == 1, hit.outcome
    assert all(int(line.split()[2]) > 6 for line in alone), hit.outcome


STREAM = """
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

class Stream(IterableDataset):
    "Points in order, each rank its own; it says and takes back where it is."
    def __init__(self, rank): self.rank, self.at = rank, 0
    def __iter__(self):
        while self.at < 400:
            self.at += 1
            given = torch.Generator().manual_seed(1000 * self.rank + self.at)
            yield torch.randn(8, generator=given), self.at % 2
        self.at = 0
    def state_dict(self): return {"at": self.at}
    def load_state_dict(self, saved): self.at = saved["at"]

loader = StatefulDataLoader(Stream(run.rank), batch_size=4, num_workers=WORKERS)
for step in run.steps(named(loader=loader), until=12):
    with step:
        update(step)
end()
"""


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_goes_on_from_its_place_on_a_replaced_rank(tmp_path: Path, workers: int) -> None:
    """Method: an IterableDataset with state_dict() in a StatefulDataLoader."""
    same(tmp_path, STREAM.replace("WORKERS", str(workers)))


COMPILED = """
model = WRAPPED
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in run.steps(named(), until=12):
    with step:
        update(step)
end()
"""


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "wrapped",
    [
        "run.replicate(torch.compile(Net(), backend='aot_eager'))",
        "torch.compile(run.replicate(Net()), backend='aot_eager')",
        "run.replicate(torch.compile(Net()))",
    ],
)
def test_a_compiled_model_keeps_its_bits_over_kills(tmp_path: Path, wrapped: str) -> None:
    """The survivor goes on with what it has compiled, and the replacement compiles again."""
    head = HEAD.replace("model = run.replicate(Net())\n", "model = None\n").replace(
        "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n", ""
    )
    same(tmp_path, COMPILED.replace("WRAPPED", wrapped), head=head, within_s=120.0)


LONG = """
import time
for step in run.steps(named(), until=UNTIL):
    with step:
        update(step)
        time.sleep(0.02)
        if run.rank == 0: step.on_commit(lambda n=step.number: open(MARK, "w").write(str(n)))
end()
"""


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_run_that_ctrl_c_ended_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    """All ranks end at one step with a checkpoint, and `--resume` trains the remaining steps."""
    (tmp_path / "calm").mkdir()
    mark = tmp_path / "mark"
    body = f"UNTIL, MARK = 60, {str(mark)!r}\n{LONG}"
    calm = go(tmp_path / "calm", body)
    script = str(write(tmp_path, body))
    mark.unlink()
    flags = ("--checkpoint-every", 1_000)
    with Drill(tmp_path, script, workers=2, flags=flags, within_s=60) as drill:
        drill.until(lambda: mark.exists() and int(mark.read_text() or 0) >= 10, "step 10")
        drill.process.send_signal(signal.SIGINT)
        ended = drill.finish()
    assert ended.code == 130, ended
    assert not ended.digests, ended
    with Drill(tmp_path, script, workers=2, flags=(*flags, "--resume"), within_s=60) as drill:
        resumed = drill.finish()
    assert resumed.code == 0, resumed
    assert resumed.digests == calm.outcome.digests != {}, resumed


COLLECTIVES = """
def reduced():
    value = torch.ones(())
    dist.all_reduce(value)
    return value.item()

for step in run.steps(named(), until=6):
    with step:
        update(step) if step.number == 1 else (reduced(), update(step))
    if step.number == 3:
        for attempt in run.phase("look"):
            with attempt:
                reduced()
    if step.number in BETWEEN:
        reduced()  # here
reduced()
end()
"""


@pytest.mark.slow
@pytest.mark.parametrize("between", [(), (2, 4)])
def test_a_collective_between_two_steps_is_named_with_its_line(
    tmp_path: Path, between: tuple[int, ...]
) -> None:
    """It is named once. Collectives in a step, in a phase and after the loop cause no warning."""
    ran = go(tmp_path, COLLECTIVES.replace("BETWEEN", repr(between)))
    assert ran.code == 0, ran.outcome
    said = [line for line in ran.err.splitlines() if "is called between two steps" in line]
    lines = {line for line in said if f"{ran.line('dist.all_reduce')} in reduced" in line}
    assert len(said) == bool(between), ran.outcome
    assert len(lines) == bool(between), ran.outcome


MODES = """
judge = run.replicate(Net())
opt_judge = torch.optim.Adam(judge.parameters(), lr=0.1)
for step in run.steps(named(judge=judge, opt_judge=opt_judge), until=8):
    with step:
        x, y = step.batch
        opt_judge.zero_grad()
        F.cross_entropy(judge(x), y).backward()
        opt_judge.step()
        judge.requires_grad_(False)
        opt.zero_grad()
        (F.cross_entropy(model(x), y) - judge.module(x).square().mean()).backward()
        opt.step()
        judge.requires_grad_(True)
print("digest", run.rank, outlast.digest(model) + outlast.digest(judge), flush=True)
"""


@pytest.mark.slow
def test_a_network_frozen_in_an_interrupted_step_is_unfrozen(tmp_path: Path) -> None:
    """Rank 0 raises at its first optimizer, while rank 1 waits in the backward of the second one
    with the first network frozen. Both repeat the step with the same collectives.
    """
    ran = []
    for name, marks in (("calm", ()), ("hit", RAISES)):
        (tmp_path / name).mkdir()
        ran.append(go(tmp_path / name, MODES, marks=marks))
    calm, hit = ran
    assert calm.code == hit.code == 0, hit.outcome
    assert hit.outcome.digests == calm.outcome.digests != {}, hit.outcome
    assert [one["rung"] for one in hit.outcome.interruptions] == ["repeat"], hit.outcome
