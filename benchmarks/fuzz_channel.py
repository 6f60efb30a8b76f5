"""Fuzz the parser of messages and the handshakes of a run on several nodes, on real sockets.

    python benchmarks/fuzz_channel.py --minutes 60
    python benchmarks/fuzz_channel.py --seed 7 --first 1200 --attempts 1     repeat one attempt

Each attempt has a number, and all that is random in it follows from that and the seed. It sends
messages with random fields, in a random order, with bytes changed, left out, doubled or cut off, in
pieces of any length, to one of four ends that are open in this process:

    leader   the listener of the node that leads (AgentListener)
    voter    the port at which a launcher answers as a voter (VoterPort)
    images   the server of a node's images (ImageServer)
    dialler  the agent's end of the connection to the node that leads (Dialler)

Two of five attempts prove that they know the token, and go wrong after that. The rest do not.

An attempt passes if nothing is raised, and if the end lets nobody in who has not proven that it
knows the token. A message that can be read must be the same after it was written and read again.
After each HONEST_EVERY attempts, each end must serve an honest peer, and no descriptor may be left
over. The first attempt that fails is printed with its number, and ends the program with code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import socket
import struct
import sys
import tempfile
import time
import traceback
import types
import typing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from outlast.engine.cluster.coordinator_sessions import CoordinatorSessions
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.errors import CorruptError
from outlast.model.messages import (
    Admitted,
    Answer,
    Ask,
    AskImage,
    Challenge,
    Enrol,
    ImageHead,
    Knock,
    Message,
    PutImage,
    Welcome,
)
from outlast.model.wire import WIRE_VERSION, FrameReader, decode, encode
from outlast.runtime.agent.dialler import Caller, Dialler
from outlast.runtime.agent.image_server import ImageServer
from outlast.runtime.agent.voter_port import VoterPort
from outlast.runtime.coordinator.agent_listener import AgentListener
from outlast.runtime.loop import Loop
from outlast.runtime.network import trust
from outlast.runtime.network.listener import listen_at
from outlast.runtime.tiers.image import TensorPiece, TensorSpec
from outlast.runtime.tiers.vault import Vault

TOKEN = b"a token of this machine alone, 32 bytes"
KINDS: tuple[type, ...] = typing.get_args(Message)
HONEST_EVERY = 500
WITHIN_S = 5.0
FACTS = Admitted("run-1", "/runs/1", "/runs/1/checkpoints", 5.0)
CALLER = Caller(WIRE_VERSION, "1.0", "none", "b", "digest")
NUMBERS = (0, 1, -1, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, 2**63, -(2**70), 10**25)
FLOATS = (0.0, -0.0, 1.5, -1.0, 1e308, 5e-324)
TEXTS = (
    "",
    "a",
    "none",
    "b",
    "../../etc/passwd",
    "\x00",
    "\x1b[2J",
    "\ud800",
    "é" * 40,
    "x" * 5000,
)
BODIES = (
    b"",
    b"[",
    b"null",
    b"[]",
    b"{}",
    b'"Knock"',
    b'["Knock"]',
    b"[" * 9000,
    b"9" * 9000,
    b"\xff\xfe",
    b'["Ping",' + b"9" * 5000 + b"]",
    b'["Ping",1e999]',
    b'["Ping",NaN]',
    b'["Ping",1]]',
)


# --- what is sent ---------------------------------------------------------------------------------


def value_of(chance: random.Random, kind: typing.Any, depth: int = 0) -> typing.Any:
    """Return a value of a field's type, often a strange one."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return value_of(chance, inner[0], depth)
    if origin in (typing.Union, types.UnionType):
        return value_of(chance, chance.choice(inner), depth)
    if origin is tuple:
        if len(inner) == 2 and inner[1] is ...:
            count = 0 if depth > 3 else chance.choice((0, 0, 1, 2, 5))
            return tuple(value_of(chance, inner[0], depth + 1) for _ in range(count))
        return tuple(value_of(chance, one, depth + 1) for one in inner)
    if dataclasses.is_dataclass(kind):
        return message_of(chance, typing.cast(type, kind), depth + 1)
    match kind:
        case types.NoneType:
            return None
        case _ if kind is bool:
            return chance.random() < 0.5
        case _ if kind is int:
            return chance.choice((*NUMBERS, chance.randrange(100)))
        case _ if kind is float:
            return chance.choice((*FLOATS, chance.random()))
        case _ if kind is str:
            return chance.choice((*TEXTS, f"{chance.getrandbits(256):064x}"))
    raise TypeError(f"no value of {kind}")


