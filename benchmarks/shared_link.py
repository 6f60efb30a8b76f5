"""What a copy of an image costs a step whose collectives take the same link.

    python benchmarks/shared_link.py [--rate 300mbit] [--rounds 4] [--steps 15] [--queue pfifo_fast]

Workload   Two network namespaces of this process, joined by a link that `tc tbf` limits each way.
           A step sleeps three times for 0.1 s, as if it computed. After each time it exchanges 3 MB
           with the other side, as a collective does. A copy of 11 MB is sent from the beginning of
           the step, and its end waits for the copy. Nothing is trained. It needs root.
Variants   none     no copy is sent
           at-once  a copy that is sent like any other packets
           last     a copy as `--keep peers` sends it: by `send_last`, after all other packets
Method     All variants in turn in each round, and each round begins with another one. The first two
           steps of each do not count. Medians of rounds, and ratios to `none` of the same round.
Limits     The queue of the sending host keeps the order if it has bands. `pfifo_fast`, which is
           Linux's default, and `prio` have. `bfifo` has none, and `last` is like `at-once` there.
"""

from __future__ import annotations

import argparse
import ctypes
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import BinaryIO

from _timing import paired_ratio, summarise
from side_by_side import write_result

from outlast.runtime.drill.drill_hosts import may_be_made
from outlast.runtime.worker.saving.copy_sender import send_last

COMPUTE_S, PARTS = 0.1, 3
EXCHANGED_BYTES, COPIED_BYTES, PIECE_BYTES = 3_000_000, 11_000_000, 1 << 20
HERE, THERE, PORT = "10.77.0.1", "10.77.0.2", 5000
VARIANTS = ("none", "at-once", "last")
FIRST = 2  # steps that are not counted
NEW_NETWORK = 0x40000000  # CLONE_NEWNET


def enter_network() -> None:
    """Give this thread, and what it starts, a network of its own."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "no network namespace can be made")


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def raise_link(device: str, address: str, rate: str, queue: str) -> None:
    """Limit what a device sends, with a queue behind the limit, and bring it up."""
    run("ip", "addr", "add", f"{address}/24", "dev", device)
    run("ip", "link", "set", device, "up")
    limit = ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
    run("tc", "qdisc", "add", "dev", device, "root", "handle", "1:", *limit)
    run("tc", "qdisc", "add", "dev", device, "parent", "1:1", "handle", "10:", *queue.split())


def take(sock: socket.socket, count: int) -> bool:
    """Receive so many bytes. Return False if the other side has closed."""
    while count:
        data = sock.recv(min(PIECE_BYTES, count))
        if not data:
            return False
        count -= len(data)
    return True


def exchange(sock: socket.socket) -> bool:
    """Send and receive as much as one collective does."""
    sending = threading.Thread(target=sock.sendall, args=(bytes(EXCHANGED_BYTES),))
    sending.start()
    done = take(sock, EXCHANGED_BYTES)
    sending.join()
    return done


class Peer:
    """The other side: a thread with a network of its own."""

    def __init__(self, rate: str, queue: str) -> None:
        self.number = 0  # of the thread: `ip` names its network by this
        self.entered, self.joined, self.listens = (threading.Event() for _ in range(3))
        self._link = rate, queue
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        enter_network()
        self.number = threading.get_native_id()
        self.entered.set()
        self.joined.wait()
        raise_link("there", THERE, *self._link)
        with socket.create_server((THERE, PORT)) as listener:
            self.listens.set()
            while True:
                threading.Thread(target=self._answer, args=listener.accept(), daemon=True).start()

    def _answer(self, sock: socket.socket, _: object) -> None:
        with sock:
            if sock.recv(1) == b"t":
                while sock.recv(1) and exchange(sock):
                    pass
            else:
                while take(sock, COPIED_BYTES):
                    sock.sendall(b"k")


def connected(kind: bytes) -> socket.socket:
    sock = socket.create_connection((THERE, PORT))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(kind)
    return sock


def step_s(name: str, training: socket.socket, copy: socket.socket, file: BinaryIO) -> float:
    """Return how long one step takes. It waits for its copy at its end."""

    def send() -> None:
        copy.sendfile(file, 0, COPIED_BYTES)
        take(copy, 1)

    began_s = time.monotonic()
    sending = threading.Thread(target=send)
    if name != "none":
        sending.start()
    for _ in range(PARTS):
        time.sleep(COMPUTE_S)
        training.sendall(b"x")
        exchange(training)
    if name != "none":
        sending.join()
    return time.monotonic() - began_s


def series_s(name: str, steps: int, file: BinaryIO) -> float:
    """Return the median of the steps of one variant."""
    with connected(b"t") as training, connected(b"c") as copy:
        if name == "last":
            send_last(copy)
        took_s = [step_s(name, training, copy, file) for _ in range(FIRST + steps)]
    return statistics.median(took_s[FIRST:])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", default="300mbit", help="of each side, as tc writes it")
    parser.add_argument("--queue", default="pfifo_fast", help="behind the limit, as tc writes it")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=15)
    args = parser.parse_args()
    if why := may_be_made():
        print(f"error: no hosts can be made here: {why}", file=sys.stderr)
        return 2
    enter_network()
    peer = Peer(args.rate, args.queue)
    peer.entered.wait()
    run("ip", "link", "add", "here", "type", "veth", "peer", "name", "there")
    run("ip", "link", "set", "there", "netns", str(peer.number))
    peer.joined.set()
    raise_link("here", HERE, args.rate, args.queue)
    peer.listens.wait()
    steps_s: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.write(bytes(COPIED_BYTES))
        file.flush()
        for number in range(args.rounds):
            first = number % len(VARIANTS)
            for name in VARIANTS[first:] + VARIANTS[:first]:
                steps_s[name].append(series_s(name, args.steps, file))
    for name in VARIANTS:
        ratio = paired_ratio(steps_s[name], steps_s["none"]).text(digits=3, unit="x")
        print(
            f"  {name:<8}{summarise(steps_s[name]).text(scale=1e3, unit=' ms', digits=0)} {ratio}"
        )
    print(f"written to {write_result('shared_link', {'step_s': steps_s})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
