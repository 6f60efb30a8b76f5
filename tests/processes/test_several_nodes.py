"""The small parts of a run on several nodes: places, the token, the command line, and lives as
messages.
"""

from __future__ import annotations

import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlast.app.launch.nodes import is_several, read_nodes
from outlast.app.launch.run_nodes import find_location, make_vault
from outlast.engine.coordinator.node_membership import NodeMembership
from outlast.errors import UsageError
from outlast.model import gauges, limits, lives
from outlast.model.gauges import Gauges
from outlast.model.messages import Admitted, Logged, LogsAt
from outlast.model.records import Life
from outlast.model.terms import Cause, Tier
from outlast.model.wire import decode, encode
from outlast.runtime.agent.local_slots import LocalSlots
from outlast.runtime.agent.voter_port import VoterPort
from outlast.runtime.coordinator.reported_lives import ReportedLives
from outlast.runtime.loop import Loop
from outlast.runtime.network import routes, token
from outlast.runtime.network.listener import listen_at, listen_in
from outlast.runtime.tiers.lease_page import LeasePage

ASKED: dict[str, Any] = {
    "nnodes": "2",
    "spare_nodes": 1,
    "rdzv_endpoint": "127.0.0.1:29400",
    "node_rank": None,
    "node_name": "n",
    "local_addr": None,
    "join_timeout": None,
    "token_file": None,
    "lease": None,
    "rdzv_id": "none",
    "master_addr": "127.0.0.1",
    "master_port": 29500,
}
FACTS = Admitted("run-1", "/runs/1", "/runs/1/checkpoints", 0.5)
SECRET = "a secret that nobody else knows"


# --- places ---------------------------------------------------------------------------------------


def test_a_rank_from_another_node_gets_a_place_of_its_own() -> None:
    """By its number, rank 5 would have place 1 here, and rank 1 already has that place."""
    slots = LocalSlots(4)
    assert [slots.take(worker, rank) for worker, rank in ((10, 0), (11, 1), (12, 5))] == [0, 1, 2]
    assert slots.take(12, 5) == 2, "a worker keeps its place"
    slots.free(11)
    assert (slots.of(11), slots.take(13, 1)) == (-1, 1)


def test_nodes_go_by_their_names_and_numbers_count_as_numbers() -> None:
    nodes = NodeMembership(local=False)
    for name in ("node10", "node2", "a1"):
        nodes.join(name, 1)
    nodes.put_in_order()
    assert list(nodes) == ["a1", "node2", "node10"]


def test_node_ranks_come_before_names() -> None:
    nodes = NodeMembership(local=False)
    for name, place in (("a", 1), ("b", -1), ("c", 0)):
        nodes.join(name, 1, place=place)
    nodes.put_in_order()
    assert list(nodes) == ["c", "a", "b"]


# --- the token ------------------------------------------------------------------------------------


def test_the_token_leaves_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(token.VARIABLE, SECRET)
    assert token.take_from_environment() == SECRET
    assert token.VARIABLE not in os.environ


def test_a_token_that_others_can_read_or_guess_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(SECRET)
    file.chmod(0o640)
    with pytest.raises(UsageError, match="can be read by others"):
        token.read_token("", str(file))
    file.chmod(0o600)
    assert token.read_token("", str(file)) == SECRET.encode()
    with pytest.raises(UsageError, match="can be guessed"):
        token.read_token("short", "")
    with pytest.raises(UsageError, match="cannot be read"):
        token.read_token("", str(tmp_path / "none"))
    assert token.read_token("", "") is None


# --- the command line -----------------------------------------------------------------------------


def test_one_node_is_not_several() -> None:
    one = {**ASKED, "nnodes": "1:1", "spare_nodes": 0}
    assert not is_several(one)
    assert read_nodes(one, set()) is None


def test_what_a_run_on_several_nodes_is_told() -> None:
    nodes = read_nodes(ASKED, set())
    assert nodes is not None
    assert (nodes.count, nodes.spares, nodes.host, nodes.port) == (2, 1, "127.0.0.1", 29400)
    assert (nodes.place, nodes.lease_s) == (-1, limits.LEASE_S)
    many = read_nodes({**ASKED, "nnodes": "100", "node_rank": 0}, set())
    assert many is not None
    assert (many.place, many.lease_s) == (0, limits.BEAT_S * limits.LEASE_BEATS)
    old = read_nodes({**ASKED, "rdzv_endpoint": ""}, {"master_addr"})
    assert old is not None
    assert (old.host, old.port) == ("127.0.0.1", 29500)


