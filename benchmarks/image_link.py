"""How fast an image of state crosses a link between two hosts, beside one plain TCP stream.

    python benchmarks/image_link.py [--bytes N] [--rate 8gbit] [--repeats N]

The hosts are network namespaces on this machine, and `tc tbf` limits what each of them sends. It
needs root.

Variants   copy     a rank's image to the node that keeps a copy of it: `CopySender` and the image
                    server's keeper, as under `--keep peers=1`. From `send` until the other node has
                    sealed it
           fetch    that copy back, as for a rank that has lost its own: `fetch`, into the vault
           there    the same bytes by one TCP connection the same way as `copy`: sendfile from
                    shared memory, recv_into memory that was touched before, one byte back
           back     the same, the same way as `fetch`
Method     All variants in turn in each round, each round beginning with another one. Both slots of
           the copies were written before, so nothing is allocated in what is timed. Medians with
           95 % intervals, ratios of the same round.
Goals      `copy` and `fetch` at 85 % of the plain stream or more. Reached or missed when the whole
           interval says so, else undetermined. Exit code 0, 1 or 3.
Limits     Both hosts share the cores of this machine, and a plain stream uses less of them.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from _timing import Summary, alternate, paired_ratio, summarise
from side_by_side import HOME, write_result

from outlast.model.messages import Regroup
from outlast.model.terms import Cause, Phase
from outlast.runtime.agent.image_server import ImageServer
from outlast.runtime.drill.drill_hosts import Hosts, may_be_made
from outlast.runtime.loop import Loop
from outlast.runtime.network import trust
from outlast.runtime.tiers.image import TensorPiece, TensorSpec
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.worker.saving.copy_sender import CopySender
from outlast.runtime.worker.transfer.image_dialogue import Server
from outlast.runtime.worker.transfer.image_fetch import Wanted, fetch

GOAL = 0.85
PORT = 29_700
RANK, AS = 2, 3  # whose image it is, and as whose it is fetched
KEY = trust.image_key(b"a token of this machine alone, 32 bytes", "image-link")
PIECE = 1 << 20
LIMIT_S = 120.0
PLAN = Regroup(
    1, RANK, 4, "", 0, "none", "start", 0, -1, False, "none", "none", "", 0, None, None
)  # fmt: skip  # the plan of a first generation, without anything to restore
PLAINLY = {"there": "copy", "back": "fetch"}


# --- the host that keeps copies -------------------------------------------------------------------


def keep(size: int, folder: Path) -> None:
    """Serve until this process is killed: images, and plain streams in both directions."""
    loop = Loop()
    server = ImageServer(loop, Vault.create(Path("/dev/shm/kept"), "image-link"), key=KEY)
    plain = socket.create_server((Hosts.address(1), PORT))
    buffer = Path("/dev/shm/plain")
    buffer.write_bytes(os.urandom(PIECE) * (size // PIECE))
    threading.Thread(target=_stream, args=(plain, size, buffer), daemon=True).start()
    (folder / "address.part").write_text(server.listen(Hosts.address(1)))
    (folder / "address.part").rename(folder / "address")
    while True:
        loop.turn(0.5)


def _stream(plain: socket.socket, size: int, buffer: Path) -> None:
    """Take or give `size` bytes on each connection, as its first byte says."""
    memory = memoryview(bytearray(size))
    while True:
        sock = plain.accept()[0]
        with sock, buffer.open("rb") as file:
            if sock.recv(1) == b"t":
                receive(sock, memory)
                sock.sendall(b".")
            else:
                sock.sendfile(file)


def receive(sock: socket.socket, memory: memoryview) -> None:
    """Fill the memory, in pieces as large as those of an image."""
    at = 0
    while at < len(memory):
        count = sock.recv_into(memory[at : at + PIECE])
        assert count, "the stream has ended early"
        at += count


# --- the host whose rank has the image ------------------------------------------------------------


class Session:
    """This is what a sender of copies asks of a worker's session."""

    def __init__(self, vault: Vault) -> None:
        self.vault = vault
        self.machine = types.SimpleNamespace(broken=False)
        self.beacon = types.SimpleNamespace(phase=Phase.VOTE)
        self.book = types.SimpleNamespace(cause=Cause.PRODUCTIVE)
        self.image_key = KEY

    def enter(self, phase: Phase, **_: object) -> None:
        """Do nothing: nobody books the time of this process."""

    def warn(self, text: str) -> None:
        raise SystemExit(text)


