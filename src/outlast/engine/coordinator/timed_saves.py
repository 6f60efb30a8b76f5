"""`--keep disk:auto`: decide how often a checkpoint pays, and ask for one when it is due.

    training begins ──ten seconds──> asked ──manifest written──> decided ──interval──> asked

Each checkpoint that is written measures what the next one will cost. Each recovery that had to go
back to a checkpoint tells how often one is needed. So the interval is decided again after each
checkpoint. This module is pure.
"""

from __future__ import annotations

from outlast.engine.coordinator.orders import event
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import Output, Tell
from outlast.engine.save_interval import ExpectedFailures, decide_interval
from outlast.model import limits
from outlast.model.messages import Checkpointed, SaveNow

DECIDED = "checkpoint_interval"  # the kind of the event in the ledger


class TimedSaves:
    """Ask for a checkpoint whenever one is due. The coordinator makes one if asked for `auto`.

    The coordinator calls `look` with each report of progress, `on_shard` with each shard that a
    rank has written, and `on_saved` once a checkpoint is complete or has failed. All return
    outputs. A checkpoint that someone else asked for counts as well.

    It does not promise that a checkpoint comes at the very second: the step in flight is committed
    first. A coordinator that takes over counts failures and waits from its own beginning.
    """

    def __init__(self, run: RunParts, expected: ExpectedFailures) -> None:
        self._run = run
        self._expected = expected
        self._began_s: float | None = None  # when training was seen first
        self._due_s = 0.0
        self._begun: Restart | None = None  # what all ranks began from last
        self._needed_count = 0  # how often that was a checkpoint, or the beginning
        self._asked: tuple[float, int] | None = None  # when, and in which generation
        self._write_s = 0.0  # how long the newest one took that was asked for here
        self._pauses: dict[int, float] = {}  # step -> the longest pause of a rank for it
        self._recorded_s = 0.0  # the interval that the ledger has

    def look(self, now_s: float) -> list[Output]:
        """Ask one rank for a checkpoint if one is due. Its vote informs the others."""
        run = self._run
        if not run.lifecycle.is_in(Stage.TRAINING) or not run.progress.generation_live:
            return []
        self._note_restart()
        if self._began_s is None:
            self._began_s, self._due_s = now_s, now_s + limits.SAVE_FIRST_S
        generation = run.lifecycle.generation
        if self._asked is not None and self._asked[1] != generation:
            self._asked = None  # a regroup has cut this save short
        rank = run.spokesman()
        if self._asked is not None or now_s < self._due_s or rank is None:
            return []
        self._asked = (now_s, generation)
        return run.tell([(rank, SaveNow("--keep disk:auto: a checkpoint is due"))])

    def _note_restart(self) -> None:
        """Note whether all ranks have begun again since, from a checkpoint or from the beginning.

        Each restart of all ranks makes a new `Restart`. A recovery in place makes none.
        """
        start = self._run.sources.begin_from
        if start is self._begun:
            return
        if self._begun is not None and start.private in ("checkpoint", "none"):
            self._needed_count += 1
        self._begun = start

    def on_shard(self, message: Checkpointed) -> None:
        """Note how long a rank has paused for its shard."""
        if message.in_vault:
            return
        longest = max(self._pauses.get(message.step, 0.0), message.paused_s)
        self._pauses = {step: s for step, s in self._pauses.items() if step >= message.step}
        self._pauses[message.step] = longest

    def on_saved(self, now_s: float, *, step: int, error: str) -> list[Output]:
        """Decide when the next checkpoint is due. One that failed is tried again soon."""
        asked, self._asked = self._asked, None
        if self._began_s is None:
            return []  # a checkpoint from before the training, such as the one of a resumed run
        if error:
            self._due_s = now_s + limits.SAVE_AGAIN_S
            return []
        if asked is not None:  # of one that others have asked for this is not known
            self._write_s = now_s - asked[0]
        decided = decide_interval(
            pause_s=self._pauses.pop(step, 0.0),
            write_s=self._write_s,
            needed_count=self._needed_count,
            watched_s=now_s - self._began_s,
            expected=self._expected,
        )
        self._due_s = now_s + decided.interval_s
        before, after = self._recorded_s, decided.interval_s
        if before and abs(after - before) <= limits.SAVE_CHANGE_SHARE * before:
            return []
        self._recorded_s = after
        data = {"interval_s": after, "why": decided.reason}
        out: list[Output] = [event(now_s, DECIDED, data)]
        return out if before else [*out, Tell(f"--keep disk:auto: {decided.reason}")]
