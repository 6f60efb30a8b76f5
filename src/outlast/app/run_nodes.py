"""`outlast run` on one of several nodes.

The node of --rdzv-endpoint leads the run: it has the run's folder and ledger, and the coordinator.
Each node, that one too, dials the coordinator, is told which run this is, and runs the agent of its
own workers.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from outlast.app import arrival, resuming
from outlast.app.live import LiveView
from outlast.app.node_setup import (
    WorkerOutput,
    checkpoint_root,
    coordinator_options,
    make_evidence,
    make_logs,
    make_view,
    of_node,
    open_folder,
    serve_metrics,
    unrun_noted,
)
from outlast.app.nodes import Nodes
from outlast.app.resuming import Beginning
from outlast.app.run_takeover import LeaderPlace, Leadership
from outlast.app.torchrun import RunOptions
from outlast.engine.cluster.agent_session import NodeOffer
from outlast.errors import RunFolderError, UsageError
from outlast.model import limits
from outlast.model.messages import Admitted
from outlast.model.records import Life
from outlast.model.wire import WIRE_VERSION
from outlast.runtime import node_folders, routes, stop_signals, token, trust
from outlast.runtime.agent.agent_driver import NodeParts
from outlast.runtime.agent.beacons import BeaconNews, Beacons
from outlast.runtime.agent.dialler import Caller, Dialler
from outlast.runtime.agent.image_server import ImageServer
from outlast.runtime.agent.remote_agent import Outside, RemoteAgent
from outlast.runtime.agent.specs import Place, Script, Specs, WorldSize
from outlast.runtime.agent.standby import Standby, StandbyPlace
from outlast.runtime.agent.zygote_client import ZygoteClient
from outlast.runtime.coordinator.reported_lives import ReportedLives
from outlast.runtime.ledger.store import Ledger
from outlast.runtime.listener import ListeningSocket, listen_unless_taken
from outlast.runtime.loop import Loop
from outlast.runtime.run_folder import RunFolder
from outlast.runtime.software import installed
from outlast.runtime.tiers.vault import Vault, clean_stale, remove_left, vault_folder


@dataclass(frozen=True, slots=True)
class Spot:
    """Where this node is: its address for the others, and that of the coordinator.

    endpoint   address and port of the coordinator
    listening  the socket of the endpoint if the coordinator is to be started here, else None. It
               listens from the beginning, so that of several nodes on one machine only one leads
    """

    address: str
    interface: str
    endpoint: tuple[str, int]
    listening: ListeningSocket | None

    @property
    def leads(self) -> bool:
        """Return True if the coordinator is to be started here."""
        return self.listening is not None


@dataclass
class Ground:
    """Hold what is open on this node while it is in the run, and what it was given."""

    options: RunOptions
    nodes: Nodes
    spot: Spot
    token: bytes | None
    zygote: ZygoteClient
    loop: Loop
    view: LiveView
    sink: WorkerOutput


def run_several(
    options: RunOptions, zygote: ZygoteClient, given: str, began: tuple[float, float]
) -> int:
    """Run this node's part of a run on several, and return the run's exit code.

    given   the token that the environment named, or ""
    began   when this launcher was started, by both clocks
    """
    nodes = options.nodes
    assert nodes is not None
    secret = token.read_token(given, nodes.token_file)
    spot = find_spot(nodes, has_token=secret is not None)
    view = make_view(options)
    sink = WorkerOutput(view)
    with contextlib.ExitStack() as closing:
        closing.callback(sink.close)
        loop = Loop()
        closing.callback(loop.close)
        ground = Ground(options, nodes, spot, secret, zygote, loop, view, sink)
        for note in options.notes:
            view.print_line(note)
        if spot.leads:
            return _lead(ground, closing, began)
        return _follow(ground, closing)


# --- where this node is ---------------------------------------------------------------------------


def find_spot(nodes: Nodes, *, has_token: bool) -> Spot:
    """Find out where this node is, and whether it is the one that leads. Raises UsageError."""
    there = routes.resolve(nodes.host)
    endpoint = f"{nodes.host}:{nodes.port}"
    if not routes.is_loopback(there) and not has_token:
        raise token.how_to_make(endpoint)
    if routes.is_loopback(there) and nodes.host not in ("localhost", there):
        raise UsageError(
            f"--rdzv-endpoint {endpoint}: here {nodes.host} is {there}, for this node only",
            hint="give the address by which the other nodes reach it",
        )
    ours = routes.is_ours(there)
    address = nodes.local_addr or (there if ours else routes.own_address(there))
    if not routes.is_ours(address):
        raise UsageError(
            f"--local-addr {address}: this node has no such address",
            hint="give one of `ip address`",
        )
    listening = listen_unless_taken(there, nodes.port) if ours else None
    return Spot(address, routes.interface_of(address), (there, nodes.port), listening)


# --- a node that follows --------------------------------------------------------------------------


def _dial(ground: Ground) -> tuple[Dialler, Admitted]:
    """Reach the coordinator. Raises OutlastError if it cannot be reached, or turns us away."""
    return arrival.reach(
        ground.loop, _way(ground), caller_of(ground), token=ground.token,
        tell=ground.view.print_line,
    )  # fmt: skip


def _way(ground: Ground) -> arrival.Way:
    spot = ground.spot
    return arrival.way_to(ground.nodes, spot.endpoint, here=routes.is_ours(spot.endpoint[0]))


def _check(ground: Ground, facts: Admitted) -> None:
    """Compare this node with the one that leads. Raises UsageError for what has to be the same."""
    options, tell = ground.options, ground.view.print_line
    arrival.check_size(facts, nodes=ground.nodes.count, workers=options.workers)
    for text in arrival.warnings(
        facts, script=options.program.script, digest=digest_of(options), software=installed()
    ):
        tell(text)
    if facts.begun:
        tell(
            f"the run {facts.run} has begun already, so this node stands ready: it takes over ranks"
            " of a lost node. Another run needs an endpoint of its own"
        )


def digest_of(options: RunOptions) -> str:
    """Return a digest of the script; "" where there is no file."""
    program = options.program
    return node_folders.digest_of_file(program.script) if program.entry == "script" else ""


def _follow(ground: Ground, closing: contextlib.ExitStack) -> int:
    """Take part in a run that another node leads."""
    way = _way(ground)
    taken = ": another process of this machine has that port" if way.here else ""
    ground.view.print_line(f"node {ground.nodes.name} waits for the run at {way.named}{taken}")
    dialler, facts = _dial(ground)
    closing.callback(dialler.close)
    _check(ground, facts)
    folder = _folder_here(ground, facts)
    leadership = leadership_of(ground, facts)
    closing.callback(leadership.close)
    parts, serves = open_node(
        ground,
        facts,
        folder,
        closing,
        life_over=leadership.life_over,
        on_verdict=leadership.on_verdict,
    )
    standby, votes = make_standby(ground, facts, leadership)
    leadership.join(parts, standby)
    offer = _offer(ground, serves, votes)
    agent = RemoteAgent(
        parts, Outside(facts, dialler, offer, leadership.left, standby, leadership.make_way)
    )
    leadership.stand_beside(agent)
    dialler.hand_over(agent)
    leadership.listen()
    try:
        agent.begin()
        ground.loop.run()
    finally:
        agent.close()
    return leadership.finish(agent.over)


def _offer(ground: Ground, serves: str, votes: str) -> NodeOffer:
    """Return what this node offers to the run."""
    nodes = ground.nodes
    return NodeOffer(
        nodes.name, ground.options.workers, nodes.place, serves, votes, software=installed()
    )


def leadership_of(ground: Ground, facts: Admitted) -> Leadership:
    """Return what lets this node lead the run, now or later."""
    return Leadership(
        LeaderPlace(
            ground.options, ground.loop, ground.view, ground.sink, ground.token, facts,
            digest_of(ground.options), _own_folder(ground, facts),
        )
    )  # fmt: skip


def make_standby(
    ground: Ground, facts: Admitted, leadership: Leadership
) -> tuple[Standby | None, str]:
    """Make this node's part in outliving the coordinator, and say where it answers.

    With fewer than three nodes nobody can take over, so there is none.
    """
    nodes = ground.nodes
    if nodes.count + nodes.spares < limits.VOTERS_LEAST:
        return None, ""
    place = StandbyPlace(
        ground.loop, caller_of(ground), ground.token, facts, ground.spot.address,
        _own_folder(ground, facts) / "copy.db", nodes.ports,
    )  # fmt: skip
    standby = Standby(place, lead=leadership.lead, tell=ground.view.print_line)
    with _at_ports_of(ground):
        return standby, standby.listen()


def make_vault(path: Path, run: str, node: str) -> Vault:
    """Make the vault of a node. Raises UsageError if another launcher of that name lives here.

    What a killed launcher of this node has left is removed. Its ranks were given away, and a node
    that comes back begins empty.
    """
    try:
        return Vault.create(path, run)
    except RunFolderError as error:
        if not remove_left(path):
            raise UsageError(
                f"--node-name {node}: another node of this run has this name on this machine",
                hint="give each node a --node-name of its own",
            ) from error
    return Vault.create(path, run)


@contextlib.contextmanager
def _at_ports_of(ground: Ground) -> Iterator[None]:
    """Turn the error of a port that cannot be had into a UsageError that says what to do."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"this node cannot listen at {ground.spot.address}: {error.strerror}",
            hint="give a larger --port-range, or another --local-addr",
        ) from None


