"""Areas of a vault by rank, for the images of its own ranks, and for copies.

    FOLDER/PREFIX-RANK/    two slots, and their seals (area.py)

A prefix stands for one use, such as "rank" or "parity".
"""

from __future__ import annotations

from pathlib import Path

from outlast.model.limits import SLOTS_COUNT
from outlast.model.manifest import Seal
from outlast.runtime.tiers.area import Area


class RankAreas:
    """Open the areas of one prefix. Mappings are made once and kept until `close`.

    `run` is the number of the run, which is in every seal.
    """

    def __init__(self, folder: Path, prefix: str, *, run: int) -> None:
        self._folder = folder
        self._prefix = prefix
        self._run = run
        self._areas: dict[int, Area] = {}

    def of(self, rank: int) -> Area:
        """Return the area of `rank`. It need not exist yet."""
        if rank not in self._areas:
            self._areas[rank] = Area(
                self._folder / f"{self._prefix}-{rank}",
                run=self._run,
                rank=rank,
                slots_count=SLOTS_COUNT,
            )
        return self._areas[rank]

    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that have an area here, whether or not anything is sealed in it."""
        begin = len(self._prefix) + 1
        names = (path.name[begin:] for path in self._folder.glob(f"{self._prefix}-*"))
        return tuple(sorted(int(name) for name in names if name.isdecimal()))

    def steps(self, rank: int) -> tuple[int, ...]:
        """Return the steps that are sealed for `rank`, the newest first."""
        return tuple(sorted((seal.step for seal in self.of(rank).sealed().values()), reverse=True))

    def find(self, rank: int, step: int) -> tuple[int, Seal] | None:
        """Return a slot of `rank` that contains `step`, and its seal.

        Return None if there is none.
        """
        sealed = self.of(rank).sealed().items()
        return next(((slot, seal) for slot, seal in sealed if seal.step == step), None)

    def let_go(self, rank: int) -> str:
        """Close the area of `rank`, and return the name of its folder, which may be removed."""
        if (area := self._areas.pop(rank, None)) is not None:
            area.close()
        return f"{self._prefix}-{rank}"

    def close(self) -> None:
        """Close all files. Views that were given out stay valid."""
        for area in self._areas.values():
            area.close()
        self._areas.clear()