SLURM = {
    "SLURM_TOPOLOGY_ADDR": "core.leaf7.tux12.example.org",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
}


@pytest.mark.parametrize(
    ("given", "environment", "domain"),
    [
        (None, {}, ""),
        ("rack-7", SLURM | {"OUTLAST_NODE_DOMAIN": "zone-b"}, "rack-7"),
        ("", SLURM | {"OUTLAST_NODE_DOMAIN": "zone-b"}, ""),
        (None, SLURM | {"OUTLAST_NODE_DOMAIN": "zone-b"}, "zone-b"),
        (None, SLURM | {"OUTLAST_NODE_DOMAIN": ""}, "core.leaf7"),
        (None, SLURM, "core.leaf7"),
        (None, SLURM | {"SLURM_TOPOLOGY_ADDR": "s0.tux12"}, ""),
        (None, SLURM | {"SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}, "core"),
        (None, {"SLURM_TOPOLOGY_ADDR": "tux12", "SLURM_TOPOLOGY_ADDR_PATTERN": "node"}, ""),
        (None, {"SLURM_TOPOLOGY_ADDR": "core.leaf7.tux12"}, ""),
        (None, SLURM | {"SLURM_TOPOLOGY_ADDR": "..tux12"}, ""),
    ],
)
def test_a_node_names_its_domain_as_it_is_told(
    monkeypatch: pytest.MonkeyPatch, given: str | None, environment: dict[str, str], domain: str
) -> None:
    """The flag comes first, then the variable, then what Slurm says of the node's switches."""
    for name in (*SLURM, "OUTLAST_NODE_DOMAIN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    nodes = read_nodes({**ASKED, "node_domain": given}, set())
    assert nodes is not None
    assert nodes.domain == domain


@pytest.mark.parametrize("name", ["a\nb", " rack", "x" * 201, "\x1b[31m"])
@pytest.mark.parametrize("by", ["--node-domain", "OUTLAST_NODE_DOMAIN"])
def test_what_cannot_be_a_domain_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, by: str
) -> None:
    if by == "OUTLAST_NODE_DOMAIN":
        monkeypatch.setenv(by, name)
    with pytest.raises(UsageError, match=f"{by} .*is no name of a failure domain"):
        read_nodes({**ASKED, "node_domain": name if by[0] == "-" else None}, set())


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"nnodes": "2:4"}, "the number of ranks stays the same"),
        ({"rdzv_endpoint": ""}, "have to know where they meet"),
        ({"rdzv_endpoint": "head:99999"}, "have to know where they meet"),
        ({"port_range": "30000"}, "--port-range 30000: is not a range of ports"),
        ({"port_range": "30019-30000"}, "is not a range of ports"),
        ({"port_range": "30000-30003"}, "a launcher needs 5 ports"),
    ],
)
def test_options_that_cannot_work_are_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_nodes({**ASKED, **changed}, set())


def test_an_endpoint_that_a_network_reaches_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = read_nodes(ASKED, set())
    assert nodes is not None
    monkeypatch.setattr(routes, "resolve", lambda host: "192.0.2.1")
    with pytest.raises(UsageError, match="has no token"):
        find_location(replace(nodes, host="head"), has_token=False)
    monkeypatch.setattr(routes, "resolve", lambda host: "127.0.1.1")
    with pytest.raises(UsageError, match="for this node only"):
        find_location(replace(nodes, host="head"), has_token=True)