def message_of(chance: random.Random, kind: type, depth: int = 0) -> typing.Any:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [one.name for one in dataclasses.fields(kind)]
    return kind(*(value_of(chance, hints[name], depth) for name in fields))


def frame_of(chance: random.Random) -> bytes:
    """Return the bytes of a frame, most often of a whole message."""
    if chance.random() < 0.15:
        body = chance.choice((*BODIES, chance.randbytes(chance.randrange(200))))
        return len(body).to_bytes(4, "big") + body
    while True:
        try:
            return encode(message_of(chance, chance.choice(KINDS)))
        except (CorruptError, UnicodeEncodeError):
            continue  # too long, or no text that can be written: another one


def spoilt(chance: random.Random, data: bytes) -> bytes:
    """Return the bytes unchanged, or with some of them changed, left out, doubled or cut off."""
    out = bytearray(data)
    for _ in range(chance.choice((0, 0, 1, 1, 2, 6))):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(5):
            case 0 if at < len(out):
                out[at] = chance.choice((0, 0x5B, 0x22, 0x2C, 0x7F, 0xFF, chance.randrange(256)))
            case 1:
                del out[at : at + chance.randrange(9)]
            case 2:
                out[at:at] = out[at : at + chance.randrange(40)]
            case 3:
                del out[at:]
            case 4:
                out[0:4] = chance.choice((0, 3, 2**24, 2**31, 2**32 - 1)).to_bytes(4, "big")
    return bytes(out)