class Ends:
    """Both ways of moving an image, from the host that has it. Seconds of each call are kept."""

    def __init__(self, size: int, address: str) -> None:
        self.took_s: dict[str, list[float]] = {}
        self._step = 0
        self._body = memoryview(bytearray(os.urandom(PIECE) * (size // PIECE)))
        self._memory = memoryview(bytearray(size))
        self._server = Server(address, KEY)
        self._own = Vault.create(Path("/dev/shm/own"), "image-link")
        self._own.reserve(RANK, size + PIECE, 1)
        self._own.reserve(AS, size + PIECE, 1)
        self._sender = CopySender(Session(self._own))  # type: ignore[arg-type]
        self._sender.follow(replace(PLAN, keepers=(address,)))
        self._plain = Path("/dev/shm/plain")
        self._plain.write_bytes(self._body)

    def calls(self) -> list[Callable[[], None]]:
        return [self.copy, self.fetch, self.there, self.back]

    def copy(self) -> None:
        self._step += 1
        piece = TensorPiece(TensorSpec("weights", "U8", (len(self._body),)), self._body)
        self._own.write(RANK, generation=1, step=self._step, pieces=[piece], metadata={})
        began_s = time.perf_counter()
        self._sender.send(self._step)
        self._sender.wait()
        self._took("copy", began_s)

    def fetch(self) -> None:
        self._own.forget_after(AS, -1)
        began_s = time.perf_counter()
        wanted = Wanted(None, self._step, RANK, AS, copy=True)
        fetch(self._own, wanted, self._server, lambda: False)
        self._took("fetch", began_s)

    def there(self) -> None:
        began_s = time.perf_counter()
        with socket.create_connection((Hosts.address(1), PORT)) as sock:
            sock.sendall(b"t")
            with self._plain.open("rb") as file:
                sock.sendfile(file)
            assert sock.recv(1) == b"."
        self._took("there", began_s)

    def back(self) -> None:
        began_s = time.perf_counter()
        with socket.create_connection((Hosts.address(1), PORT)) as sock:
            sock.sendall(b"b")
            receive(sock, self._memory)
        self._took("back", began_s)

    def _took(self, name: str, began_s: float) -> None:
        self.took_s.setdefault(name, []).append(time.perf_counter() - began_s)


def move(size: int, repeats: int, folder: Path) -> None:
    """Move images and plain bytes in turn, and write down what each call took."""
    ends = Ends(size, (folder / "address").read_text())
    for _ in range(2):  # both slots at both ends are allocated
        for call in ends.calls():
            call()
    ends.took_s.clear()
    alternate(repeats, ends.calls())
    (folder / "took.part").write_text(json.dumps(ends.took_s))
    (folder / "took.part").rename(folder / "took.json")


# --- both hosts -----------------------------------------------------------------------------------


def measure(size: int, rate: str, repeats: int) -> dict[str, list[float]]:
    """Limit the link, start a process on each host, and return the seconds of each call."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{HOME / 'src'}:{Path(__file__).parent}",
    }
    with ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="outlast-bench-")))
        hosts = closing.enter_context(Hosts(2))
        out = closing.enter_context((folder / "out").open("wb"))

        def start(host: int, *words: object) -> subprocess.Popen[bytes]:
            return hosts.start(host, list(map(str, words)), out=out, env=environment, cwd=folder)

        limit = ("root", "tbf", "rate", rate, "burst", "4mb", "latency", "50ms")
        for host in range(2):
            if start(host, "tc", "qdisc", "add", "dev", "eth0", *limit).wait(20):
                raise SystemExit((folder / "out").read_text())
        given = ("--bytes", size, "--repeats", repeats, "--folder", folder)
        keeper = start(1, sys.executable, __file__, *given, "--host", 1)
        mover = None
        over_s = time.monotonic() + LIMIT_S
        while not (folder / "took.json").exists():
            if mover is None and (folder / "address").exists():
                mover = start(0, sys.executable, __file__, *given, "--host", 0)
            ended = keeper.poll() is not None or (mover is not None and mover.poll())
            if ended or time.monotonic() > over_s:
                raise SystemExit((folder / "out").read_text(errors="replace"))
            time.sleep(0.05)
        took_s: dict[str, list[float]] = json.loads((folder / "took.json").read_text())
    return took_s


def verdict(ratio: Summary) -> str:
    if ratio.low >= GOAL:
        return "reached"
    return "missed" if ratio.high < GOAL else "undetermined"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bytes", type=int, default=256 << 20)
    parser.add_argument("--rate", default="8gbit", help="of the link, as tc writes it")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--host", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    size = max(1, args.bytes // PIECE) * PIECE
    if args.host is not None:
        keep(size, args.folder) if args.host else move(size, args.repeats, args.folder)
        return 0
    if why := may_be_made():
        print(f"error: no hosts can be made here: {why}", file=sys.stderr)
        return 2
    took_s = measure(size, args.rate, args.repeats)
    print(f"{size:,} bytes over a link of {args.rate}, {args.repeats} rounds; GB/s of the median")
    for name, samples in took_s.items():
        print(
            f"  {name:<8}{size / summarise(samples).median / 1e9:.3f} GB/s,"
            f" {summarise(samples).text(digits=3, unit=' s')}"
        )
    verdicts, ratios = [], {}
    for plain, name in PLAINLY.items():
        ratio = paired_ratio(took_s[plain], took_s[name])
        verdicts.append(verdict(ratio))
        ratios[name] = ratio.as_dict()
        print(f"  {name} at {ratio.text()} of a plain stream; goal {GOAL}: {verdicts[-1]}")
    result = {"bytes": size, "rate": args.rate, "seconds": took_s, "ratios": ratios}
    print(f"written to {write_result('image_link', result)}")
    return 1 if "missed" in verdicts else 3 if "undetermined" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
