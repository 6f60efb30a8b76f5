"""How many living hosts are taken for lost while all cores are busy, by the length of a lease.

    python benchmarks/busy_lease.py                     leases of 1 and 0.5 s, 10 minutes each
    python benchmarks/busy_lease.py --lease 0.5 --minutes 3 --burners 8 --writers 2
    python benchmarks/busy_lease.py --burners 0 --minutes 1 --lost 0.3

The model of `with_outlast.py` trains on four hosts with a rank each, and a fifth host stands ready.
The hosts are network namespaces on this machine, so it needs root. Meanwhile `--burners` processes
use a core each, with the same priority as the run, and `--writers` processes write 64 MB to the
disk of the run again and again, and sync it. No host fails, so each host that the run takes for
lost is a false alarm, and so is each change of the leader. With `--lost S` all that the second host
sends gets lost for S seconds, after each five seconds. One more process sleeps for 10 ms again and
again. How late it wakes up shows for how long the system keeps a process from a core.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from side_by_side import PEERS, CommitLog, write_result

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made

HOSTS = 4
PORT = 29_500
TOKEN = "a token of this machine alone, 32 bytes"
BEGIN_S = 180.0  # by then all ranks have committed a step
NAP_S = 0.01
PAUSE_S = 5.0
FALSE = ("lost",)  # node events that are false alarms here, because no host fails


def burn() -> None:
    """Use a core until this process is ended."""
    while True:
        sum(range(10_000))


def write(folder: str) -> None:
    """Write to the disk until this process is ended."""
    data = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=folder) as file:
        while True:
            file.seek(0)
            for _ in range(64):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())


def nap(results: Connection) -> None:
    """Sleep again and again until asked. Then send by how many seconds each nap was too long."""
    late_s: list[float] = []
    while not results.poll():
        began_s = time.monotonic()
        time.sleep(NAP_S)
        late_s.append(time.monotonic() - began_s - NAP_S)
    results.send(late_s)


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def train(hosts: Hosts, folder: Path, log: CommitLog, *, lease_s: float) -> None:
    """Start the launchers of all hosts."""
    command = [program("outlast"), "run", "--nnodes", str(HOSTS), "--spare-nodes", "1"]
    command += ["--nproc-per-node", "1", "--rdzv-endpoint", f"{Hosts.address(0)}:{PORT}"]
    command += ["--run-dir", str(folder / "run"), "--lease", str(lease_s)]
    command += [str(PEERS / "with_outlast.py"), "--steps", "1000000"]
    for host in range(HOSTS + 1):
        with (folder / f"host{host}.out").open("wb") as out:
            environment = log.environment({"OUTLAST_TOKEN": TOKEN})
            hosts.start(host, command, out=out, env=environment, cwd=folder)


def report_of(run: Path) -> dict:
    said = subprocess.run(
        [program("outlast"), "report", str(run), "--json"], capture_output=True, timeout=60
    )
    return json.loads(said.stdout)


def lose_for_a_moment(hosts: Hosts, lost_s: float) -> None:
    hosts.mute(1)
    time.sleep(lost_s)
    hosts.mend(1)


def watch(*, lease_s: float, minutes: float, burners: int, writers: int, lost_s: float) -> dict:
    """Train with leases of one length, and return what happened."""
    forked = multiprocessing.get_context("fork")
    ours, theirs = forked.Pipe()
    loads = [forked.Process(target=burn, daemon=True) for _ in range(burners)]
    napper = forked.Process(target=nap, args=(theirs,), daemon=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, Hosts(5) as hosts:
        folder = Path(scratch)
        loads += [
            forked.Process(target=write, args=(scratch,), daemon=True) for _ in range(writers)
        ]
        log = CommitLog(folder / "commits")
        for one in (napper, *loads):
            one.start()
        try:
            train(hosts, folder, log, lease_s=lease_s)
            began = log.wait_for(lambda: len({one.rank for one in log.commits}) == HOSTS, BEGIN_S)
            since_s = time.monotonic()
            before, moments = len(log.commits), 0
            while began and time.monotonic() < since_s + 60 * minutes:
                time.sleep(PAUSE_S)
                if lost_s:
                    lose_for_a_moment(hosts, lost_s)
                    moments += 1
            load = os.getloadavg()
            steps = (len(log.follow()) - before) // HOSTS
            ours.send(0)
            late_s = sorted(ours.recv())
            report = report_of(folder / "run")
        finally:
            for one in (napper, *loads):
                one.kill()
                one.join()
        events = report["node_events"]
        outputs = "".join(
            one.read_text(errors="replace")[-4000:] for one in sorted(folder.glob("host*.out"))
        )
    taken = [one for one in events if one["kind"] in FALSE]
    if taken or not began:
        print(outputs, json.dumps(events, indent=1), file=sys.stderr)
    return {
        "lease_s": lease_s,
        "minutes": minutes,
        "burners": burners,
        "writers": writers,
        "moments": moments,
        "began": began,
        "taken_for_lost": len(taken),
        "leaders": len({one["epoch"] for one in events if one["kind"] == "leads"}),
        "interruptions": len(report["interruptions"]),
        "steps": steps,
        "kinds": sorted({one["kind"] for one in events}),
        "late_median_ms": round(1000 * late_s[len(late_s) // 2], 2),
        "late_99_9_ms": round(1000 * late_s[int(len(late_s) * 0.999)], 1),
        "late_most_ms": round(1000 * late_s[-1], 1),
        "load": [round(one, 1) for one in load],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lease", type=float, nargs="*", default=[1.0, 0.5], help="seconds")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each length of a lease")
    parser.add_argument("--burners", type=int, default=os.cpu_count(), help="each uses a core")
    parser.add_argument("--writers", type=int, default=0, help="processes that write to the disk")
    parser.add_argument("--lost", type=float, default=0.0, help="seconds of lost packets at a time")
    args = parser.parse_args()
    if why := may_be_made():
        print(f"error: no hosts can be made here: {why}", file=sys.stderr)
        return 2
    rows = []
    for lease_s in args.lease:
        row = watch(
            lease_s=lease_s,
            minutes=args.minutes,
            burners=args.burners,
            writers=args.writers,
            lost_s=args.lost,
        )
        rows.append(row)
        print(json.dumps(rows[-1]), flush=True)
    print(f"written to {write_result('busy_lease', {'rows': rows})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
