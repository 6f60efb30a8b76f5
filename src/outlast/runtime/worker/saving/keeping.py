"""When the ranks make additional copies of their state: in the vault, and on the disk.

    rank 0, before its vote     `wanted`: a copy is due
    all ranks, after the vote   `agreed`: they copy the state after this step, or none does
    after the step              `is_due`, and then `copied`

Under replicated state each live rank holds all of it. So a copy in the vault is needed only if all
ranks are lost at once, or if there is only one. Rank 0 decides by its own clock, and the vote tells
the others, so that all ranks copy the state of the same step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from outlast.model.keep import NEVER, Every
from outlast.model.limits import KEEP_LEAST_S, KEEP_SHARE
from outlast.runtime import clock

VAULT, DISK, NO_ROOM = 1, 2, 4  # bits of `Ballot.keep`; NO_ROOM: this rank cannot copy to the vault


class Keeping:
    """Decide when copies are made.

    vault, disk   how often a copy is made there (`--keep`)
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.vault = _every(options.get("keep_vault"))
        self.disk = _every(options.get("keep_disk"))
        self._lacks_room = False
        self._agreed: tuple[int, int] = (0, 0)  # a step, and the bits of the copies made after it
        now_s = clock.now_s()
        self._copied_s = {VAULT: now_s, DISK: now_s}  # when the newest copy was made
        # seconds for each of the newest copies in the vault; the smallest counts, because the first
        # one maps memory, and others may have waited for a processor
        self._costs_s: deque[float] = deque(maxlen=3)

    @property
    def copies_to_vault(self) -> bool:
        """Return whether this rank makes copies in the vault."""
        return not (self.vault.is_never or self._lacks_room)

    def give_up_vault(self) -> None:
        """Make no copies in the vault any more, because there is no room for them."""
        self._lacks_room = True

    def wanted(self, step: int, *, rank: int) -> int:
        """Return the bits that this rank gives to the vote on `step`."""
        bits = NO_ROOM if self._lacks_room else 0
        if rank:
            return bits
        now_s = clock.now_s()
        least_s = max(KEEP_LEAST_S, min(self._costs_s, default=0.0) / KEEP_SHARE)
        if _is_due(self.vault, step, now_s - self._copied_s[VAULT], least_s):
            bits |= VAULT
        # With `disk:auto` the coordinator asks for each checkpoint.
        if not self.disk.auto and _is_due(self.disk, step, now_s - self._copied_s[DISK], least_s):
            bits |= DISK
        return bits

    def agreed(self, step: int, bits: int) -> None:
        """Note the bits of all ranks in the vote on `step`, combined by "or"."""
        self._agreed = (step, bits & ~VAULT if bits & NO_ROOM else bits)

    def is_due(self, where: int, step: int) -> bool:
        """Return whether all ranks copy the state after `step` to `where` now."""
        agreed_step, bits = self._agreed
        return agreed_step == step and bool(bits & where)

    def copied(self, where: int, *, cost_s: float) -> None:
        """Note that a copy was made, and how long this rank paused for it."""
        self._copied_s[where] = clock.now_s()
        if where == VAULT:
            self._costs_s.append(cost_s)


def _is_due(every: Every, step: int, since_s: float, least_s: float) -> bool:
    if every.auto:
        return since_s >= least_s
    if every.seconds:
        return since_s >= every.seconds
    return every.steps > 0 and step % every.steps == 0


def _every(option: object) -> Every:
    """Return what the launcher has put into the options: [steps, seconds, auto], or nothing."""
    if option is None:
        return NEVER
    assert isinstance(option, (list, tuple))
    return Every(*option)