def caller_of(ground: Ground) -> Caller:
    """Return who this node is for those that it dials."""
    nodes = ground.nodes
    return Caller(
        WIRE_VERSION, version("outlast"), nodes.run, nodes.name, digest_of(ground.options)
    )


def _folder_here(ground: Ground, facts: Admitted) -> Path:
    """Return the run's folder if this node sees it, else one of this node's own."""
    shared = Path(facts.folder)
    if node_folders.is_folder_of(shared, facts.run):
        return shared
    own = _own_folder(ground, facts)
    node_folders.make_own(own)
    ground.view.print_line(f"this node does not see {shared}: its logs lie in {own}")
    return own


def _own_folder(ground: Ground, facts: Admitted) -> Path:
    """Return the folder that this node has to itself."""
    shared = Path(facts.folder)
    if node_folders.is_folder_of(shared, facts.run):
        return shared / "nodes" / ground.nodes.name
    return Path(ground.options.run_dir or f"runs/{facts.run}-{ground.nodes.name}")


# --- the parts of a node --------------------------------------------------------------------------


def open_node(
    ground: Ground, facts: Admitted, folder: Path, closing: contextlib.ExitStack, *,
    life_over: Callable[[Life], None], missing: Callable[[], str] = lambda: "",
    on_verdict: Callable[..., None] = lambda number, verdict: None,
) -> tuple[NodeParts, str]:  # fmt: skip
    """Open what this node's agent needs, and say where it serves images. `closing` closes it."""
    options, nodes, spot = ground.options, ground.nodes, ground.spot
    if options.checkpoints.every_steps and not spot.leads:
        node_folders.check_shared(Path(facts.checkpoints), facts.run)
    clean_stale()
    path = vault_folder(f"{facts.run}-{nodes.name}")
    with stop_signals.masked(signal.SIG_BLOCK):
        vault = make_vault(path, facts.run, nodes.name)
        closing.callback(vault.remove)
    key = None if ground.token is None else trust.image_key(ground.token, facts.run)
    server = ImageServer(ground.loop, vault, key=key)
    with _at_ports_of(ground):
        serves = server.listen(spot.address, nodes.ports)
    closing.callback(server.close)
    logs = make_logs(options, folder / "logs", ground.loop, ground.sink)
    news = BeaconNews(over=life_over, step=lambda step, at_s: None)
    beacons = Beacons(vault, node=nodes.name, news=news)
    evidence = make_evidence(
        ground.loop, folder / "evidence", vault, beacons, logs, on_verdict=on_verdict
    )
    specs = Specs(
        place=Place(facts.run, str(folder.resolve()), str(vault.folder)),
        script=Script(options.program.script, options.program.entry, options.program.args),
        size=WorldSize(options.world_size, options.workers),
        role=options.meeting.role,
        master=(spot.address, 0),
        max_restarts=options.meeting.max_restarts or 0,
        logs=logs,
        options={
            "checkpoint_every": options.checkpoints.every_steps or 0,
            "checkpoint_root": facts.checkpoints,
            "snapshot_every": options.snapshot_every,
            "leased": True,
            "serves": serves,
            "ports": nodes.ports,
            "image_key": "" if key is None else key.hex(),
        },
        interface=spot.interface,
    )
    parts = NodeParts(
        nodes.name, ground.loop, logs, vault, beacons, specs, evidence,
        of_node(options, ground.zygote), tell=ground.view.print_line, missing=missing,
    )  # fmt: skip
    return parts, serves


