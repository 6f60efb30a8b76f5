"""For how long TCP carries nothing after packets got lost for less than a second.

    python benchmarks/silence.py

Two hosts are network namespaces on this machine, so it needs root. One sends a line each tenth of a
second, as an agent sends heartbeats. What it sends gets lost for a while (`Hosts.mute`), or its
link is down (`Hosts.cut`). For each try, the longest time between the sending of a line and the
arrival of the next one is printed. For so long the other end has heard nothing new. A node is taken
for lost if that is longer than its lease.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made

SENDS = """
import socket, sys, time
sock = socket.create_connection((sys.argv[1], 4000))
sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while True:
    sock.send(b"%.6f\\n" % time.monotonic())
    time.sleep(0.1)
"""
TAKES = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 4000))
print("listens", flush=True)
sock = listener.accept()[0]
while data := sock.recv(4096):
    print(time.monotonic(), data.split()[-1].decode(), flush=True)
"""
SETTLED_S = 1.5
AFTER_S = 2.5


def heard(out: Path) -> list[tuple[float, float]]:
    """Return when lines arrived, each with the time when the newest of them was sent."""
    rows = [line.split() for line in out.read_text().split("\n")[:-1]]
    return [(float(row[0]), float(row[1])) for row in rows if len(row) == 2]


def silence_s(hosts: Hosts, out: Path, *, way: str, lost_s: float) -> float:
    """Let packets get lost for a while, and return for how long nothing new was heard."""
    time.sleep(SETTLED_S)
    began_s = time.monotonic()
    getattr(hosts, way)(0)
    time.sleep(max(0.0, began_s + lost_s - time.monotonic()))
    hosts.mend(0)
    time.sleep(AFTER_S)
    rows = [row for row in heard(out) if row[0] > began_s - 1]
    return max(after[0] - before[1] for before, after in itertools.pairwise(rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, nargs="*", default=[0.15, 0.25, 0.3, 0.4, 0.5])
    parser.add_argument("--ways", nargs="*", choices=["mute", "cut"], default=["mute", "cut"])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if why := may_be_made():
        print(f"error: no hosts can be made here: {why}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch, Hosts(2) as hosts:
        out = Path(scratch) / "takes"
        with out.open("wb") as file:
            hosts.start(1, [sys.executable, "-c", TAKES, hosts.address(1)], out=file)
        while "listens" not in out.read_text():
            time.sleep(0.05)
        with (Path(scratch) / "sends").open("wb") as file:
            hosts.start(0, [sys.executable, "-c", SENDS, hosts.address(1)], out=file)
        for way, lost_s in itertools.product(args.ways, args.seconds):
            found = [silence_s(hosts, out, way=way, lost_s=lost_s) for _ in range(args.repeats)]
            told = ", ".join(f"{one:.2f}" for one in found)
            print(f"{way} for {lost_s:g} s: nothing new for {told} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
