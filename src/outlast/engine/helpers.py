"""Decide whether the helper processes of a run still work, and what replaces them.

Two kinds of process help a run without holding a rank: the zygote, from which workers are forked,
and the hosts of the stores that process groups are built with. The beacon of a rank shows when it
hangs, and helpers have none. So each process is checked several times a second, and pinged once a
second while it has nothing else to do:

    stopped    the kernel holds it (SIGSTOP) for HELPER_STOPPED_S                 -> replace it
    silent     it has not answered for HELPER_ANSWER_S in which it had a processor -> replace it

If a check is late, both times move by its lateness. So a launcher that was held up itself does not
take that for silence of its helpers.

This module is pure: times and readings are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.engine.lateness import late_by_s
from outlast.model import limits


@dataclass(frozen=True, slots=True)
class HelperReading:
    """The readings of one helper at one look.

    stopped     the kernel holds the process stopped
    starved_s   seconds since it was asked in which it was ready to run and had no processor
    """

    stopped: bool
    starved_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HelperVerdict:
    """The decision about a helper. `reason` is for people, and empty while all is well."""

    replace: bool
    ask: bool
    reason: str


class HelperWatch:
    """Remember one helper from check to check.

    Call `on_look` every HELPER_LOOK_S, and `answered` whenever the helper answers:

        watch = HelperWatch("the zygote 71", now_s=now_s)
        verdict = watch.on_look(HelperReading(stopped=False), now_s=now_s, may_ask=True)
        if verdict.replace: ...  # kill it; its end is then seen like any other
        if verdict.ask: ...      # send it a question
    """

    def __init__(self, name: str, *, now_s: float) -> None:
        self.name = name
        self._looked_s = now_s
        self._stopped_s: float | None = None  # it was first seen stopped
        self._asked_s: float | None = None  # a question is out since then
        self._heard_s = now_s

    @property
    def is_asked(self) -> bool:
        """Return True while an answer of the helper is awaited."""
        return self._asked_s is not None

    def answered(self, *, now_s: float) -> None:
        """Note that the helper has answered."""
        self._asked_s, self._heard_s = None, now_s

    def on_look(self, reading: HelperReading, *, now_s: float, may_ask: bool) -> HelperVerdict:
        """Judge the helper. `may_ask`: it has nothing to do that could hold up its answer."""
        self._allow_for_lateness(now_s)
        if not reading.stopped:
            self._stopped_s = None
        elif self._stopped_s is None:
            self._stopped_s = now_s
        if self._stopped_s is not None and now_s - self._stopped_s >= limits.HELPER_STOPPED_S:
            return HelperVerdict(True, False, f"{self.name} is stopped (SIGSTOP, or a debugger)")
        if self._asked_s is not None:
            waited_s = now_s - self._asked_s - min(reading.starved_s, limits.STARVED_MAX_S)
            if waited_s >= limits.HELPER_ANSWER_S:
                why = f"{self.name} has not answered for {limits.HELPER_ANSWER_S:g} s"
                return HelperVerdict(True, False, why)
        elif may_ask and now_s - self._heard_s >= limits.HELPER_ASK_S:
            self._asked_s = now_s
            return HelperVerdict(False, True, "")
        return HelperVerdict(False, False, "")

    def _allow_for_lateness(self, now_s: float) -> None:
        """Move what is measured by as much as this look is late."""
        late_s = late_by_s(looked_s=self._looked_s, now_s=now_s, period_s=limits.HELPER_LOOK_S)
        self._looked_s = now_s
        if self._stopped_s is not None:
            self._stopped_s += late_s
        if self._asked_s is not None:
            self._asked_s += late_s


@dataclass(frozen=True, slots=True)
class StandbyStore:
    """The store host that stands ready beside the one in use.

    is_up         it listens
    is_stopped    the kernel holds it stopped
    fixed_port    the user has named the port of the store, and this one listens at another
    plain         the script has made no outlast call: it learns the port from its environment only
    """

    is_up: bool
    is_stopped: bool
    fixed_port: bool
    plain: bool


@dataclass(frozen=True, slots=True)
class StoreVerdict:
    """The decision whether the standby store is put to use, and the reason."""

    take_standby: bool
    reason: str


def decide_store(standby: StandbyStore) -> StoreVerdict:
    """Decide between the store that stands ready and one that is started now."""
    if not standby.is_up:
        return StoreVerdict(False, "no store stands ready: another one is started")
    if standby.is_stopped:
        return StoreVerdict(False, "the store that stood ready is stopped: another one is started")
    if standby.fixed_port and standby.plain:
        why = "the script meets at the port that was asked for: a store is started there"
        return StoreVerdict(False, why)
    return StoreVerdict(True, "the store that stood ready takes over")