# --- the node that leads --------------------------------------------------------------------------


def _lead(ground: Ground, closing: contextlib.ExitStack, began: tuple[float, float]) -> int:
    """Lead the run from this node, and take part in it."""
    folder, ledger = open_folder(ground.options, *began)
    opened = closing.enter_context(contextlib.ExitStack())  # until `leadership` has them
    opened.callback(folder.close)
    opened.callback(ledger.close)
    with unrun_noted(ledger):
        return _lead_in(ground, closing, opened, folder, ledger)


def _lead_in(
    ground: Ground, closing: contextlib.ExitStack, opened: contextlib.ExitStack,
    folder: RunFolder, ledger: Ledger,
) -> int:  # fmt: skip
    options, nodes, loop = ground.options, ground.nodes, ground.loop
    root = checkpoint_root(options, folder).resolve()
    facts = Admitted(
        folder.run, str(folder.path.resolve()), str(root), nodes.lease_s, nodes.count,
        options.workers, options.program.script, digest_of(options), installed(),
    )  # fmt: skip
    node_folders.mark_shared(root, folder.run)
    records, beginning = ledger.read(), Beginning()
    if options.checkpoints.resume:
        beginning = resuming.find_beginning(
            root, records, vault=None, seen_step=0,
            from_scratch=options.checkpoints.from_scratch,
        )  # fmt: skip
        ledger.add(beginning.event())
    leadership = leadership_of(ground, facts)
    parts, serves = open_node(
        ground, facts, folder.path, closing, life_over=leadership.life_over,
        missing=leadership.missing, on_verdict=leadership.on_verdict,
    )  # fmt: skip
    standby, votes = make_standby(ground, facts, leadership)
    leadership.join(parts, standby)
    engine = coordinator_options(options, beginning, ledger.newest())
    listening = ground.spot.listening
    assert listening is not None
    led = leadership.open_coordinator(
        folder, ledger, engine, listening, lives=ReportedLives(), start_step=beginning.start.step
    )
    opened.pop_all()
    closing.callback(leadership.close)
    led.coordinator.listen()
    ground.view.print_line(
        f"node {nodes.name} leads the run at {ground.spot.endpoint[0]} port {nodes.port}, and waits"
        f" for {engine.nodes} nodes"
    )
    if options.status.metrics:
        serving = serve_metrics(options.status.metrics, folder, loop, ground.view)
        closing.callback(serving.close)
    offer = _offer(ground, serves, votes)
    return _run_led(ground, leadership, parts, offer)


def _run_led(ground: Ground, leadership: Leadership, parts: NodeParts, offer: NodeOffer) -> int:
    """Begin the run, let it go on until its end, and return the exit code."""
    assert leadership.led is not None
    coordinator = leadership.led.coordinator
    coordinator.start()
    dialler, facts = _dial(ground)
    agent = RemoteAgent(
        parts,
        Outside(facts, dialler, offer, leadership.left, leadership.standby, leadership.make_way),
    )
    leadership.stand_beside(agent)
    dialler.hand_over(agent)
    agent.begin()
    try:
        leadership.listen()
        ground.loop.run()
    finally:
        agent.close()
    return leadership.finish(agent.over)
