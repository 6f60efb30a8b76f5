"""Continue a run with `outlast run --resume`: may it go on, and from which state?

1. `check` is called before anything is written. It refuses a run that cannot go on, and the folder
   stays as it was.
2. `find_beginning` is called when the vault is open. It returns the newest good state.
3. `Beginning.event` goes into the ledger. From it `outlast report` reads how many committed steps
   were lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from outlast.engine.coordinator.restore_sources import Restart
from outlast.errors import UsageError
from outlast.model.records import RESUMED, Event, Records
from outlast.model.texts import count
from outlast.runtime import clock
from outlast.runtime.coordinator.saves import newest_start, why_foreign
from outlast.runtime.tiers import dividing, local
from outlast.runtime.tiers.vault import Vault

EARLIER = "earlier-"  # prefix of the folders of checkpoints that `--from-scratch` put aside


@dataclass(frozen=True, slots=True)
class Beginning:
    """The state that a session begins from.

    start        the step of the state, and where the state is
    checkpoint   the folder and the step of the newest good checkpoint, or ("", 0)
    refused      each checkpoint that cannot be used, with the reason, a sentence each
    committed    the newest step of the session before
    highest      the newest step of all sessions; steps up to it count as repeated
    own          True if the script makes no outlast call, so that its own checkpoint decides
    ranks        how many ranks this session has, and how many wrote the checkpoint
    """

    start: Restart = field(default_factory=Restart)
    checkpoint: tuple[str, int] = ("", 0)
    refused: tuple[str, ...] = ()
    committed: int = 0
    highest: int = 0
    own: bool = False
    ranks: tuple[int, int] = (0, 0)

    @property
    def steps_lost(self) -> int:
        """Return how many committed steps have to be done again."""
        return max(0, self.committed - self.start.step)

    @property
    def source(self) -> str:
        """Say where the state comes from, for people."""
        if self.start.checkpoint:
            return self.start.checkpoint
        return "what lies in shared memory" if self.start.step else "nothing"

    def event(self) -> Event:
        """Return the ledger's record of this beginning."""
        data: dict[str, object] = {
            "step": self.start.step,
            "from": self.source,
            "steps_lost": self.steps_lost,
        }
        if self.own:
            data["own"] = True
        return Event(clock.now_s(), clock.wall_s(), RESUMED, data)

    def describe(self, folder: Path) -> str:
        """Return the line for the console."""
        if self.own:
            return (
                f"resuming {folder}: its script makes no outlast call, so its own checkpoint"
                f" decides where it goes on; {count(self.committed, 'step')} had been done"
            )
        lost = (
            f"; {count(self.steps_lost, 'committed step')} after it will be trained again"
            if self.steps_lost
            else ""
        )
        if not self.start.step:
            keep = "; with --checkpoint-every STEPS they are kept" if lost else ""
            return f"resuming {folder} at step 0, without a saved state{lost}{keep}"
        return (
            f"resuming {folder} at step {self.start.step} from {self.source}{lost}{self._divided}"
        )

    @property
    def _divided(self) -> str:
        """Say that the state was saved by another number of ranks, or ""."""
        now, before = self.ranks
        if now == before:
            return ""
        new = "; new ranks begin with buffers and objects of rank 0" if now > before else ""
        return (
            f"; the state of {count(before, 'rank')} is divided among {now}: weights and optimizer"
            f" are bit for bit the same, and digests from here on are not promised{new}"
        )


def check(records: Records, *, root: Path, workers: int, from_scratch: bool) -> None:
    """Refuse a run that cannot be resumed. Writes nothing. Raises UsageError.

    root      the folder of the checkpoints
    workers   the number of ranks on all nodes
    """
    ended_well = records.sessions[-1].session.state == "ended"
    if from_scratch:
        return
    is_found = not _is_own(records) and _found_to_divide(
        records, root=root, workers=workers, ended_well=ended_well
    )
    if is_found or not ended_well or local.newest_good(root).checkpoint is not None:
        return
    if records.newest_step > 0 and not records.calls_outlast:
        raise UsageError(
            f"this run has ended well at step {records.newest_step}, and its script makes no"
            " outlast call: outlast has nothing to go on from",
            hint=(
                "start the script again with --resume --from-scratch, or start a new run: what it"
                " loads by itself decides where it begins"
            ),
        )
    raise UsageError(
        f"this run has ended well at step {records.newest_step}, and has no checkpoint in {root} to"
        " go on from",
        hint=(
            "train it again with --resume --from-scratch, or start a new run; --checkpoint-every"
            " keeps what a larger target can go on from"
        ),
    )


