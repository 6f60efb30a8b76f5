"""A rank's private state: what may differ between ranks, and which parts change after a vote.

    part               named              private because
    module buffers     buffer:<name>      BatchNorm statistics are those of one rank's data
    extra state        extra:<module>     get_extra_state() of a module
    objects            object:<name>      anything with state_dict(): meters, counters, generators
    random state       random             each rank draws its own numbers
    loader position    (none)             moves when a batch is fetched, and at no other time

A rank seals its private state just before the vote of a step. The script may change parts of it
after that: after its optimizer call, or after the block. The parts that were ever seen to change
there are the *movers*. If a rank is lost between that seal and the next step, its newest movers are
lost with it. Its successor can take them from a peer if they are the same on all ranks, which
`movers_key` tells. If they differ, steps have to vote late (late_votes.py).

What the script changes between two calls of run.steps does not make a part a mover, because a
successor runs that code itself.

Units      `movers_key` is a CRC of 32 bits, as a float that holds it exactly.
Limits     A buffer that is written through `.data` or NumPy moves unseen.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from outlast.errors import CorruptError, StateError
from outlast.model.texts import some
from outlast.runtime.worker.data.loaders import BatchSource
from outlast.runtime.worker.tensors import random_state, tree
from outlast.runtime.worker.tensors.fingerprint import fingerprint
from outlast.runtime.worker.tensors.modules import Modules, overwrite

UNLIKE = "it was saved by a run.state(...) with other arguments"
_BUFFER, _EXTRA, _OBJECT, _RANDOM = "buffer:", "extra:", "object:", "random"


@dataclass(frozen=True, slots=True)
class PrivatePart:
    """A small part of the state: `get` returns it as plain data, and `put` sets it from that."""

    get: Callable[[], Any]
    put: Callable[[Any], object]


class PrivateState:
    """The private half of a `State`. `tensors` returns it to be sealed, `load` puts it back.

    movers   the parts that were ever seen to change after a vote
    """

    def __init__(
        self, modules: Modules, objects: Mapping[str, PrivatePart], source: BatchSource | None
    ) -> None:
        self.movers: set[str] = set()
        # the movers that were seen to change after the end of a phase
        self._after_phases: set[str] = set()
        self._modules = modules
        self._objects = objects
        self._source = source
        self._random: tuple[random_state.RandomState, tree.Encoded] | None = None
        # fingerprints of objects and extra state, when `tensors` was called last
        self._prints: dict[str, str] = {}
        self._marks: list[tuple[int, int]] = []  # the same for buffers

    # --- the whole --------------------------------------------------------------------------------

    def tensors(self) -> tuple[str, dict[str, torch.Tensor]]:
        """Return the private state as text and live tensors.

        `moved` compares with this moment. It is called at every step, right before the tensors are
        copied.
        """
        position = None if self._source is None else self._source.position()
        objects, extra = self._objects_now(), self._modules.extra()
        parts = tree.encode([position, objects, extra], "private")
        self._prints, self._marks = _prints(objects, extra), self._modules.marks()
        state = random_state.capture(None if self._random is None else self._random[0])
        if self._random is None or state is not self._random[0]:
            self._random = (state, random_state.encode(state, self._random))
        encoded = self._random[1]
        return json.dumps([parts.text, encoded.text]), {
            **self._modules.buffers(),
            **parts.tensors,
            **encoded.tensors,
        }

    def load_stand_in(self, text: str, tensors: Mapping[str, torch.Tensor]) -> list[str]:
        """Load the private state of a peer, because this rank's own is lost.

        Return the parts that may differ from what was lost: those in which the peer differs from
        this process, whose script has just begun.
        """
        before = self._all_prints()
        self.load(text, tensors)
        after = self._all_prints()
        return sorted(name for name, value in after.items() if before.get(name) != value)

    def _all_prints(self) -> dict[str, str]:
        """Return a fingerprint of each part, by name. The loader is left out."""
        buffers = {
            _BUFFER + name: fingerprint(buffer) for name, buffer in self._modules.buffers().items()
        }
        random_print = {_RANDOM: str(random_state.key(random_state.capture()))}
        objects = _prints(self._objects_now(), self._modules.extra())
        return {**objects, **buffers, **random_print}

    def load(self, text: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the private state. Its tensors are copied.

        It raises StateError if the state does not fit, and CorruptError if `text` cannot be read.
        """
        parts, random_text = _texts(text)
        position, objects, extra = tree.decode(parts, copies_of(tensors, "private/"))
        if set(objects) != set(self._objects) or (position is None) != (self._source is None):
            theirs, mine = sorted(objects), sorted(self._objects)
            raise StateError(
                f"the saved state holds objects {theirs}, this one {mine}, or only one of them has"
                " a loader",
                hint=UNLIKE,
            )
        self._modules.load_buffers(
            {
                name: value
                for name, value in tensors.items()
                if not name.startswith(("private/", "random:"))
            }
        )
        self._modules.load_extra(extra)
        for name, part in self._objects.items():
            part.put(objects[name])
        if self._source is not None:
            self._source.seek(position)
        random_state.restore(
            random_state.decode(random_text, tensors)
        )  # this part comes last, because loading may draw random numbers

    # --- what has changed -------------------------------------------------------------------------

    def prints(self) -> dict[str, str]:
        """Return a fingerprint of each object and extra state, by its name for users."""
        prints = _prints(self._objects_now(), self._modules.extra())
        return {described({name}): value for name, value in prints.items()}

    def random_moved(self) -> bool:
        """Return whether random numbers were drawn since the last `tensors`."""
        return self._random is None or random_state.moved_since(self._random[0])

    def moved(self, *, after_phase: bool = False, between_calls: bool = False) -> set[str]:
        """Return the parts that have changed since the last `tensors`, and remember them as movers.

        after_phase     the last `tensors` was at the end of a phase
        between_calls   all changes came between two calls of run.steps, so they make no movers
        """
        now = {_RANDOM} if self.random_moved() else set()
        if (marks := self._modules.marks()) != self._marks:
            now |= {_BUFFER + name for name in self._modules.moved(self._marks, marks)}
        if self._objects or self._modules.has_extra:
            prints = _prints(self._objects_now(), self._modules.extra())
            now |= {name for name, value in prints.items() if self._prints.get(name) != value}
        if not between_calls:
            self.movers |= now
            self._after_phases |= now if after_phase else set()
        return now

    def movers_key(self) -> float:
        """Return a checksum of the movers and their values, to be compared between ranks.

        It is 0 if there are no movers. It covers the values that the last `tensors` returned, so
        call it before anything changes.
        """
        if not self.movers:
            return 0.0
        buffers = self._modules.buffers()
        values = []
        for name in sorted(self.movers):
            if name.startswith(_BUFFER):
                buffer = buffers.get(name[len(_BUFFER) :])
                values.append(f"{name}={'' if buffer is None else fingerprint(buffer)}")
            elif name == _RANDOM:
                values.append(
                    f"{name}={'' if self._random is None else random_state.key(self._random[0])}"
                )
            else:
                values.append(f"{name}={self._prints.get(name)}")
        return float(zlib.crc32("\n".join(values).encode()) or 1)

    # --- movers, from a peer to a successor -------------------------------------------------------

    def movers_tensors(self, agreed: Collection[str]) -> tuple[str, dict[str, torch.Tensor]]:
        """Return the movers as they are now, as text and live tensors, for a successor.

        `agreed` are those that are known to be the same on all ranks.
        """
        objects = {
            name: self._objects[name].get()
            for name in self._movers_of(_OBJECT)
            if name in self._objects
        }
        extra = {
            name: value
            for name, value in self._modules.extra().items()
            if _EXTRA + name in self.movers
        }
        parts = tree.encode(
            [sorted(self.movers), sorted(self._after_phases), sorted(agreed), objects, extra],
            "movers",
        )
        state = random_state.capture()
        encoded = random_state.encode(state) if _RANDOM in self.movers else tree.Encoded("", {})
        live = self._modules.buffers()
        buffers = {_BUFFER + name: live[name] for name in self._movers_of(_BUFFER) if name in live}
        return json.dumps([parts.text, encoded.text]), {
            **buffers,
            **parts.tensors,
            **encoded.tensors,
        }

    def learn_movers(self, text: str, tensors: Mapping[str, torch.Tensor]) -> frozenset[str]:
        """Learn from a peer which parts are movers. Their values stay.

        Return those that are known to be the same on all ranks. It raises CorruptError if `text`
        cannot be read.
        """
        movers, after_phases, agreed, _, _ = tree.decode(_texts(text)[0], tensors)
        self.movers |= set(movers)
        self._after_phases |= set(after_phases)
        return frozenset(agreed)

    def load_movers(
        self, text: str, tensors: Mapping[str, torch.Tensor], *, after_phase: bool = False
    ) -> list[str]:
        """Load the movers of a peer. Everything else stays.

        Return those that may differ from what was lost. It raises as `load` does. `after_phase`:
        this rank's own image was sealed at the end of a phase, so load only the movers that were
        seen to change after phases.
        """
        parts, random_text = _texts(text)
        movers, after_phases, agreed, objects, extra = tree.decode(
            parts, copies_of(tensors, "movers/")
        )
        wanted = set(after_phases if after_phase else movers)
        live = self._modules.buffers()
        given = {
            name[len(_BUFFER) :]: value
            for name, value in tensors.items()
            if name in wanted and name.startswith(_BUFFER)
        }
        overwrite({name: live[name] for name in given if name in live}, given)
        self._modules.load_extra(
            {
                **self._modules.extra(),
                **{name: value for name, value in extra.items() if _EXTRA + name in wanted},
            }
        )
        for name, value in objects.items():
            if _OBJECT + name in wanted:
                self._objects[name].put(value)
        if _RANDOM in wanted:
            random_state.restore(random_state.decode(random_text, tensors))
        return sorted(wanted.difference(agreed))

    def described_movers(self) -> str:
        """Return the movers in words, the first three of them."""
        return described(self.movers)

    # --- inside -----------------------------------------------------------------------------------

    def _objects_now(self) -> dict[str, Any]:
        """Return each object as plain data, as it is now."""
        return {name: part.get() for name, part in self._objects.items()}

    def _movers_of(self, kind: str) -> list[str]:
        """Return the movers of one kind, by their names without the prefix of that kind."""
        return sorted(name[len(kind) :] for name in self.movers if name.startswith(kind))


def described(parts: Collection[str]) -> str:
    """Return the names of parts in words for users, such as "buffer bn.running_mean"."""
    words = {_BUFFER: "buffer ", _EXTRA: "extra state of ", _OBJECT: ""}
    return some(
        [
            next(
                (word + name[len(kind) :] for kind, word in words.items() if name.startswith(kind)),
                "random state",
            )
            for name in sorted(parts)
        ]
    )


def copies_of(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Return copies of the tensors whose names begin with `prefix`."""
    return {
        name: tensor.detach().clone() for name, tensor in tensors.items() if name.startswith(prefix)
    }


def _prints(objects: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, str]:
    found = {_OBJECT + name: _print(value) for name, value in objects.items()}
    return {**found, **{_EXTRA + name: _print(value) for name, value in extra.items()}}


def _print(value: Any) -> str:
    encoded = tree.encode(value, "p")
    return encoded.text + "".join(fingerprint(tensor) for tensor in encoded.tensors.values())


def _texts(text: str) -> tuple[str, str]:
    try:
        parts, random_text = json.loads(text)
    except (ValueError, TypeError) as error:
        raise CorruptError(f"a private state that cannot be decoded: {error}") from None
    return parts, random_text
