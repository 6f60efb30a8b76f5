"""Links between hosts carry nothing, in one direction or in both.

The hosts are network namespaces on this machine, as in test_hosts.py. To cut the link between two
hosts, one is given a wrong hardware address for the other. Both still reach the host that leads.
`Hosts.mute` drops all that a host sends, and `Hosts.deafen` all that is sent to it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.model import limits
from outlast.runtime.drill.drill_hosts import Hosts, may_be_made
from tests.drills._host_run import HostRun
from tests.drills._run import CalmRun

pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"),
]
CUT_S = 25.0  # longer than the shortest deadline of a hang
NOBODY = "02:00:00:00:00:99"
# A program that sends a byte each tenth of a second, and prints how many are not acknowledged.
SENDS = """
import socket, sys, time
from outlast.runtime.worker.communication.peer_ends import unacknowledged_bytes
sock = socket.create_connection((sys.argv[1], 4000), timeout=20)
while True:
    sock.send(b"x")
    print(unacknowledged_bytes(sock), flush=True)
    time.sleep(0.1)
"""
# A program that accepts one connection, and reads nothing.
TAKES = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 4000))
print("listens", flush=True)
held = listener.accept()
time.sleep(600)
"""
BOTH = ((1, 2), (2, 1))
BOTH_OF_TWO = ((0, 1), (1, 0))
TOWARDS = re.compile(r"([\d,]+) bytes? not acknowledged towards node (\w+) \(from (\w+)\)")


def at(hosts: Hosts, host: int, *words: str, out: Path) -> subprocess.Popen[bytes]:
    with out.open("wb") as file:
        return hosts.start(host, list(words), out=file)


def cut(hosts: Hosts, ways: tuple[tuple[int, int], ...], out: Path) -> None:
    """Let nothing through from the first to the second host of each pair."""
    for host, far in ways:
        words = ("ip", "neigh", "replace", hosts.address(far), "lladdr", NOBODY, "dev", "eth0")
        assert at(hosts, host, *words, "nud", "permanent", out=out).wait(20) == 0, out.read_text()


def mend(hosts: Hosts, ways: tuple[tuple[int, int], ...], out: Path) -> None:
    for host, far in ways:
        words = ("ip", "neigh", "del", hosts.address(far), "dev", "eth0")
        assert at(hosts, host, *words, out=out).wait(20) == 0, out.read_text()


def numbers(out: Path) -> list[int]:
    return [int(line) for line in out.read_text().split("\n")[:-1]]


def until(condition: Callable[[], object], out: Path, within_s: float = 40.0) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, out.read_text()[-200:]
        time.sleep(0.05)


def test_the_kernel_tells_of_a_link_that_carries_nothing(tmp_path: Path) -> None:
    """A peer that only reads nothing is not cut off. After a cut the peer acknowledges again."""
    out, other = tmp_path / "sends", tmp_path / "other"
    with Hosts(2) as hosts:
        at(hosts, 1, sys.executable, "-u", "-c", TAKES, hosts.address(1), out=other)
        until(lambda: "listens" in other.read_text(), other)
        at(hosts, 0, sys.executable, "-c", SENDS, hosts.address(1), out=out)
        until(lambda: len(numbers(out)) >= 3, out)
        assert {*numbers(out)} == {0}
        cut(hosts, BOTH_OF_TWO, tmp_path / "ip")
        until(lambda: numbers(out)[-1] > 10, out)
        grown = [one for one in numbers(out) if one]
        assert grown == list(range(grown[0], grown[0] + len(grown))), "a byte a time"
        mend(hosts, BOTH_OF_TWO, tmp_path / "ip")
        until(lambda: numbers(out)[-1] == 0, out)


