"""Edits: parameters that the script changes itself, and how a repeat takes that back.

A step that is repeated leaves parameters alone. It was cut short before its vote, and optimizers
change parameters only after the vote. Real scripts do more. They update an average of the weights
before the optimizer, in a step that a GradScaler skips, or after the block. They project weights.
They swap averaged weights in for an evaluation. Done twice, each of these gives wrong results, and
nothing reports it.

So outlast looks which parameters have changed between the beginning of a step and its vote, after
its block, or inside a phase. From then on these are copied at each beginning, and put back with
everything else. This is what it looks at:

    first step            the bytes of all parameters
    later steps           the version that torch counts up with each change; it does not count
                          writes through `.data`. In the steps after the first, and in each 64th, a
                          sample of the bytes of parameters that no optimizer has
    second step           as later steps; all parameters that no optimizer has are copied, because
                          the first move of torch's `AveragedModel` before an optimizer changes no
                          byte: it takes the weights that it has
    first phase of a name all parameters are copied, because it is not known yet what it changes
    later phases          the version, and if one is cut short a sample of the bytes

A frozen parameter (requires_grad=False) counts as one that no optimizer has, although scripts give
all parameters of a model to their optimizer: none changes it.

If a parameter is edited that no optimizer has, all such parameters of its module count as edited:
an average of a bias that is still zero does not move. If the script begins in a later step to
change a parameter through `.data`, that is not noticed in time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter

import torch

from outlast.errors import StateError
from outlast.model.texts import some
from outlast.runtime.worker.tensors.fingerprint import fingerprint
from outlast.runtime.worker.tensors.modules import copy_all, room_like

_SAMPLE_COUNT = 64  # the elements of a parameter that are compared in place of all of it
_SAMPLED_FIRST_STEPS, _SAMPLED_EACH_STEPS = 4, 64

_version_of = attrgetter("_version")


class Edits:
    """Record which parameters the script edits (`names`), and keep copies for a repeat.

    parameters   returns the parameters to look at; an empty mapping if nothing has to be undone
    optimized    returns those that an optimizer has
    """

    def __init__(
        self,
        parameters: Callable[[], Mapping[str, torch.Tensor]],
        optimized: Callable[[], Iterable[torch.Tensor]],
    ) -> None:
        self.names: set[str] = set()
        self._parameters = parameters
        self._optimized = optimized
        self._steps = 0  # how many steps began in this process
        self._was_first = False  # whether the step before was begun bytewise
        self._copies: dict[str, torch.Tensor] = {}
        self._marks: list[object] | None = None
        self._mark: Callable[[Iterable[torch.Tensor]], list[object]] = _versions
        self._samples: dict[str, str] = {}
        self._phases: set[str] = set()  # the names of the phases that were done in this process

    def begin(self, *, bytewise: bool = False) -> None:
        """Begin a step: copy the edited parameters, and mark all parameters as they are now.

        `bytewise` says that it is the first step of all, or one whose edits are not known yet.
        """
        self._samples = {}
        self._steps += 1
        sampled = self._steps <= _SAMPLED_FIRST_STEPS or self._steps % _SAMPLED_EACH_STEPS == 0
        self._mark = _bytes if bytewise else self._sampler() if sampled else _versions
        after_first, self._was_first = self._was_first, bytewise
        self._keep(self.names | self._free() if after_first else self.names)
        self.watch()

    def begin_phase(self, phase: str) -> None:
        """Begin a phase: do as `begin` does, and remember a sample of what is not copied.

        In the first phase of its name, copy everything.
        """
        mine = self._parameters()
        self._keep(self.names if phase in self._phases else mine.keys())
        self._samples = {
            name: _sample(one) for name, one in mine.items() if name not in self._copies
        }
        self._mark = _versions
        self.watch()

    def end_phase(self, phase: str) -> None:
        """End a phase that is done, and note what it has changed. Its changes are kept."""
        self._phases.add(phase)
        self._copies = {name: copy for name, copy in self._copies.items() if name in self.names}
        self._samples = {}
        self.watch()

    def watch(self) -> None:
        """Mark all parameters as they are now, for the next `look`."""
        self._marks = self._marked()

    def look(self) -> list[str]:
        """Return the parameters that have changed since `watch`.

        They count as edited, and are copied from the next beginning on.
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
        """Return the edited parameters that were not copied when the step began.

        At that time it was not known that they are edited.
        """
        return sorted(self.names - self._copies.keys())

    @property
    def copied_bytes(self) -> int:
        """Return how many bytes are copied at each beginning."""
        return sum(one.nbytes for name, one in self._parameters().items() if name in self.names)

    def put_back(self) -> None:
        """Restore the copies of the newest beginning.

        Raises StateError if a phase has changed a parameter that was not copied.
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
        """Stop watching until the next `watch`, because changes until then are not the script's."""
        self._marks = None

    def text(self) -> str:
        """Return a text for a successor: "1" for each parameter that is edited, otherwise "0"."""
        return "".join("1" if name in self.names else "0" for name in self._parameters())

    def take_over(self, text: str) -> None:
        """Copy the same parameters as the rank that wrote `text`.

        A text for other parameters is ignored.
        """
        mine = self._parameters()
        if len(text) == len(mine):
            self.names |= {name for name, mark in zip(mine, text, strict=True) if mark == "1"}

    def _marked(self) -> list[object]:
        return self._mark(self._parameters().values())

    def _sampler(self) -> Callable[[Iterable[torch.Tensor]], list[object]]:
        """Return a function that marks parameters.

        It marks them by their versions, and those that are free now by a sample. The script may
        freeze or unfreeze some of them until the next look. That does not change their values.
        """
        optimized = self._trained()
        return lambda parameters: [
            one._version if id(one) in optimized else (one._version, _sample(one))
            for one in parameters
        ]

    def _with_kin(self, changed: set[str]) -> set[str]:
        """Return these parameters, and the others of their modules that no optimizer has."""
        free = self._free()
        moved = {_module(name) for name in changed & free}
        return changed | {name for name in free if _module(name) in moved}

    def _free(self) -> set[str]:
        """Return the parameters that no optimizer changes."""
        optimized = self._trained()
        return {name for name, one in self._parameters().items() if id(one) not in optimized}

    def _trained(self) -> set[int]:
        """Return the identities of the parameters that an optimizer has, and can change."""
        return {id(one) for one in self._optimized() if one.requires_grad}

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
