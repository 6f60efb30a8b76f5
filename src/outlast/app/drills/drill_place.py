"""Where the runs of a drill take place: on this host, or on several hosts of this machine."""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from outlast.app.command_line import Parser, whole
from outlast.errors import UsageError
from outlast.model.drills.drill_faults import DISK_KINDS, HOST_KINDS, MEMORY_KINDS
from outlast.model.drills.drill_plan import DrillPlan
from outlast.model.texts import count
from outlast.runtime.drill import drill_disk, drill_memory
from outlast.runtime.drill.drill_host_launchers import HostLayout
from outlast.runtime.drill.drill_host_strikes import launch
from outlast.runtime.drill.drill_hosts import may_be_made, may_be_slowed
from outlast.runtime.drill.drill_launch import Launched, OneLauncher
from outlast.runtime.folders.leader_file import folders
from outlast.runtime.ledger.pointer import LEDGER
from outlast.runtime.ledger.view import RunView, look
from outlast.sim.drill_calendar import Calendar, draw, without, without_hosts

RANKS = 4  # on one host, and on all hosts together
HOSTS_LEAST = 3  # with fewer, no node can take over the run from the one that leads
HOSTS_MOST = 200  # their addresses are in one network
HOST_FAULT_S = (
    10.0  # a host is struck only once the one before is back, which takes about this long
)
TAIL_S = 15.0  # so the last of these strikes come later than the plan says


@dataclass(frozen=True, slots=True)
class DrillPlace:
    """This says where the runs take place.

    layout    the hosts; None: this one
    ranks     --nproc-per-node of the run
    folder    in which the folders of both runs will be, or one above it
    asked     the hosts that were asked for; None: none were
    missing   why those cannot be had; ""
    """

    layout: HostLayout | None
    ranks: int
    asked: HostLayout | None = None
    missing: str = ""
    folder: Path = Path()

    @property
    def launch(self) -> Callable[..., Launched]:
        """Return what starts a run here."""
        return OneLauncher if self.layout is None else functools.partial(launch, layout=self.layout)

    def left_out(self, calendar: Calendar) -> Calendar:
        """Leave faults out of a calendar that cannot be had here."""
        return without(calendar, self.reasons({one.kind.name for one in calendar.faults}))

    def reasons(self, names: Collection[str]) -> dict[str, str]:
        """Return why kinds of faults of these names cannot be had here, by their names."""
        reasons = dict.fromkeys(HOST_KINDS, self.missing)
        for kinds, _, may_be_had in self._permissions():
            if wanted := [name for name in kinds if name in names]:
                reasons |= dict.fromkeys(wanted, may_be_had())
        if self.layout is not None:
            reasons |= dict.fromkeys(DISK_KINDS, "hosts of one machine share its disk")
            reasons |= {"slow_link": may_be_slowed()} if "slow_link" in names else {}
        return {name: why for name, why in reasons.items() if why}

    def missing_permissions(self, calendar: Calendar) -> Iterator[str]:
        """Yield a sentence for each permission that a calendar needs and this process lacks."""
        for kinds, what, may_be_had in self._permissions():
            struck = [one.kind.name for one in calendar.faults if one.kind.name in kinds]
            if struck and (why := may_be_had()):
                named = ", ".join(f"{struck.count(name)} x {name}" for name in sorted({*struck}))
                faults = count(len(struck), "fault")
                yield f"{why}; the plan's {faults} of {what} cannot be had ({named})"

    def _permissions(self) -> Iterator[tuple[Collection[str], str, Callable[[], str]]]:
        """Yield kinds that need a permission, what they strike, and why they cannot be had here."""
        yield MEMORY_KINDS, "memory", drill_memory.may_be_made
        if self.layout is None:
            yield ("full_disk",), "disks", drill_disk.may_be_filled
            yield ("slow_disk",), "disks", lambda: drill_disk.may_be_slowed(self.folder)

    @property
    def tail_s(self) -> float:
        """Return how long the script has to train beyond the plan, besides what is usual."""
        return 0.0 if self.layout is None else TAIL_S

    def has_room(self, calendar: Calendar, plan: DrillPlan) -> bool:
        """Return whether all hosts can be back before the next one is struck."""
        timed = sum(one.kind.of_host and one.at_s is not None for one in calendar.faults)
        return timed <= 2 or plan.length_s >= timed * HOST_FAULT_S

    def refuse(self, calendar: Calendar, plan: DrillPlan) -> None:
        """Refuse faults of hosts that come too fast. Raises UsageError."""
        if self.has_room(calendar, plan):
            return
        timed = sum(one.kind.of_host and one.at_s is not None for one in calendar.faults)
        scale = plan.time_scale * plan.length_s / (timed * HOST_FAULT_S)
        raise UsageError(
            f"{timed} faults of hosts in {plan.length_s:.1f} s: each waits until all hosts are"
            f" back after the one before, and needs {HOST_FAULT_S:g} s",
            hint=f"--time-scale {math.floor(scale * 100) / 100:g} or less",
        )

    def refuse_numbers(self, calendar: Calendar) -> None:
        """Refuse faults of hosts that there are not. Raises UsageError."""
        for one in calendar.faults:
            if one.node is not None and self.layout and one.node >= self.layout.hosts:
                raise UsageError(
                    f"fault {one.plan_id} strikes host {one.node}, and there are"
                    f" {self.layout.hosts}",
                    hint=f"name a host below {self.layout.hosts}, or raise --hosts",
                )