@pytest.mark.parametrize("ways", [BOTH, ((1, 2),)], ids=["both directions", "one direction"])
def test_no_rank_is_blamed_for_a_link_that_carries_nothing(
    tmp_path: Path, three_hosts: Hosts, calm_run: CalmRun, ways: tuple[tuple[int, int], ...]
) -> None:
    """Method: three hosts train, with a rank each. The link between hosts 1 and 2 carries nothing
    for longer than the deadline of a hang. No process is killed, and a warning names the link. Once
    it is mended, training goes on, and ends with the weights of an undisturbed run.
    """
    arguments = ("--steps", 600)
    calm = calm_run("quick.py", "--dropout", 0, *arguments, workers=3).digests
    flags = ("--lease", "3")
    run = HostRun(three_hosts, tmp_path, *arguments, nodes=3, spares=0, flags=flags, within_s=280.0)
    run.until(lambda: min(map(run.step_of, range(3))) >= 20, "step 20")
    pids = {rank: pid for rank, _, pid in run.commits}
    cut(three_hosts, ways, tmp_path / "ip")
    began_s, stood = time.monotonic(), run.step_of(0)
    while time.monotonic() < began_s + CUT_S:
        time.sleep(0.2)
    assert run.step_of(0) <= stood + 5, "the link carried something"
    run.until(lambda: "not acknowledged" in run.output(0), "a warning")
    mend(three_hosts, ways, tmp_path / "ip")
    codes = run.finish()
    assert codes == dict.fromkeys(range(3), 0), f"{codes}\n{run}"
    assert run.digests == calm, str(run)
    assert {rank: pid for rank, _, pid in run.commits} == pids, str(run)
    report = run.report()
    assert report["interruptions"] == [], str(run)
    (warning,) = (one for one in report["warnings"] if "not acknowledged" in one)
    named = {(source, far) for _, far, source in TOWARDS.findall(warning)}
    assert ("host1", "host2") in named, warning
    assert named <= {("host1", "host2"), ("host2", "host1")}, warning
    assert "no process is killed" in warning
    assert "after 120 s the ranks of one node move, if they have room elsewhere" in warning


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ways", [BOTH, ((1, 2),)], ids=["both directions", "one direction"])
def test_ranks_move_off_a_node_behind_a_link_that_stays_cut(
    tmp_path: Path, calm_run: CalmRun, ways: tuple[tuple[int, int], ...]
) -> None:
    """Three hosts with a rank each train, and a fourth stands ready. The link between hosts 1 and 2
    is never mended. After two minutes rank 2 moves to host 3, and no other process is killed. Host
    2 is the last by name, and stays in the run without a rank.
    """
    arguments = ("--steps", 300)
    calm = calm_run("quick.py", "--dropout", 0, *arguments, workers=3).digests
    with Hosts(4) as hosts:
        run = HostRun(hosts, tmp_path, *arguments, nodes=3, spares=1, within_s=500.0)
        run.until(lambda: min(map(run.step_of, range(3))) >= 20, "step 20")
        before = {rank: pid for rank, _, pid in run.commits}
        cut(hosts, ways, tmp_path / "ip")
        began_s = time.monotonic()
        stood = max(map(run.step_of, range(3)))
        run.until(lambda: run.step_of(0) > stood + 1, "a step without the link")
        waited_s = time.monotonic() - began_s
        codes = run.finish()
    assert codes == dict.fromkeys(range(4), 0), f"{codes}\n{run}"
    assert run.digests == calm, str(run)
    after = {rank: pid for rank, _, pid in run.commits}
    assert (after[0], after[1]) == (before[0], before[1]), str(run)
    assert waited_s >= limits.CUT_FOR_GOOD_S, "a flap would have cost a node its rank"
    assert waited_s <= 2 * limits.CUT_FOR_GOOD_S, f"{waited_s:.0f} s"
    steps = [step for rank, step, _ in run.commits if rank == 2]
    assert steps == sorted(set(steps)), f"a step was committed twice: {steps}\n{run}"
    report = run.report()
    (gone,) = report["interruptions"]
    assert (gone["ranks"], gone["steps_lost"]) == ([2], 0), gone
    link = "nodes host1 and host2 cannot reach each other, for 120 s"
    assert f"node host2 is given up: {link}" in gone["reason"], gone
    said = " ".join(str(one) for one in report["verdicts"])
    for text in (said, run.output(0)):
        assert f"node host2 is given up: {link}" in text, text
    assert "node host2 is given no more work; its ranks move away" in run.output(0), str(run)