def test_of_several_nodes_on_one_machine_one_leads() -> None:
    """The second launcher starts before the first one has admitted any node."""
    with listen_at("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    nodes = read_nodes({**ASKED, "rdzv_endpoint": f"127.0.0.1:{port}"}, set())
    assert nodes is not None
    first, second = (find_location(nodes, has_token=False) for _ in range(2))
    assert first.listening is not None
    with first.listening:
        assert (first.leads, second.leads) == (True, False)


def test_ports_to_listen_on_are_taken_from_the_port_range() -> None:
    """Ports in use are skipped, and a range without a free port is named in the error."""
    nodes = read_nodes({**ASKED, "port_range": "30000-30019"}, set())
    assert nodes is not None
    assert nodes.ports == (30000, 30019)
    with listen_at("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"--port-range {port}-{port}: all of these ports"):
            listen_in("127.0.0.1", (port, port))
        if port < 65535:
            with listen_in("127.0.0.1", (port, 65535)) as other:
                assert other.getsockname()[1] > port
    loop = Loop()
    voter = VoterPort(loop, "none", FACTS, token=None, answer=lambda message: None)
    try:
        where = voter.listen("127.0.0.1", (port, port))
        assert where == f"127.0.0.1:{port}"
    finally:
        voter.close()
        loop.close()


def test_loopback_belongs_to_this_node() -> None:
    assert routes.is_ours("127.0.0.1")
    assert not routes.is_ours("192.0.2.1")
    assert routes.own_address("127.0.0.1") == "127.0.0.1"
    assert routes.interface_of("127.0.0.1") == "lo"


def test_the_remains_of_a_killed_launcher_do_not_block_its_name(tmp_path: Path) -> None:
    """The launcher is started again on the same machine under the name that it had. A launcher that
    lives has locked its vault, and keeps the name.
    """
    path = tmp_path / "vault"
    pid = os.fork()
    if pid == 0:  # the launcher that is killed: it closes nothing in order
        make_vault(path, "run-1", "b")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert path.is_dir(), "it has left its vault"
    vault = make_vault(path, "run-1", "b")
    try:
        with pytest.raises(UsageError, match="--node-name b: another node of this run"):
            make_vault(path, "run-1", "b")
        assert path.is_dir()
    finally:
        vault.remove()


# --- lives and leases -----------------------------------------------------------------------------

LIFE = Life(
    7,
    70,
    "b",
    1,
    "rank",
    10.0,
    11.0,
    None,
    {Cause.PRODUCTIVE: 3.0, Cause.OTHER: 0.5},
    Cause.PRODUCTIVE,
    stalls={Tier.MEMORY: 0.1, Tier.PEER: 0.25},
)


def test_a_life_is_sent_unchanged() -> None:
    said = decode(encode(lives.message_of(LIFE))[4:])
    assert lives.life_of(said) == LIFE  # type: ignore[arg-type]  # it is what was encoded
    newer = replace(said, tiers=("memory", "moon"), stalls=(1.0, 2.0))  # type: ignore[type-var]
    assert lives.life_of(newer).stalls == {Tier.MEMORY: 1.0}  # type: ignore[arg-type]


def test_logged_values_are_sent_within_the_limits_of_a_page() -> None:
    """A value that is not a number is sent as such. What another agent sends is cut."""
    said = Gauges(100, 7, {"loss": 0.5, "grad norm ä": math.inf, "lr": 1e-4})
    told = decode(encode(gauges.to_message(said))[4:])
    assert isinstance(told, Logged)
    assert gauges.of_message(told) == said
    lost = decode(encode(gauges.to_message(Gauges(0, 1, {"loss": math.nan})))[4:])
    assert isinstance(lost, Logged)
    assert math.isnan(gauges.of_message(lost).values["loss"])
    names = tuple(f"{number} {'x' * 100}" for number in range(1000))
    large = gauges.of_message(Logged(10**30, -5, names, (1.0,) * 999))
    assert (large.target, large.step) == (2**63 - 1, 0)
    assert list(large.values) == [name[: gauges.NAME_MAX_BYTES] for name in names[:27]]


def test_the_lives_on_a_lost_node_end_with_its_last_message() -> None:
    told = ReportedLives()
    other = replace(LIFE, worker=8, node="a")
    told.note(LIFE, now_s=20.0)
    told.note(other, now_s=21.0)
    (gone,) = told.lose("b")
    assert (gone.worker, gone.ended_s, gone.end) == (7, 20.0, "lost with its node")
    assert told.living() == [other]
    told.note(replace(other, ended_s=22.0), now_s=22.0)
    assert told.living() == []


def test_the_log_of_a_worker_is_where_its_node_has_told() -> None:
    """Workers have one number in the whole run, but another node may tell anything."""
    told = ReportedLives()
    assert told.log_of("b", 7) == ""
    told.note_logs("b", LogsAt((7, 8), ("/logs/0", "/logs/1")))
    told.note_logs("c", LogsAt((7,), ("/elsewhere",)))
    assert [told.log_of("b", worker) for worker in (7, 8, 9)] == ["/logs/0", "/logs/1", ""]
    told.note_logs("b", LogsAt((7, 8), ("/logs/0",)))  # it is damaged
    assert told.log_of("b", 8) == ""
    told.note_logs("b", LogsAt(tuple(range(9_999)), ("/logs/0",) * 9_999))
    assert told.log_of("b", 0) == ""


def test_a_worker_sees_the_end_of_the_lease_that_the_agent_writes(tmp_path: Path) -> None:
    written = LeasePage(tmp_path, create=True)
    read = LeasePage(tmp_path)
    assert read.until_s == -math.inf, "nothing is lent before the agent was let in"
    written.until_s = 12.5
    assert read.until_s == 12.5