def look_at_end(run: Path) -> RunView:
    """Look at a run that is over. Its ledger may be that of a node which led at the end.

    Then the launcher that led before still had the run's folder when the other one took it over.
    """
    views = [look(str(folder)) for folder in folders(run) if (folder / LEDGER).exists()]
    return max(views or [look(str(run))], key=lambda view: view.records.sessions[-1].session.seen_s)


def add_options(parser: Parser) -> None:
    """Add the options that say where the runs take place."""
    parser.add_argument(
        "--hosts",
        type=whole,
        metavar="N",
        help="run on N hosts of this machine, one of them in reserve, so that hosts fail, too",
    )
    parser.add_argument(
        "--allow-missing",
        action="store_true",
        help="where a permission is missing, go on without the faults that need it",
    )
    parser.add_argument(
        "--nproc-per-node",
        type=whole,
        metavar="N",
        help=f"number of ranks (default: {RANKS}), or with --hosts of each host (default: 1)",
    )


def place_of(args: argparse.Namespace) -> DrillPlace:
    """Return where the runs take place. Raises UsageError for numbers that cannot be."""
    each = args.nproc_per_node
    if each is not None and each < 1:
        raise UsageError("--nproc-per-node 0: no rank", hint="give 1 or more")
    folder = Path(args.run_dir or ".")
    if args.hosts is None:
        return DrillPlace(None, RANKS if each is None else each, folder=folder)
    if not HOSTS_LEAST <= args.hosts <= HOSTS_MOST:
        raise UsageError(
            f"--hosts {args.hosts}: a drill takes {HOSTS_LEAST} to {HOSTS_MOST} hosts",
            hint="one is in reserve, and with fewer none can take the run over",
        )
    layout = HostLayout(args.hosts, 1 if each is None else each)
    if missing := may_be_made():
        return DrillPlace(None, layout.world_size, layout, missing, folder)
    return DrillPlace(layout, layout.ranks, layout)


def refuse_missing(
    place: DrillPlace, plan: DrillPlan, args: argparse.Namespace, *, seed: int
) -> None:
    """Refuse a drill whose hosts or groups cannot be made, and name the faults it would lack.

    Raises UsageError, unless --allow-missing is given.
    """
    if args.allow_missing:
        return
    size = place.ranks if place.layout is None else place.layout.world_size
    calendar = draw(plan, seed=seed, world_size=size, spares=args.spares)
    if lacks := "; ".join(place.missing_permissions(calendar)):
        raise UsageError(
            lacks, hint="run it as root, or give --allow-missing to drill without these faults"
        )
    if not place.missing:
        return
    calendar = without_hosts(calendar)
    hosts = {name: one for name, one in calendar.left_out.items() if name in HOST_KINDS}
    named = ", ".join(f"{number} x {name}" for name, number in sorted(hosts.items()))
    which = f": the plan's {count(sum(hosts.values()), 'fault')} of hosts cannot be had ({named})"
    raise UsageError(
        f"--hosts {args.hosts}: {place.missing}{which if hosts else ''}",
        hint="run it as root, or give --allow-missing to drill one host without these faults",
    )
