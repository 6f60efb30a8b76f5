"""`StoreHosts`: the processes that host the TCPStore, one in use and one that stands ready.

A store host is forked from the zygote, and both may be lost at the same time. So a second host is
started in advance. It listens at a port of its own, and can take over at once.
`engine.helpers.decide_store` decides whether it does. This module starts, pings and kills the
processes.

    order ──a host stands ready──> in use
      └─none does──> starting ──it says its port──> in use ──lost──> the coordinator is told
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from outlast.engine.helpers import StandbyStore, decide_store
from outlast.engine.starting import LastReport, retry_wait_s
from outlast.model import limits
from outlast.model.messages import Ping, Pong, StoreLost, StoreUp
from outlast.runtime import clock
from outlast.runtime.agent.host import ProcessHost
from outlast.runtime.agent.oom import FOR_MEMORY
from outlast.runtime.agent.processes import Exited, ending_words
from outlast.runtime.agent.specs import Specs
from outlast.runtime.linux import is_stopped
from outlast.runtime.loop import Loop

FIRST_STORE_NUMBER = 1_000_000_000  # store hosts are numbered apart from workers


@dataclass(slots=True)
class _Host:
    """One process that hosts a store, or is about to."""

    number: int
    pid: int = 0
    up: StoreUp | None = None  # where it listens


@dataclass(slots=True)
class _Failures:
    """The hosts that have ended before they listened.

    count      how many hosts in a row have ended in this way
    any_up     some host of this run has listened, so starting one is possible here
    reported   the failure of which people were told last
    """

    count: int = 0
    any_up: bool = False
    reported: LastReport = field(default_factory=LastReport)


@dataclass(frozen=True)
class StoreNews:
    """The receivers of what the store hosts report.

    said       is called with the StoreUp and StoreLost of the store in use
    tell       is called with lines for people
    hopeless   is called after some tries if no host of this run has ever listened, with the reason;
               the tries go on
    """

    said: Callable[[StoreUp | StoreLost], object]
    tell: Callable[[str], object]
    hopeless: Callable[[str], object]


class StoreHosts:
    """Host the store. `order` puts a store into use, and `news.said` reports where it listens.

    The driver calls the methods that begin with `on_` with events of processes whose numbers are
    FIRST_STORE_NUMBER or higher.
    """

    def __init__(self, loop: Loop, host: ProcessHost, specs: Specs, news: StoreNews) -> None:
        self._loop = loop
        self._host = host
        self._specs = specs
        self._news = news
        self._next = FIRST_STORE_NUMBER
        self._used: _Host | None = None  # the host in use, or the one that is starting for it
        self._standby: _Host | None = None
        self._renewing = False  # the host in use is being killed, and its successor starts then
        self._failures = _Failures()
        self._ended = False

    # --- what is ordered -------------------------------------------------------------------------

    def order(self, *, plain: bool) -> None:
        """Put another store into use. `plain`: the script has made no outlast call so far."""
        self._specs.store_is_gone()
        standby = self._standby
        verdict = decide_store(
            StandbyStore(
                is_up=standby is not None and standby.up is not None,
                is_stopped=standby is not None and is_stopped(standby.pid),
                fixed_port=self._specs.port_is_fixed,
                plain=plain,
            )
        )
        if verdict.take_standby and standby is not None and standby.up is not None:
            self._give_up_used()
            self._used, self._standby, self._renewing = standby, None, False
            self._comes_up(standby.up)
        elif self._used is not None and self._used.number in self._host.pids():
            self._renewing = True  # it may hold the port, so the next one starts after its exit
            self._host.kill(self._used.number)
        else:
            self._used = self._start(standby=False)

    def end(self) -> None:
        """Replace no host any more: the run is over."""
        self._ended = True

    def _start(self, *, standby: bool) -> _Host:
        self._next += 1
        self._host.start(self._specs.store(self._next, standby=standby))
        return _Host(self._next)

    def _give_up_used(self) -> None:
        """Kill the host in use: another one takes its place."""
        if self._used is not None:
            self._host.keeper.forget(self._used.pid)
            self._host.kill(self._used.number)

    def _comes_up(self, message: StoreUp) -> None:
        """Report the store that is in use now, and start another one later, to stand ready."""
        self._specs.store_is_up(message)
        self._news.said(message)
        self._later(limits.SPARE_REFILL_DELAY_S, self._stand_by)

    def _stand_by(self) -> None:
        """Start the host that stands ready, unless there is one."""
        if self._standby is None and not self._ended:
            self._standby = self._start(standby=True)

    def _later(self, wait_s: float, call: Callable[[], None]) -> None:
        self._loop.call_at(clock.now_s() + wait_s, call)

    # --- what the process host reports -----------------------------------------------------------

    def on_started(self, number: int, pid: int) -> None:
        """Note that the process runs. It has to say its port by STORE_DEADLINE_S."""
        host = self._of(number)
        if host is None:
            self._host.kill(number)
            return
        host.pid = pid
        name = "the host of the store" if host is self._used else "the store that stands ready"
        self._host.keeper.watch(
            name,
            pid,
            is_idle=lambda: host.up is not None,
            ask=lambda: self._host.send(number, Ping(number)),
            give_up=lambda reason: self._give_up(host, reason),
        )
        self._later(limits.STORE_DEADLINE_S, lambda: self._look_whether_up(host))

    def _look_whether_up(self, host: _Host) -> None:
        if host.up is None and self._of(host.number) is host:
            self._give_up(host, f"it did not listen within {limits.STORE_DEADLINE_S:g} s")

    def _give_up(self, host: _Host, reason: str) -> None:
        """Kill a host that cannot be relied on. When it has ended, another one is started."""
        if host is self._used:
            self._news.tell(f"warning: {reason}: the store's host is replaced")
        self._host.keeper.forget(host.pid)
        self._host.kill(host.number)

    def on_message(self, number: int, message: object) -> None:
        """Handle a message of a host: it listens, or answers a ping."""
        host = self._of(number)
        if host is None:
            return  # it was given up
        if isinstance(message, Pong):
            self._host.keeper.answered(host.pid)
        elif isinstance(message, StoreUp):
            host.up, self._failures = message, _Failures(any_up=True)
            if host is self._used and not self._renewing:
                self._comes_up(message)

    def on_failed(self, number: int, error: str) -> None:
        """Handle a host that could not be started: try again, with growing waits."""
        self._gone(number, f"it did not start: {error}")

    def on_exit(self, exited: Exited) -> None:
        """Handle the end of a host."""
        host = self._of(exited.worker)
        # Its last output explains the end only if it had not reached listen.
        words = self._specs.last_words(exited.worker) if host and host.up is None else ""
        how = f"it {ending_words(exited.exit_code, exited.signal)}"
        if exited.oom.is_possible:
            how += f", {FOR_MEMORY}"
        self._gone(exited.worker, f"{how}: {words}" if words else how)

    def _gone(self, number: int, how: str) -> None:
        """Replace a host that has ended, or report that the store in use is lost."""
        host = self._of(number)
        if host is None or self._ended:
            return
        self._host.keeper.forget(host.pid)
        self._failures.count += host.up is None
        wait_s = retry_wait_s(self._failures.count) if host.up is None else 0.0
        if host is self._standby:
            self._standby = None
            self._later(max(wait_s, limits.SPARE_REFILL_DELAY_S), self._stand_by)
            return
        self._used = None
        if self._renewing:
            self._renewing = False
            self._used = self._start(standby=False)
            return
        if host.up is None:
            self._report(how, wait_s)
        self._specs.store_is_gone()
        lost = StoreLost(f"the store's host: {how}")
        self._later(wait_s, lambda: self._say_lost(lost))

    def _report(self, how: str, wait_s: float) -> None:
        """Say that a host could not be started, and whether there is hope that one will be."""
        seen = self._failures
        times = f"{seen.count} times" if seen.count > 1 else "once"
        what = f"the store's host could not be started, {times} so far: {how}"
        if seen.reported.note_if_due(how, now_s=clock.now_s()):
            self._news.tell(f"warning: {what}; it is tried again in {wait_s:g} s")
        if not seen.any_up and seen.count >= limits.FIRST_STARTS_COUNT:
            self._news.hopeless(f"{what}; none of this run has listened")

    def _say_lost(self, lost: StoreLost) -> None:
        if self._used is None and not self._ended:
            self._news.said(lost)

    def _of(self, number: int) -> _Host | None:
        """Return the host of this number.

        Return None if it was given up, or if another host took its place.
        """
        known = (one for one in (self._used, self._standby) if one is not None)
        return next((one for one in known if one.number == number), None)