def _found_to_divide(records: Records, *, root: Path, workers: int, ended_well: bool) -> bool:
    """Return whether a good checkpoint was found that another number of ranks can go on from.

    If all checkpoints have the number of ranks that is asked for, the function does not look for
    one. Raises UsageError if the newest checkpoint cannot be divided among `workers`. The state in
    shared memory cannot be divided: it needs as many ranks as have saved it.
    """
    size = records.world_size
    there = local.checkpoints(root)
    if workers == size and all(one.manifest.world_size == size for one in there):
        return False
    run = records.meta.run
    found = local.newest_good(root, foreign=lambda one: why_foreign(one, run)).checkpoint
    if found is None:
        if workers == size or ended_well or not records.newest_step:
            return False  # nothing to divide: no state was lost, or `check` says what is missing
        raise UsageError(
            f"this run has had {count(size, 'rank')}, this command asks for {workers}, and there is"
            f" no checkpoint in {root} to divide among them",
            hint=(
                f"resume with {count(size, 'rank')}; --checkpoint-every keeps what another number"
                " can go on from"
            ),
        )
    saved = found.manifest.world_size
    if saved == workers or not (reason := dividing.why_not(found)):
        return True
    raise UsageError(
        f"{found.folder} was written by {count(saved, 'rank')}, and cannot be divided among"
        f" {workers}: {reason}",
        hint=f"resume with {count(saved, 'rank')}, or start a new run",
    )


def _is_own(records: Records) -> bool:
    """Return whether the script makes no outlast call, so that outlast has no state of it."""
    return records.newest_step > 0 and not records.calls_outlast


def _left_no_image(records: Records, vault: Vault | None) -> bool:
    """Return whether a launcher that was killed left no image, and noted no outlast call.

    The workers of a script without outlast calls seal no image. The ledger may lack the last
    second, so it may not have any step of these workers.
    """
    return not records.calls_outlast and (vault is None or not vault.ranks())


def find_beginning(
    root: Path, records: Records, *, vault: Vault | None, seen_step: int, from_scratch: bool
) -> Beginning:
    """Return what this session begins from.

    vault       the vault of a launcher that was killed; None: there is none
    seen_step   the newest step that the workers of that launcher reported. It is needed because the
                ledger may lack the last second
    """
    committed = max(records.newest_step, seen_step)
    highest = max(records.highest_step, seen_step)
    own = _is_own(records) or (seen_step > 0 and _left_no_image(records, vault))
    if from_scratch:
        aside = tuple(_aside(one.folder) for one in local.checkpoints(root))
        return Beginning(refused=aside, committed=committed, highest=highest, own=own)
    size = records.world_size
    start, checkpoint, refused = newest_start(root, vault, size, records.meta.run)
    ranks = (size, _ranks_of(Path(start.checkpoint)) if start.checkpoint else size)
    return Beginning(start, checkpoint, tuple(refused), committed, highest, own, ranks)


def _ranks_of(folder: Path) -> int:
    found = local.read_manifest(folder)
    assert isinstance(found, local.CheckpointFolder), "it was read a moment ago"
    return found.manifest.world_size


def passes_over_vault(records: Records, vault: Vault) -> str:
    """Return why a session cannot begin from what a killed launcher left in shared memory, or "".

    The newest session of `records` is the one that begins.
    """
    size, before = records.sizes[-1], records.sizes[-2:][0]
    # a launcher that was killed before it began may have left the vault of the one before it
    before = max([before, *(rank + 1 for rank in vault.ranks() if rank >= size)])
    if size == before:
        return ""
    return (
        f"the state in shared memory is of {count(before, 'rank')}, and is not used: only a"
        " checkpoint can be divided among another number"
    )


def _aside(folder: Path) -> str:
    """Set a checkpoint of the training before aside, so that the new training does not find it."""
    kept = local.set_aside(folder, EARLIER).name
    return f"the checkpoint {folder} is not used (--from-scratch): it is kept as {kept}"
