"""Edits: parameters that the script changes itself, outside the optimizers' turn, and how a repeat
takes that back.

A step that is repeated leaves parameters alone, for it was cut short before its vote, and only
optimizers change parameters, behind the vote. Real scripts do more: they move an average of the
weights in front of the optimizer, in a step that a GradScaler skips, or behind the block; they
project weights; they swap averaged weights in for an evaluation. Done twice, each of these is wrong
without a word.

So it is noticed which parameters have changed between the beginning of a step and its vote, behind
its block, or inside a phase. Those are copied at each beginning from then on, and put back with all
else. What is looked at:

    first step            their bytes
    later steps           the version that torch counts up with each change; it does not count
                          writes through `.data`. In the steps after the first, and in each 64th, a
                          sample of the bytes of what no optimizer has
    first phase of a name all parameters are copied, for nobody knows yet what it changes
    later phases          the version, and where one is cut short a sample of the bytes

Where one parameter is edited that no optimizer has, all such parameters of its module count as
edited: an average of a bias that is still zero does not move. Not noticed in time: what the script
begins to change through `.data` in a later step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter

import torch

from outlast.errors import StateError
from outlast.model.texts import some
from outlast.runtime.worker.fingerprint import fingerprint
from outlast.runtime.worker.modules import copy_all, room_like

_SAMPLE_COUNT = 64  # elements of a parameter that stand for all of it
_SAMPLED_FIRST_STEPS, _SAMPLED_EACH_STEPS = 4, 64

_version_of = attrgetter("_version")


class Edits:
    """What the script has edited so far (`names`), and the copies of it that a repeat puts back.

    parameters   gives those that are looked at; an empty mapping where nothing has to be taken back
    optimized    gives those that an optimizer has
    """

    def __init__(
        self,
        parameters: Callable[[], Mapping[str, torch.Tensor]],
        optimized: Callable[[], Iterable[torch.Tensor]],
    ) -> None:
        self.names: set[str] = set()
        self._parameters = parameters
        self._optimized = optimized
        self._steps = 0  # that began in this process
        self._copies: dict[str, torch.Tensor] = {}
        self._marks: list[object] | None = None
        self._mark: Callable[[Iterable[torch.Tensor]], list[object]] = _versions
        self._samples: dict[str, str] = {}
        self._phases: set[str] = set()  # names of those that were done here

    def begin(self, *, bytewise: bool = False) -> None:
        """A step begins: copy what is edited, and remember how all parameters are."""
        self._samples = {}
        self._steps += 1
        sampled = self._steps <= _SAMPLED_FIRST_STEPS or self._steps % _SAMPLED_EACH_STEPS == 0
        self._mark = _bytes if bytewise else self._sampled if sampled else _versions
        self._keep(self.names)
        self.watch()

    def begin_phase(self, phase: str) -> None:
        """A phase begins: the same, and remember a sample of what is not copied.

        In the first of its name, copy everything.
        """
        mine = self._parameters()
        self._keep(self.names if phase in self._phases else mine.keys())
        self._samples = {
            name: _sample(one) for name, one in mine.items() if name not in self._copies
        }
        self._mark = _versions
        self.watch()

    def end_phase(self, phase: str) -> None:
        """A phase is done: what it had changed is known, and what it left changed stays."""
        self._phases.add(phase)
        self._copies = {name: copy for name, copy in self._copies.items() if name in self.names}
        self._samples = {}
        self.watch()

    def watch(self) -> None:
        """Remember how all parameters are, for the next `look`."""
        self._marks = self._marked()

    def look(self) -> list[str]:
        """Return what was found to be edited: it has changed since `watch`, and will be copied from
        the next beginning on.
        """
        marks, self._marks = self._marks, None
        if marks is None:
            return []
        now = self._marked()
        if now == marks or len(now) != len(marks):
            return []
        changed = {
            name
            for name, old, new in zip(self._parameters(), marks, now, strict=True)
            if old != new
        }
        found = self._with_kin(changed) - self.names
        self.names |= found
        return sorted(found)

    @property
    def uncopied(self) -> list[str]:
        """What is edited and was not copied when the step began, as it was not known by then."""
        return sorted(self.names - self._copies.keys())

    @property
    def copied_bytes(self) -> int:
        """How much is copied at each beginning."""
        return sum(one.nbytes for name, one in self._parameters().items() if name in self.names)

    def put_back(self) -> None:
        """Put the copies of the newest beginning back.

        Raises StateError where a phase has changed what was not copied.
        """
        self._marks = None
        mine = self._parameters()
        copy_all((mine[name], copy) for name, copy in self._copies.items() if name in mine)
        samples, self._samples = self._samples, {}
        torn = [
            name
            for name, sample in samples.items()
            if name in mine and _sample(mine[name]) != sample
        ]
        if torn:
            raise StateError(
                f"a phase was interrupted while the script had changed {some(torn)}, of which there"
                " is no copy",
                hint=(
                    "change parameters in place, under torch.no_grad() and not through .data: then"
                    " they are noticed and copied"
                ),
            )

    def forget(self) -> None:
        """Watch no more until the next `watch`: what changes parameters now is not the script."""
        self._marks = None

    def text(self) -> str:
        """Return what a successor has to know: one character for each parameter, "1" if it is
        edited.
        """
        return "".join("1" if name in self.names else "0" for name in self._parameters())

    def take_over(self, text: str) -> None:
        """Copy what the rank copies that wrote `text`; one that has other parameters says
        nothing.
        """
        mine = self._parameters()
        if len(text) == len(mine):
            self.names |= {name for name, mark in zip(mine, text, strict=True) if mark == "1"}

    def _marked(self) -> list[object]:
        return self._mark(self._parameters().values())

    def _sampled(self, parameters: Iterable[torch.Tensor]) -> list[object]:
        optimized = set(map(id, self._optimized()))
        return [
            one._version if id(one) in optimized else (one._version, _sample(one))
            for one in parameters
        ]

    def _with_kin(self, changed: set[str]) -> set[str]:
        """Return these and what belongs to the same module, where no optimizer has it."""
        optimized = set(map(id, self._optimized()))
        free = [name for name, one in self._parameters().items() if id(one) not in optimized]
        moved = {_module(name) for name in changed.intersection(free)}
        return changed | {name for name in free if _module(name) in moved}

    def _keep(self, names: Collection[str]) -> None:
        mine = self._parameters()
        self._copies = {
            name: self._copies.get(name, torch.empty(0)) for name in names if name in mine
        }
        for name, copy in self._copies.items():
            if copy.shape != mine[name].shape or copy.dtype != mine[name].dtype:
                self._copies[name] = room_like(mine[name])
        copy_all((copy, mine[name]) for name, copy in self._copies.items())


def _versions(parameters: Iterable[torch.Tensor]) -> list[object]:
    return list(map(_version_of, parameters))


def _bytes(parameters: Iterable[torch.Tensor]) -> list[object]:
    return list(map(fingerprint, parameters))


def _module(name: str) -> str:
    """Return the name under which the module of this parameter was given to run.state."""
    return name.partition(".")[0]


def _sample(tensor: torch.Tensor) -> str:
    flat = tensor.detach().reshape(-1)
    return fingerprint(flat[:: max(1, flat.numel() // _SAMPLE_COUNT)])
