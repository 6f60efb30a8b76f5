"""DDP sends buffers from rank 0 in some forwards and not in others, depending on its last forward.

After a fault all ranks must do the same: a survivor whose last forward was interrupted, and a
process that replaces another. Otherwise one rank waits for a broadcast that another does not make.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills._scripts import HEAD, go

NORMED = HEAD.replace(
    "def forward(self, x): return self.b(torch.relu(self.a(x)))",
    "    self.norm = torch.nn.BatchNorm1d(16)\n"
    "    def forward(self, x): return self.b(self.norm(torch.relu(self.a(x))))",
)
BODY = """
def dies(step, place):
    once, hit = os.environ.get("ONCE"), (step.number, place, run.rank) == (5, PLACE, RANK)
    if once and hit and not os.path.exists(once):
        open(once, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

def evaluate(step):
    model.eval()
    with torch.no_grad():
        for number in range(3):
            model(torch.ones(4, 8))
            dies(step, ("evaluation", number))
    model.train()

for step in run.steps(named(), until=8, accumulate=3):
    with step:
        opt.zero_grad()
        for number, (x, y) in enumerate(step.batches):
            model.require_backward_grad_sync = number == 2
            F.cross_entropy(model(x), y).backward()
            dies(step, ("batch", number))
        opt.step()
    if step.number % 5 == 0:
        for attempt in run.phase("evaluate"):
            with attempt:
                evaluate(step)
print("digest", run.rank, outlast.digest(model, all=True), flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", [("evaluation", 0), ("evaluation", 1), ("batch", 0)])
def test_ranks_agree_after_a_fault_on_which_forward_sends_buffers(
    tmp_path: Path, place: tuple[str, int], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a rank is killed after the last forward that sent them. The buffers of all ranks are
    those of an undisturbed run.
    """
    body = f"PLACE, RANK = {place!r}, {rank}\n{BODY}"
    (tmp_path / "calm").mkdir()
    (tmp_path / "hit").mkdir()
    calm = go(tmp_path / "calm", body, head=NORMED)
    monkeypatch.setenv("ONCE", str(tmp_path / "once"))
    hit = go(tmp_path / "hit", body, head=NORMED)
    assert (tmp_path / "once").exists()
    assert calm.code == hit.code == 0, hit.outcome
    assert hit.outcome.digests == calm.outcome.digests != {}, hit.outcome
    assert [one["steps_lost"] for one in hit.outcome.interruptions] == [0], hit.outcome
