"""What a run listens on, and that no part of it can be reached through another interface."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.errors import UsageError
from outlast.model.messages import StoreUp
from outlast.runtime.network.listener import meeting_address
from tests.app.command import outlast_anew
from tests.drills._pids import below
from tests.drills._run import Drill
from tests.processes.house import House
from tests.processes.sockets import WILDCARDS, Listening, listening

LOOPBACK = "127.0.0.1"
NOT_HERE = "203.0.113.254"  # reserved for documentation: no machine has it


def own_address() -> str:
    """Return an address of this machine other than loopback, or skip the test if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("203.0.113.1", 9))  # this only looks up a route; nothing is sent
        except OSError:
            pytest.skip("this machine has a loopback interface only")
        return str(one.getsockname()[0])


def on_a_machine_named(name: str) -> tuple[str, ...]:
    """Return a command prefix under which gethostname() says `name`, or skip the test if that is
    impossible.
    """
    if (
        os.geteuid() != 0
        or subprocess.run(["unshare", "-u", "true"], capture_output=True).returncode
    ):
        pytest.skip("only root can give a process another host name")
    return ("unshare", "-u", "sh", "-c", f'hostname {name} && exec "$@"', "sh")


@pytest.mark.parametrize("wildcard", WILDCARDS)
def test_a_socket_on_all_interfaces_is_seen(wildcard: str) -> None:
    """The other tests of this file prove something only if the kernel's tables are read
    correctly.
    """
    with socket.socket(socket.AF_INET6 if ":" in wildcard else socket.AF_INET) as one:
        one.bind((wildcard, 0))
        one.listen()
        assert Listening(os.getpid(), wildcard, one.getsockname()[1]) in listening([os.getpid()])


def store_up(house: House, **options: object) -> tuple[int, StoreUp]:
    """Start a store host. Return its number, and what it reported once it was up."""
    store = house.start(replace(house.spec(), kind="store", rank=-1, options=options))
    house.until(lambda: any(number == store for number, _ in house.record.messages), "StoreUp")
    (up,) = (message for number, message in house.record.messages if number == store)
    assert isinstance(up, StoreUp)
    return store, up


@pytest.mark.parametrize("host", [LOOPBACK, "127.0.0.2", "::1", "localhost", "own"])
def test_a_store_listens_at_its_host_only(house: House, host: str) -> None:
    """Method: a real store host, and the kernel's table of sockets.

    "own" stands for an address of this machine other than loopback. "localhost" may be either of
    two addresses, and a client must still find the store by that name.
    """
    asked = own_address() if host == "own" else host
    store, up = store_up(house, host=asked)
    places = {LOOPBACK, "::1"} if host == "localhost" else {asked}
    (found,) = listening([house.record.started[store]])
    assert (found.address in places, found.port) == (True, up.port), found
    client = f"""
from outlast.runtime.worker.communication import groups
store = groups.connect({asked!r}, {up.port}, 20.0)
store.set("k", "v")
print(store.get("k"))
"""
    assert house.wait_exit(house.script(client)).exit_code == 0, house.text("stderr")
    assert house.text() == "b'v'\n"


def test_the_next_store_may_take_the_port_of_the_last(house: House) -> None:
    """`--master-port` names one port for all stores of a run.

    Method: a client is connected when the first store host is killed, so the kernel still knows a
    connection of that port when the second one asks for it.
    """
    first, up = store_up(house)
    with socket.create_connection((up.host, up.port)):
        house.host.kill(first)
        house.wait_exit(first)
        assert store_up(house, host=up.host, port=up.port)[1] == up


def test_a_store_that_cannot_bind_its_host_ends_at_once(house: House) -> None:
    options = {"host": NOT_HERE}
    store = house.start(replace(house.spec(), kind="store", rank=-1, options=options))
    assert house.wait_exit(store).exit_code == 1


