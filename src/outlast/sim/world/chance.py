"""All random numbers of a simulated run, drawn from one seed."""

from __future__ import annotations

from outlast.sim.draws import Draws, Pool, ProcessDraws, Stream
from outlast.sim.options import Options


class Chance:
    """Independent streams, one for each purpose.

    While `begins` is True, nothing is drawn yet, and messages that nodes send at the same time
    arrive in the order of the nodes.
    """

    def __init__(self, seed: int, options: Options, *, steady: bool, begins: bool) -> None:
        self._seed = seed
        self._steady = steady
        self._streams: list[Stream] = []
        self.pool = Pool(Stream(seed, "luck"), steady=steady) if options.alike else None
        self.sessions = Stream(seed, "sessions")  # numbers of agents are always drawn
        self.work = self.stream("work")
        self.machines = self.stream("machines")
        self.begins = begins

    def stream(self, purpose: str) -> Stream:
        """Return a new stream; it is drawn from only for this purpose."""
        self._streams.append(Stream(self._seed, purpose, steady=self._steady))
        return self._streams[-1]

    def calm(self, now: bool) -> None:
        """Draw nothing from now on, so that everything takes its least time; or draw again."""
        for stream in self._streams:
            stream.calm(now)
        if self.pool is not None:
            self.pool.calm(now)

    def begun(self) -> None:
        """Draw from now on. A fault has struck, or the first stretch is near."""
        if self.begins:
            self.begins = False
            self.calm(False)

    def lasting(self, luck: ProcessDraws | None, least_s: float, most_s: float) -> float:
        """Return how long some work of the script takes."""
        draws: Draws = luck or self.work
        return draws.between(least_s, most_s)
