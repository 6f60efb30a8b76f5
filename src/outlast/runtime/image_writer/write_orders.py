"""What workers and the launcher say to the process that writes images, and its answers.

    worker                              writer
    connects, sends a WriteOrder and    maps the memory, and has it from now on, even if the
    the descriptor of its memory        worker dies
                                        MOVED, again and again while it writes
                                        a WriteAnswer
    TAKEN, once it has reported that    closes; without TAKEN it tells the launcher

A connection is for one order. Each entry of this table is one packet of a Unix socket. The launcher
writes lines to the process's stdin: ASK, and which steps were rolled back.
"""

from __future__ import annotations

import json
import typing
from dataclasses import asdict, dataclass

from outlast.runtime.interpreter import module_command

PROGRAM = module_command("outlast.runtime.image_writer.writer_program")
SOCKET_NAME = "writer"  # in the folder of the vault
MOVED, TAKEN = b"moved", b"taken"
PACKET_BYTES = 65_536
ASK = b"?\n"  # from the launcher, on stdin: does the process live?


def encode_rollback(generation: int, step: int) -> bytes:
    """Return the line by which the launcher says that a generation goes on from a step."""
    return f"{generation} {step}\n".encode()


def decode_rollback(line: bytes) -> tuple[int, int]:
    """Return the generation and the step in such a line. Raises ValueError for any other line."""
    generation, step = line.split()
    return int(generation), int(step)


@dataclass(frozen=True, slots=True)
class WriteOrder:
    """An order to write captured bytes into the file `name` in `folder`.

    worker, generation, rank, step   as in the message Checkpointed
    length     how many bytes of the memory are the image
    checksum   xxh3_64 of these bytes, which the writer compares with what it has written
    """

    worker: int
    generation: int
    rank: int
    step: int
    folder: str
    name: str
    length: int
    checksum: int

    def encode(self) -> bytes:
        """Return the order as a packet."""
        return json.dumps(asdict(self)).encode()


_KINDS = typing.get_type_hints(WriteOrder)  # int or str


def decode_order(packet: bytes) -> WriteOrder:
    """Read an order. Raises ValueError for any other packet, with what is wrong in it."""
    try:
        order = WriteOrder(**json.loads(packet))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"this is no order: {error}") from None
    for name, kind in _KINDS.items():
        value = getattr(order, name)
        if type(value) is not kind:  # True is an int as well
            found = type(value).__name__
            raise ValueError(f"the order's {name} has to be {kind.__name__}, and is {found}")
    if order.length < 0:
        raise ValueError(f"the order's length is {order.length}")
    is_flat = order.name not in ("", ".", "..") and "/" not in order.name
    if not is_flat or "\0" in order.folder + order.name:
        raise ValueError(f"the order's file {order.name!r} is not the name of a file in its folder")
    return order


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """The writer's answer: the file is durable, or `error` says why it is not."""

    error: str = ""

    def encode(self) -> bytes:
        """Return the answer as a packet."""
        return json.dumps({"error": self.error}).encode()


def decode_answer(packet: bytes) -> WriteAnswer:
    """Read an answer. Raises ValueError for any other packet."""
    try:
        return WriteAnswer(str(json.loads(packet)["error"]))
    except (TypeError, KeyError) as error:
        raise ValueError(str(error)) from None