def test_a_group_that_cannot_be_connected_names_the_link(tmp_path: Path, calm_run: CalmRun) -> None:
    """Host 1 is killed, and its rank moves to host 3, which cannot reach host 2 for a while. The
    workers report which node does not answer, so no attempt is charged to a budget of the run. Once
    the link is mended, training goes on.
    """
    arguments = ("--steps", 300)
    calm = calm_run("quick.py", "--dropout", 0, *arguments, workers=3).digests
    ways, link = ((2, 3), (3, 2)), "nodes host2 and host3 cannot reach each other"
    with Hosts(4) as hosts:
        run = HostRun(
            hosts, tmp_path, *arguments, nodes=3, spares=1, flags=("--max-restarts", "1"),
            within_s=280.0,
        )  # fmt: skip  # one argument a line would hide the story
        run.until(lambda: min(map(run.step_of, range(3))) >= 20, "step 20")
        pids = {rank: pid for rank, _, pid in run.commits}
        cut(hosts, ways, tmp_path / "ip")
        hosts.kill(1)
        del run.processes[1]
        began_s, stood = time.monotonic(), run.step_of(0)
        while time.monotonic() < began_s + 2 * CUT_S:
            time.sleep(0.2)
        assert run.step_of(0) <= stood + 5, "the link carried something"
        mend(hosts, ways, tmp_path / "ip")
        codes = run.finish()
    assert codes == dict.fromkeys((0, 2, 3), 0), f"{codes}\n{run}"
    assert run.digests == calm, str(run)
    now = {rank: pid for rank, _, pid in run.commits}
    assert (now[0], now[2]) == (pids[0], pids[2]), str(run)
    (lost,) = run.report()["interruptions"]
    assert lost["ranks"] == [1], lost
    assert link in lost["reason"], lost


@pytest.mark.parametrize("way", ["mute", "deafen"])
def test_a_host_whose_link_carries_one_direction_only_is_replaced(
    tmp_path: Path, three_hosts: Hosts, calm_run: CalmRun, way: str
) -> None:
    """All that host 1 sends, or all that is sent to it, gets lost for good. A third host takes over
    its rank, and the verdict names host 1. Host 0 may have sent it something that was still on its
    way. Then the verdict says that this was not acknowledged. Or host 0 only waited for host 1.
    """
    arguments = ("--steps", 200)
    calm = calm_run("quick.py", "--dropout", 0, *arguments, workers=2).digests
    run = HostRun(three_hosts, tmp_path, *arguments, nodes=2, spares=1, within_s=200.0)
    run.until(lambda: run.step_of(1) >= 20, "step 20")
    getattr(three_hosts, way)(1)
    del run.processes[1]
    codes = run.finish()
    assert codes == {0: 0, 2: 0}, f"{codes}\n{run}"
    assert run.digests == calm, str(run)
    steps = [step for rank, step, _ in run.commits if rank == 1]
    assert steps == sorted(set(steps)), f"a step was committed twice: {steps}\n{run}"
    report = run.report()
    (lost,) = report["interruptions"]
    assert (lost["ranks"], lost["steps_lost"]) == ([1], 0), lost
    said = " ".join(str(one) for one in report["verdicts"])
    assert "node host1 was not heard of until its lease was void" in said, said
    named = [(source, far) for _, far, source in TOWARDS.findall(lost["reason"])]
    assert named in ([], [("host0", "host1")]), lost
    assert ("not acknowledged towards node host1" in said) == bool(named), said
