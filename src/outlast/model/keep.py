"""The values of `--keep`: where the state of a run is kept, and how often.

    vault:auto              in shared memory, as often as is possible at next to no cost
    vault:10steps           each ten steps
    vault:auto, disk:10min  and a checkpoint on the disk each ten minutes
    disk:auto               a checkpoint on the disk as often as it pays
    vault:never             no copies in shared memory
    peers=1:step            one copy of each image of sharded state, on another node
    peers=2:step            two copies, each on a node of its own. Any 2 nodes can be lost
    parity=4+2:step         no copies, but parity: each image in 4 parts, and of each 4 parts of
                            several nodes 2 sums on other nodes. Any 2 nodes can be lost
    s3://bucket/run:1h      a copy of the newest checkpoint in object storage, each hour

A list of WHERE[:EVERY], with commas. EVERY is `step`, a number of steps, a time with its unit,
`auto` or `never`; `step` if it is left out. Peers copy what the ranks seal, and parity is made of
that. So a time means nothing there, and a number of steps has to be that of `--snapshot-every`. To
a URL checkpoints are copied, so there `step` means each checkpoint.

This module is pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from outlast.errors import UsageError
from outlast.model.limits import (
    PARITY_PARTS_MAX_COUNT,
    PARITY_ROWS_MAX_COUNT,
    PEER_COPIES_MAX_COUNT,
)
from outlast.model.quantities import QuantityKind, parse, parse_count
from outlast.model.redundancy import Code
from outlast.model.store_url import is_url, read_url

PLACES = ("vault", "disk", "peers", "parity")
_PARITY = re.compile(r"parity\s*(?:=\s*(\S*))?")
_CODE = re.compile(r"(\d{1,4})\+(\d{1,4})")
_PEERS = re.compile(r"peers\s*(?:=\s*(\S*))?")
_STEPS = re.compile(r"(\S+?)\s*steps?")
_HINT = "for example --keep 'vault:auto, disk:10min'"


@dataclass(frozen=True, slots=True)
class Every:
    """Say how often a copy is made: each `steps` steps, or once `seconds` are over, or `auto`.

    Never, if none of them is set. `auto` weighs what a copy costs against what it saves.
    """

    steps: int = 0
    seconds: float = 0.0
    auto: bool = False

    @property
    def is_never(self) -> bool:
        """Return whether no copy is made at all."""
        return not (self.steps or self.seconds or self.auto)


NEVER, AUTO = Every(), Every(auto=True)


@dataclass(frozen=True, slots=True)
class KeepOption:
    """Say where state is kept. None: the option does not name this place. `objects`: at `url`.

    code    of the parity; None where there is none
    copies  how many other nodes keep a copy under `peers`
    """

    vault: Every | None = None
    disk: Every | None = None
    peers: Every | None = None
    objects: Every | None = None
    url: str = ""
    parity: Every | None = None
    code: Code | None = None
    copies: int = 1


def read_keep(text: str) -> KeepOption:
    """Read the value of `--keep`. Raises UsageError."""
    found: dict[str, Every] = {}
    url, code, copies = "", None, 1
    for entry in text.split(","):
        where, every = _split(entry.strip())
        if is_url(where):
            if url:
                raise UsageError(f"--keep {text!r} names two URLs", hint="one is possible")
            url = read_url(where, name=f"--keep {text!r}").text
            found["objects"] = _read_every_of_url(every, text)
            continue
        if parity := _PARITY.fullmatch(where):
            where, code = "parity", _read_code(parity[1], text)
        if peers := _PEERS.fullmatch(where):
            where, copies = "peers", _read_copies(peers[1], text)
        if where not in PLACES:
            raise UsageError(
                f"--keep {text!r}: {where!r} is no place where state can be kept",
                hint=f"the places are vault, disk, peers=1, parity=K+M and a URL; {_HINT}",
            )
        if where in found:
            raise UsageError(f"--keep {text!r} names {where} twice", hint=_HINT)
        found[where] = _read_every(every, text)
    _check_other_nodes(found, text)
    return KeepOption(**found, url=url, code=code, copies=copies)


def _check_other_nodes(found: dict[str, Every], whole: str) -> None:
    """Raise UsageError for what cannot be kept on other nodes."""
    peers, parity = found.get("peers", NEVER), found.get("parity", NEVER)
    if not (peers.steps or peers.is_never):
        raise UsageError(
            f"--keep {whole!r}: a peer copies each image when it is sealed, and not by the clock",
            hint="write peers=1:step, or the steps of --snapshot-every: peers=1:10steps",
        )
    if not (parity.steps or parity.is_never):
        raise UsageError(
            f"--keep {whole!r}: parity is made of each image when it is sealed, and not by the"
            " clock",
            hint="write parity=2+1:step, or the steps of --snapshot-every: parity=2+1:10steps",
        )
    if not (peers.is_never or parity.is_never):
        raise UsageError(
            f"--keep {whole!r} names peers and parity",
            hint="choose one of them: parity takes less memory, and peers less time to restore",
        )


def _read_code(text: str | None, whole: str) -> Code:
    """Return the code that `text` names: 4+2. Raises UsageError."""
    found = _CODE.fullmatch(text or "")
    data, rows = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (1 <= data <= PARITY_PARTS_MAX_COUNT and 1 <= rows <= PARITY_ROWS_MAX_COUNT):
        raise UsageError(
            f"--keep {whole!r}: parity is K+M, with K of 1 to {PARITY_PARTS_MAX_COUNT} and M of 1"
            f" or {PARITY_ROWS_MAX_COUNT}",
            hint="parity=4+2 keeps half as many bytes as the state has, and survives two losses",
        )
    return Code(data, rows)


def _split(entry: str) -> tuple[str, str]:
    """Return WHERE and EVERY. The colon after the scheme of a URL does not separate them."""
    where, colon, every = entry.rpartition(":")
    if not colon or every.startswith("//"):
        return entry, "step"
    return where.strip(), every.strip()


def _read_every_of_url(text: str, whole: str) -> Every:
    every = _read_every(text, whole)
    if every.auto or every.is_never:
        raise UsageError(
            f"--keep {whole!r}: {text!r} means nothing for a URL",
            hint="write how often a checkpoint is copied there, such as 1h or 1000steps",
        )
    return every


def _read_copies(text: str | None, whole: str) -> int:
    """Return how many copies `peers=` names. Raises UsageError."""
    if text is None:
        raise UsageError(
            f"--keep {whole!r}: peers needs a number of copies", hint="write peers=1:step"
        )
    count = parse_count(text, name=f"--keep {whole!r}: peers")
    if count > PEER_COPIES_MAX_COUNT:
        raise UsageError(
            f"--keep {whole!r}: {PEER_COPIES_MAX_COUNT} other nodes at most can keep copies of an"
            f" image, and not {count}",
            hint="with peers=C any C nodes can be lost at once",
        )
    return count


def _read_every(text: str, whole: str) -> Every:
    if text in ("auto", "never"):
        return AUTO if text == "auto" else NEVER
    if text == "step":
        return Every(steps=1)
    name = f"--keep {whole!r}: EVERY"
    if found := _STEPS.fullmatch(text):
        return Every(steps=parse_count(found[1], name=name))
    if text.isdecimal():
        raise UsageError(f"{name} {text!r} has no unit", hint=f"{text}steps, or {text}s; {_HINT}")
    return Every(seconds=parse(text, QuantityKind.DURATION, name=name))