@pytest.mark.parametrize(
    ("host", "says"),
    [
        (NOT_HERE, f"workers cannot meet at {NOT_HERE} port 0: Cannot assign requested address"),
        ("no-such-host.invalid", "workers cannot meet at no-such-host.invalid port 0: "),
        *((host, f"--master-addr {host}: every network could reach the run") for host in WILDCARDS),
    ],
)
def test_a_host_that_workers_cannot_meet_at_is_refused(host: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        meeting_address(host, 0)
    assert str(caught.value).startswith(says)
    assert "hint: leave --master-addr and --master-port out" in str(caught.value)


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot meet at localhost port {port}: Address alr"):
            meeting_address("localhost", port)
    assert meeting_address("localhost", port) == LOOPBACK, "and it is free again"
    assert meeting_address("[::1]", 0) == "::1"


def test_a_run_whose_workers_cannot_meet_ends_at_once(tmp_path: Path) -> None:
    """Otherwise the run would start one store host after another, for ever."""
    (tmp_path / "script.py").write_text("")
    done = outlast_anew("run", "--master-addr", NOT_HERE, "script.py", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert f"workers cannot meet at {NOT_HERE}" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("master", [pytest.param(LOOPBACK, marks=pytest.mark.drill), "own"])
def test_a_run_listens_on_nothing_but_store_and_gloo(tmp_path: Path, master: str) -> None:
    """A run listens on one port for each of its two stores, and on gloo's port of each rank and
    spare.

    Method: a run of two ranks and a spare on a machine whose name resolves to its outer address,
    because gloo uses that name by default. Once spare and store stand ready and training goes on,
    the test checks every listening socket of the launcher and of all processes below it.
    """
    own = own_address()
    asked = own if master == "own" else LOOPBACK
    flags = ("--spares", 1, "--master-addr", asked)
    options = {"workers": 2, "before": on_a_machine_named(own)}
    steps = ("--steps", 100_000, "--pause", 0.1)
    with Drill(tmp_path, "ddp.py", *steps, flags=flags, **options) as drill:
        drill.until(drill.parked, "a spare")
        drill.until(lambda: drill.step >= 3, "three steps")
        drill.until(lambda: stores_that_listen(drill) == 2, "a second store that stands ready")
        stores = set(drill.children("outlast-store"))
        launcher, zygote = drill.process.pid, drill.zygote()
        ranks = {drill.pid_of(0), drill.pid_of(1)}
        (spare,) = drill.parked()
        everything = listening([launcher, *below(launcher)])
    found = [one for one in everything if one.port]  # without Unix sockets, which have no port
    (control,) = [one for one in everything if not one.port]
    assert (control.pid, Path(control.address).name) == (launcher, "control")
    assert {one.address for one in found if one.pid in stores} == {asked}, found
    assert {one.address for one in found if one.pid not in stores} == {LOOPBACK}, found
    assert {one.pid for one in found} == {spare} | stores | ranks, (found, launcher, zygote)
    assert len([one for one in found if one.pid in stores]) == 2, "one port each"


def stores_that_listen(drill: Drill) -> int:
    """Count the run's store hosts that listen by now. One is in use, and the next one is started
    after it.
    """
    return len({one.pid for one in listening(drill.children("outlast-store"))})


def test_a_script_that_runs_alone_listens_on_loopback_only(tmp_path: Path) -> None:
    """`python train.py` makes a group of one rank for DDP, which no other process has to reach.

    Method: on a machine whose name resolves to its outer address, the script prints what it listens
    on.
    """
    script = tmp_path / "alone.py"
    script.write_text(
        "import os, torch, outlast\n"
        "from tests.processes.sockets import listening\n"
        "outlast.join().replicate(torch.nn.Linear(2, 2))\n"
        "print(*{one.address for one in listening([os.getpid()])})\n"
        "print(os.environ.get('GLOO_SOCKET_IFNAME'))\n"
    )
    said = run_python(script, before=on_a_machine_named(own_address()))
    assert said == [LOOPBACK, "None"]


def run_python(script: Path, *, before: Sequence[str]) -> list[str]:
    """Run a script that may import this package's tests, and return the lines that it prints."""
    kept = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    env = kept | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [*before, sys.executable, str(script)],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