def pieces(chance: random.Random, data: bytes) -> Iterator[bytes]:
    """Yield the bytes in pieces of any length, but in forty at most."""
    at, least = 0, max(1, len(data) // 40)
    while at < len(data):
        length = chance.choice((least, least + chance.randrange(64), len(data)))
        yield data[at : at + length]
        at += length


# --- what it is sent to ---------------------------------------------------------------------------


class Ear:
    """Receive what a dialler reports. Count how often it took a peer for the leading node."""

    def __init__(self) -> None:
        self.admitted = 0

    def on_admitted(self, facts: Admitted) -> None:
        self.admitted += 1

    def on_refused(self, reason: str) -> None: ...
    def on_link(self, message: Message) -> None: ...
    def on_broken(self) -> None: ...


class Peer:
    """This program's end of one connection."""

    def __init__(self, loop: Loop, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = loop
        self._reader = FrameReader()
        self._heard: list[Message] = []
        sock.settimeout(0)

    def say(self, data: bytes) -> bool:
        """Send all of it. Return False if the other end has closed, or takes no more."""
        end_s = time.monotonic() + WITHIN_S
        while data and time.monotonic() < end_s:
            self._loop.turn(0)
            try:
                data = data[self.sock.send(data) :]
            except BlockingIOError:
                continue
            except OSError:
                return False
        return not data

    def hear(self) -> Message | None:
        """Return the next message of the other end; None if it sends none."""
        end_s = time.monotonic() + WITHIN_S
        while not self._heard and time.monotonic() < end_s:
            self._loop.turn(0)
            try:
                data = self.sock.recv(65_536)
            except BlockingIOError:
                continue
            except OSError:
                return None
            if not data:
                return None
            self._heard += self._reader.feed(data)
        return self._heard.pop(0) if self._heard else None

    def end(self, *, reset: bool = False) -> None:
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Ends:
    """The four ends, open in this process."""

    def __init__(self, folder: Path) -> None:
        self.loop = Loop()
        self.key = trust.image_key(TOKEN, "none")
        self.answered = 0  # questions that the voter has passed on
        coordinator = Coordinator(options=CoordinatorOptions(2, Restart(), nodes=2))
        self.leader = AgentListener(
            self.loop,
            CoordinatorSessions(coordinator, epoch=1, lease_s=5.0),
            peers=64,
            owner=lambda output: None,
            token=TOKEN,
            admit=lambda knock: FACTS if knock.wire == WIRE_VERSION else "another version",
        )
        self.voter = VoterPort(self.loop, "none", FACTS, token=TOKEN, answer=self._answer)
        self.vault = Vault.create(folder / "vault", "none")
        self.vault.reserve_transfer(1 << 17)
        piece = TensorPiece(TensorSpec("weights", "U8", (1 << 16,)), memoryview(bytes(1 << 16)))
        self.vault.write_transfer(3, 7, [piece], {})
        found = self.vault.sealed_transfer(None, 7)
        assert found is not None
        self.seal = found[1].pack().hex()
        self.images = ImageServer(self.loop, self.vault, key=self.key)
        self.evil = listen_at("127.0.0.1", 0)
        host, port = self.images.listen("127.0.0.1").rsplit(":", 1)
        voter_host, voter_port = self.voter.listen("127.0.0.1").rsplit(":", 1)
        self.at = {
            "leader": self.leader.open(),
            "voter": (voter_host, int(voter_port)),
            "images": (host, int(port)),
        }

    def _answer(self, message: Message) -> Message | None:
        self.answered += 1
        return Answer(message.number, False, 0, "", 0, 0) if isinstance(message, Ask) else None

    def connect(self, end: str) -> Peer:
        return Peer(self.loop, socket.create_connection(self.at[end], timeout=WITHIN_S))

    def knows(self, end: str) -> int:
        """Return how many peers the end has let in: of the leader those of now, else all so far."""
        return {"leader": self.leader.nodes, "voter": self.answered}.get(end, 0)

    # --- an attempt -------------------------------------------------------------------------------

    def attempt(self, chance: random.Random) -> str:
        """Send one stream of bytes to one end. Return the name of the end."""
        check_round(frame_of(chance))
        end = chance.choice((*self.at, "dialler"))
        insider = chance.random() < 0.5
        frames = b"".join(frame_of(chance) for _ in range(chance.choice((1, 1, 2, 4))))
        if end == "dialler":
            self._spoil_dialler(chance, frames, insider=insider)
            return end
        peer, before = self.connect(end), self.knows(end)
        try:
            if chance.random() < 0.8:
                knows = self._shake_hands(peer, end, chance, insider=insider)
            else:
                knows = False
            for piece in pieces(chance, spoilt(chance, frames)):
                if not peer.say(piece):
                    break
            self._settle(chance)
            if not knows and self.knows(end) > before:
                raise AssertionError(f"{end} has let a stranger in")
        finally:
            peer.end(reset=chance.random() < 0.3)
            self._settle(chance)
        return end

    def _settle(self, chance: random.Random) -> None:
        for _ in range(chance.choice((1, 3, 10))):
            self.loop.turn(0)

    def _shake_hands(self, peer: Peer, end: str, chance: random.Random, *, insider: bool) -> bool:
        """Go through the handshake, all of it or a part. Return whether the token was proven."""
        token = self.key if end == "images" else TOKEN
        first: Message = CALLER.knock()
        if end == "images":
            first = self._asks_for_image(chance)
        try:
            opening = encode(first)
        except (CorruptError, UnicodeEncodeError):
            return False
        if not peer.say(opening if insider else spoilt(chance, opening)):
            return False
        if not insider and chance.random() < 0.5:
            return False  # this peer does not answer the challenge, and goes on
        question = peer.hear() if insider else Challenge(trust.nonce(), trust.nonce())
        if not isinstance(question, Challenge):
            return False
        proof = trust.prove(question, node="b", token=token if insider else b"another")
        peer.say(encode(proof))
        if insider and end == "leader" and chance.random() < 0.5:
            enrol = encode(Enrol("b", 1 + chance.getrandbits(40), *REST_OF_ENROL))
            peer.say(enrol if chance.random() < 0.5 else spoilt(chance, enrol))
        return insider

    def _asks_for_image(self, chance: random.Random) -> AskImage | PutImage:
        """Return a question that opens the handshake, often about the image that there is."""
        asked = message_of(chance, chance.choice((AskImage, PutImage)))
        known = {"seal": self.seal} if chance.random() < 0.5 else {}
        if isinstance(asked, AskImage):
            if chance.random() < 0.5:
                known |= {"generation": None, "step": 7, "rank": -1, "stripe": -1}
            return dataclasses.replace(asked, **known)
        if chance.random() < 0.5:
            known |= {"rank": chance.randrange(4), "generation": chance.randrange(4)}
        return dataclasses.replace(asked, **known)

    def _spoil_dialler(self, chance: random.Random, frames: bytes, *, insider: bool) -> None:
        ear = Ear()
        dialler = Dialler(self.loop, self.evil.getsockname(), CALLER, ear, token=TOKEN)
        dialler.dial()
        self.evil.settimeout(WITHIN_S)
        sock, _ = self.evil.accept()
        peer = Peer(self.loop, sock)
        try:
            knock = peer.hear() if insider or chance.random() < 0.5 else None
            if isinstance(knock, Knock) and insider:
                peer.say(encode(trust.challenge(knock.nonce, token=TOKEN)))
                peer.hear()
            for piece in pieces(chance, spoilt(chance, frames)):
                if not peer.say(piece):
                    break
            self._settle(chance)
            if not insider and ear.admitted:
                raise AssertionError("the dialler took a stranger for the node that leads")
        finally:
            dialler.close()
            peer.end(reset=chance.random() < 0.3)
            self._settle(chance)

    # --- honest peers -----------------------------------------------------------------------------

    def serve_the_honest(self) -> None:
        """Check that an honest peer of each end gets what it asks for."""
        for end in self.at:
            peer = self.connect(end)
            try:
                found = self._is_served(peer, end)
            finally:
                peer.end()
            if not found:
                raise AssertionError(f"{end} does not serve an honest peer any more")
        ear = Ear()
        dialler = Dialler(self.loop, self.at["leader"], CALLER, ear, token=TOKEN)
        dialler.dial()
        done = self.loop.run_until(lambda: bool(ear.admitted), within_s=WITHIN_S)
        dialler.close()
        if not done:
            raise AssertionError("the dialler does not reach an honest leader any more")
        self.loop.run_until(lambda: self.leader.nodes == 0, within_s=WITHIN_S)

    def _is_served(self, peer: Peer, end: str) -> bool:
        if end == "images":
            peer.say(encode(AskImage(trust.nonce(), None, 7, 0, "")))
            question = peer.hear()
            assert isinstance(question, Challenge), question
            peer.say(encode(trust.prove(question, node="b", token=self.key)))
            return isinstance(peer.hear(), ImageHead)
        knock = CALLER.knock()
        peer.say(encode(knock))
        question = peer.hear()
        if not isinstance(question, Challenge) or not trust.answers(
            question, knock.nonce, token=TOKEN
        ):
            return False
        peer.say(encode(trust.prove(question, node="honest", token=TOKEN)))
        if not isinstance(peer.hear(), Admitted):
            return False
        if end == "voter":
            peer.say(encode(Ask(1)))
            return isinstance(peer.hear(), Answer)
        peer.say(encode(Enrol("honest", 2, *REST_OF_ENROL)))
        return isinstance(peer.hear(), Welcome)


# all of an Enrol after node and session: a node with room for a rank, and with nothing else
REST_OF_ENROL = (1, 0, 0, 0, None, (), (), (), "", 0.0)


def check_round(frame: bytes) -> None:
    """Check that a message that can be read is the same after it was written and read again."""
    body = frame[4:]
    try:
        message = decode(body)
    except CorruptError:
        return
    if decode(encode(message)[4:]) != message and "nan" not in repr(message):
        raise AssertionError(f"{message!r} is not read as it was written")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def open_ends() -> Iterator[Ends]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="outlast-fuzz-") as folder:
        yield Ends(Path(folder))


def fuzz(*, seed: int, first: int, minutes: float, attempts: int | None) -> Counter[str]:
    """Make attempts until the time is over. Raise what the first one raises that fails."""
    done: Counter[str] = Counter()
    end_s = time.monotonic() + 60 * minutes
    with open_ends() as ends:
        ends.serve_the_honest()
        most = descriptors() + 8
        number = first
        while time.monotonic() < end_s and (attempts is None or number < first + attempts):
            try:
                done[ends.attempt(random.Random(f"{seed} {number}"))] += 1
                if number % HONEST_EVERY == 0:
                    ends.serve_the_honest()
                    if descriptors() > most:
                        raise AssertionError(f"{descriptors()} descriptors are open, not {most}")
            except BaseException:
                print(f"attempt {number} of seed {seed} failed", file=sys.stderr)
                raise
            number += 1
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=1, help="the number of the first attempt")
    parser.add_argument("--attempts", type=int, help="make so many, if there is time")
    args = parser.parse_args()
    began_s = time.monotonic()
    try:
        done = fuzz(seed=args.seed, first=args.first, minutes=args.minutes, attempts=args.attempts)
    except Exception:  # boundary: the fuzzer looks for whatever is raised
        traceback.print_exc()
        return 1
    lasted_s = time.monotonic() - began_s
    told = ", ".join(f"{count:,} {end}" for end, count in sorted(done.items()))
    print(f"{done.total():,} attempts in {lasted_s:.0f} s, none failed ({told})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
