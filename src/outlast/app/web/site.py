"""Find the runs to serve, read them, and keep the newest pages in memory.

Runs are only read. A read opens the ledger for reading, reads it in one short transaction, and
closes it. Reads of one run never overlap, and take at most a tenth of the time. A run that is over
is read again only once its files have changed.
"""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote  # tidy: it quotes, and opens nothing

from outlast.app.page.page_html import PARTS, part
from outlast.app.page.page_model import Page, page_of
from outlast.app.reports.status import OVER
from outlast.app.views.run_views import understood
from outlast.errors import OutlastError, RunFolderError
from outlast.model.records import Life, Records
from outlast.runtime import clock
from outlast.runtime.folders.run_files import ledger_changed, run_names
from outlast.runtime.fresh import Fresh
from outlast.runtime.ledger.view import RunView, look

LOOK_EVERY_S = 1.0
# a run that goes on is read again after this, without a write: its launcher may be gone
LOOK_AGAIN_S = 5.0
WARM_UP_S = 2.0  # how long the server may read runs before it answers
KEPT_MOST = 16  # runs whose pages are kept in memory
Value = TypeVar("Value")
CARDS_MOST = 1_000  # rows of the overview that are kept
SHOWN_MOST = 20  # interruptions on the page of a run


@dataclass(frozen=True, slots=True)
class Shown:
    """A page at one moment, with the HTML of its parts by name."""

    page: Page
    parts: dict[str, str]
    records: Records


@dataclass(frozen=True, slots=True)
class Card:
    """One row of the overview. `problem` says why the run cannot be read, or is "".

    `damage` says what a damaged ledger lacks, or is "". A number that needs this is None.
    """

    name: str
    state: str
    step: int | None = 0
    steps_per_s: float = 0.0
    world_size: int = 0
    wall_s: float = 0.0
    ettr: float | None = None
    interruptions: int | None = 0
    began_wall_s: float = 0.0
    problem: str = ""
    damage: str = ""


class NoRunError(RunFolderError):
    """No run of this name is served."""


class RunLinks:
    """Links from any page of one run to the others: all are relative, and in one folder."""

    is_file = False

    def node(self, name: str) -> str:
        return "node?name=" + _quoted(name)

    def rank(self, rank: int) -> str:
        return f"rank?number={rank}"

    def interruption(self, number: int) -> str:
        return f"interruption?id={number}"

    def interruptions(self) -> str:
        return "interruptions"

    def file(self, path: str) -> str:
        return "file?path=" + _quoted(path)


class Site:
    """Serve every run under `root`, or only the one that is named."""

    def __init__(self, root: Path, only: str | None = None) -> None:
        self.root = root
        self.only = only
        self._pages: OrderedDict[str, Fresh[Shown]] = OrderedDict()
        self._cards: OrderedDict[str, Fresh[Card]] = OrderedDict()
        self._names = Fresh(functools.partial(run_names, root), clock.now_s, least_s=LOOK_EVERY_S)

    def names(self) -> list[str]:
        """Return the runs, the newest first."""
        names = self._names.get()
        return names if self.only is None else [name for name in names if name == self.only]

    def path(self, name: str) -> Path:
        """Return the folder of a run. Raises RunFolderError for any other name."""
        if name not in self.names():
            raise NoRunError(f"there is no run {name} here", hint="the overview lists the runs")
        return self.root / name

    def shown(self, name: str) -> Shown:
        """Return the page of a run. Raises OutlastError if it cannot be read now."""
        path = self.path(name)
        compute = functools.partial(_show, path)
        return _kept(self._pages, name, KEPT_MOST, compute, _is_shown_for_good, path).get()

    def lives(self, name: str, rank: int) -> list[tuple[Life, float]]:
        """Return the processes that held a rank, each with its session's `began_s`."""
        return [
            (life, part.began_s)
            for part in self.shown(name).records.sessions
            for life in part.lives
            if life.rank == rank
        ]

    def rank_seconds(self, name: str, rank: int) -> dict[str, float]:
        """Return the seconds of one rank by cause."""
        return {cause.value: value for cause, value in self.shown(name).page.by_rank[rank].items()}

    def card(self, name: str) -> Card:
        """Return the row of a run in the overview, also of one that cannot be read."""
        path = self.path(name)
        compute = functools.partial(_card, path)
        return _kept(self._cards, name, CARDS_MOST, compute, _is_card_for_good, path).get()

    def warm_up(self, names: Iterable[str]) -> None:
        """Read these runs, the first one whole, until WARM_UP_S are over.

        The server does so once before it gives up its priority. On a machine whose cores are all
        busy it gets little time from then on, and the first visitor would wait for the reads.
        """
        over_s = clock.now_s() + WARM_UP_S
        for number, name in enumerate(names):
            with contextlib.suppress(OutlastError):  # its page will say so
                self.card(name)
                if number == 0:
                    self.shown(name)
            if clock.now_s() >= over_s:
                return


def _kept(
    some: OrderedDict[str, Fresh[Value]],
    name: str,
    most_count: int,
    compute: Callable[[], Value],
    settled: Callable[[Value], bool],
    path: Path,
) -> Fresh[Value]:
    """Return the value that is kept for a run. Drop the value that was not used for longest."""
    made = some.get(name)
    if made is None:
        made = Fresh(
            compute,
            functools.partial(ledger_changed, path),
            least_s=LOOK_EVERY_S,
            longest_s=LOOK_AGAIN_S,
            settled=settled,
        )
        some[name] = made
    some[name] = made  # another thread may have let go of it
    some.move_to_end(name)
    while len(some) > most_count:
        some.popitem(last=False)
    return made


def _is_shown_for_good(shown: Shown) -> bool:
    return shown.page.is_over


def _is_card_for_good(card: Card) -> bool:
    return card.state in OVER


def _show(path: Path) -> Shown:
    view = look(str(path))
    with understood(path):
        page = page_of(view, wall_s=clock.wall_s())
        links = RunLinks()
        parts = {name: part(name, page, links, most=SHOWN_MOST) for name in ("head", *PARTS)}
        return Shown(page, parts, view.records)


def _card(path: Path) -> Card:
    try:
        view = look(str(path))
        with understood(path):
            return _card_of(path.name, view)
    except OutlastError as error:
        return Card(path.name, "unreadable", problem=str(error))


def _card_of(name: str, view: RunView) -> Card:
    records, said = view.records, view.records.snapshot or {}
    books = view.books
    rate = said.get("steps_per_s")
    return Card(
        name=name,
        state=view.state,
        step=None if view.is_over and "steps" in records.missing else view.step,
        steps_per_s=float(rate) if isinstance(rate, int | float) and not view.is_over else 0.0,
        world_size=records.world_size,
        wall_s=books.wall_s,
        ettr=books.ettr if records.is_measured else None,
        interruptions=None
        if "interruptions" in records.missing
        else sum(one.parent is None for part in records.sessions for one in part.interruptions),
        began_wall_s=records.meta.started_wall_s,
        damage=records.damage,
    )


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "replace"), safe="")
