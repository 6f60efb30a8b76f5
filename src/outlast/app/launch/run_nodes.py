"""`outlast run` on one of several nodes.

The node of --rdzv-endpoint leads the run: it has the run's folder and ledger, and the coordinator.
Every node connects to the coordinator, the leading node too. The coordinator answers which run this
is. Then each node runs the agent of its own workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from outlast.app.launch import arrival, resuming
from outlast.app.launch.live import LiveView
from outlast.app.launch.node_setup import (
    WorkerOutput,
    checkpoint_root,
    coordinator_options,
    copier_of,
    make_evidence,
    make_logs,
    make_view,
    of_node,
    open_folder,
    serve_metrics,
    state_of,
    unrun_noted,
)
from outlast.app.launch.nodes import NodeArguments
from outlast.app.launch.resuming import Beginning
from outlast.app.launch.run_takeover import LeaderPlace, Leadership
from outlast.app.launch.torchrun import RunOptions
from outlast.engine.cluster.agent_session import NodeOffer
from outlast.errors import RunFolderError, UsageError
from outlast.model import limits
from outlast.model.messages import Admitted
from outlast.model.records import Life
from outlast.model.wire import WIRE_VERSION
from outlast.runtime import stop_signals
from outlast.runtime.agent.agent_driver import NodeParts
from outlast.runtime.agent.beacons import BeaconNews, Beacons
from outlast.runtime.agent.dialler import Caller, Dialler
from outlast.runtime.agent.image_server import ImageServer
from outlast.runtime.agent.remote_agent import Outside, RemoteAgent
from outlast.runtime.agent.secured_evidence import SecuredEvidence
from outlast.runtime.agent.specs import RunFolders, Specs, UserScript, WorldSize
from outlast.runtime.agent.standby import Standby, StandbyPlace
from outlast.runtime.agent.zygote_client import ZygoteClient
from outlast.runtime.coordinator.reported_lives import ReportedLives
from outlast.runtime.folders import node_folders
from outlast.runtime.folders.run_folder import RunFolder
from outlast.runtime.ledger.store import Ledger
from outlast.runtime.loop import Loop
from outlast.runtime.network import routes, token, trust
from outlast.runtime.network.listener import ListeningSocket, listen_unless_taken
from outlast.runtime.software import installed
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.tiers.vault_owner import clean_stale, remove_left, vault_folder


@dataclass(frozen=True, slots=True)
class NodeLocation:
    """The address of this node for the others, and that of the coordinator.

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
class NodeResources:
    """Hold what is open on this node while it is in the run, and what it was given."""

    options: RunOptions
    nodes: NodeArguments
    location: NodeLocation
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
    location = find_location(nodes, has_token=secret is not None)
    view = make_view(options)
    sink = WorkerOutput(view)
    with contextlib.ExitStack() as closing:
        closing.callback(sink.close)
        loop = Loop()
        closing.callback(loop.close)
        resources = NodeResources(options, nodes, location, secret, zygote, loop, view, sink)
        for note in options.notes:
            view.print_line(note)
        if location.leads:
            return _lead(resources, closing, began)
        return _follow(resources, closing)


# --- where this node is ---------------------------------------------------------------------------


def find_location(nodes: NodeArguments, *, has_token: bool) -> NodeLocation:
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
    return NodeLocation(address, routes.interface_of(address), (there, nodes.port), listening)


# --- a node that follows --------------------------------------------------------------------------


def _dial(resources: NodeResources) -> tuple[Dialler, Admitted]:
    """Connect to the coordinator. Raises OutlastError if it cannot be reached or refuses us."""
    return arrival.reach(
        resources.loop,
        _destination(resources),
        caller_of(resources),
        token=resources.token,
        tell=resources.view.print_line,
    )


def _destination(resources: NodeResources) -> arrival.Destination:
    location = resources.location
    return arrival.destination_of(
        resources.nodes, location.endpoint, here=routes.is_ours(location.endpoint[0])
    )


def _check(resources: NodeResources, facts: Admitted) -> None:
    """Compare this node with the one that leads. Raises UsageError if the sizes differ."""
    options, tell = resources.options, resources.view.print_line
    arrival.check_size(facts, nodes=resources.nodes.count, workers=options.workers)
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


def _follow(resources: NodeResources, closing: contextlib.ExitStack) -> int:
    """Take part in a run that another node leads."""
    destination = _destination(resources)
    taken = ": another process of this machine has that port" if destination.here else ""
    resources.view.print_line(
        f"node {resources.nodes.name} waits for the run at {destination.named}{taken}"
    )
    dialler, facts = _dial(resources)
    closing.callback(dialler.close)
    _check(resources, facts)
    folder = _folder_here(resources, facts)
    leadership = leadership_of(resources, facts)
    closing.callback(leadership.close)
    parts, serves = open_node(
        resources,
        facts,
        folder,
        closing,
        life_over=leadership.life_over,
        on_verdict=leadership.on_verdict,
    )
    standby, votes = make_standby(resources, facts, leadership)
    leadership.set_parts(parts, standby)
    offer = _offer(resources, serves, votes)
    agent = RemoteAgent(
        parts,
        Outside(facts, dialler, offer, leadership.on_agent_left, standby, leadership.hand_run_over),
    )
    leadership.set_agent(agent)
    dialler.hand_over(agent)
    leadership.listen()
    try:
        agent.begin()
        resources.loop.run()
    finally:
        agent.close()
    return leadership.finish(agent.over)


def _offer(resources: NodeResources, serves: str, votes: str) -> NodeOffer:
    """Return what this node offers to the run."""
    nodes = resources.nodes
    return NodeOffer(
        nodes.name,
        resources.options.workers,
        nodes.place,
        serves,
        votes,
        software=installed(),
        domain=nodes.domain,
    )


def leadership_of(resources: NodeResources, facts: Admitted) -> Leadership:
    """Return the object with which this node can lead the run, now or later."""
    return Leadership(
        LeaderPlace(
            resources.options,
            resources.loop,
            resources.view,
            resources.sink,
            resources.token,
            facts,
            digest_of(resources.options),
            _own_folder(resources, facts),
        )
    )


def make_standby(
    resources: NodeResources, facts: Admitted, leadership: Leadership
) -> tuple[Standby | None, str]:
    """Make the standby of this node, and return it with the address at which it answers.

    With fewer than three nodes no node can take the run over, so no standby is made.
    """
    nodes = resources.nodes
    if nodes.count + nodes.spares < limits.VOTERS_LEAST:
        return None, ""
    place = StandbyPlace(
        resources.loop,
        caller_of(resources),
        resources.token,
        facts,
        resources.location.address,
        _folder_of_copy(resources, facts) / "copy.db",
        nodes.ports,
    )
    standby = Standby(place, lead=leadership.lead, tell=resources.view.print_line)
    with _at_ports_of(resources):
        return standby, standby.listen()


def make_vault(path: Path, run: str, node: str) -> Vault:
    """Make the vault of a node. Raises UsageError if another launcher of that name lives here.

    The vault that a killed launcher of this node left is removed. Other nodes have the ranks of
    that launcher by now, and a node that comes back begins without ranks.
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
def _at_ports_of(resources: NodeResources) -> Iterator[None]:
    """If this node cannot listen at a port, raise a UsageError that says what to do."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"this node cannot listen at {resources.location.address}: {error.strerror}",
            hint="give a larger --port-range, or another --local-addr",
        ) from None


def caller_of(resources: NodeResources) -> Caller:
    """Return how this node introduces itself to the nodes that it connects to."""
    nodes = resources.nodes
    return Caller(
        WIRE_VERSION, version("outlast"), nodes.run, nodes.name, digest_of(resources.options)
    )


def _folder_here(resources: NodeResources, facts: Admitted) -> Path:
    """Return the run's folder if this node sees it, else one of this node's own."""
    shared = Path(facts.folder)
    if node_folders.is_folder_of(shared, facts.run):
        return shared
    own = _own_folder(resources, facts)
    node_folders.make_own(own)
    resources.view.print_line(f"this node does not see {shared}: its logs lie in {own}")
    return own


def _folder_of_copy(resources: NodeResources, facts: Admitted) -> Path:
    """Return where this node keeps its copy of the ledger as a voter: on a disk of its machine."""
    own = _own_folder(resources, facts)
    state = state_of(resources.options, own)
    return own if state is None else state / facts.run / "voter"


def _own_folder(resources: NodeResources, facts: Admitted) -> Path:
    """Return the folder that only this node uses."""
    shared = Path(facts.folder)
    if node_folders.is_folder_of(shared, facts.run):
        return shared / "nodes" / resources.nodes.name
    return Path(resources.options.run_dir or f"runs/{facts.run}-{resources.nodes.name}")


# --- the parts of a node --------------------------------------------------------------------------


def open_node(
    resources: NodeResources,
    facts: Admitted,
    folder: Path,
    closing: contextlib.ExitStack,
    *,
    life_over: Callable[[Life], None],
    missing: Callable[[], str] = lambda: "",
    on_verdict: Callable[..., None] = lambda number, verdict: None,
) -> tuple[NodeParts, str]:
    """Open the parts of this node's agent, and return them with the address that serves images.

    `closing` closes the parts.
    """
    options, nodes, location = resources.options, resources.nodes, resources.location
    if options.checkpoints.are_written and not location.leads:
        node_folders.check_shared(Path(facts.checkpoints), facts.run)
    clean_stale()
    path = vault_folder(f"{facts.run}-{nodes.name}")
    with stop_signals.masked(signal.SIG_BLOCK):
        vault = make_vault(path, facts.run, nodes.name)
        closing.callback(vault.remove)
    key = None if resources.token is None else trust.image_key(resources.token, facts.run)
    server = ImageServer(resources.loop, vault, key=key)
    with _at_ports_of(resources):
        serves = server.listen(location.address, nodes.ports)
    closing.callback(server.close)
    logs = make_logs(options, folder / "logs", resources.loop, resources.sink)
    news = BeaconNews(over=life_over, step=lambda step, at_s: None)
    beacons = Beacons(vault, node=nodes.name, news=news)
    evidence = make_evidence(
        resources.loop, folder / "evidence", vault, beacons, logs, on_verdict=on_verdict
    )
    specs = Specs(
        place=RunFolders(facts.run, str(folder.resolve()), str(vault.folder)),
        script=UserScript(options.program.script, options.program.entry, options.program.args),
        size=WorldSize(options.world_size, options.workers),
        role=options.meeting.role,
        master=(location.address, 0),
        max_restarts=options.meeting.max_restarts or 0,
        logs=logs,
        options={
            "checkpoint_every": options.checkpoints.every_steps or 0,
            "checkpoint_root": facts.checkpoints,
            "snapshot_every": options.snapshot_every,
            "keep_disk": dataclasses.astuple(options.checkpoints.timed),
            "leased": True,
            "serves": serves,
            "ports": nodes.ports,
            "image_key": "" if key is None else key.hex(),
        },
        interface=location.interface,
    )
    parts = NodeParts(
        nodes.name,
        resources.loop,
        logs,
        vault,
        beacons,
        specs,
        evidence,
        of_node(options, resources.zygote),
        tell=resources.view.print_line,
        missing=missing,
        keeper=server.keeper,
        secured=SecuredEvidence(evidence, _own_folder(resources, facts) / "secured", nodes.name),
    )
    return parts, serves


# --- the node that leads --------------------------------------------------------------------------


def _lead(
    resources: NodeResources, closing: contextlib.ExitStack, began: tuple[float, float]
) -> int:
    """Lead the run from this node, and take part in it."""
    folder, ledger = open_folder(resources.options, *began)
    opened = closing.enter_context(contextlib.ExitStack())  # until `leadership` has them
    opened.callback(folder.close)
    opened.callback(copier_of(folder).close, is_last=True)
    opened.callback(ledger.close)
    with unrun_noted(ledger):
        return _lead_in(resources, closing, opened, folder, ledger)


def _lead_in(
    resources: NodeResources,
    closing: contextlib.ExitStack,
    opened: contextlib.ExitStack,
    folder: RunFolder,
    ledger: Ledger,
) -> int:
    options, nodes, loop = resources.options, resources.nodes, resources.loop
    root = checkpoint_root(options, folder).resolve()
    facts = Admitted(
        folder.run,
        str(folder.path.resolve()),
        str(root),
        nodes.lease_s,
        nodes.count,
        options.workers,
        options.program.script,
        digest_of(options),
        installed(),
    )
    node_folders.mark_shared(root, folder.run)
    records, beginning = ledger.read(), Beginning()
    if options.checkpoints.resume:
        beginning = resuming.find_beginning(
            root,
            records,
            vault=None,
            seen_step=0,
            from_scratch=options.checkpoints.from_scratch,
        )
        ledger.add(beginning.event())
        for one in beginning.refused:
            resources.view.print_line(f"warning: {one}")
        resources.view.print_line(beginning.describe(folder.path))
    leadership = leadership_of(resources, facts)
    parts, serves = open_node(
        resources,
        facts,
        folder.path,
        closing,
        life_over=leadership.life_over,
        missing=leadership.missing,
        on_verdict=leadership.on_verdict,
    )
    standby, votes = make_standby(resources, facts, leadership)
    leadership.set_parts(parts, standby)
    engine = coordinator_options(options, beginning, ledger.newest())
    listening = resources.location.listening
    assert listening is not None
    led = leadership.open_coordinator(
        folder, ledger, engine, listening, lives=ReportedLives(), start_step=beginning.start.step
    )
    opened.pop_all()
    closing.callback(leadership.close)
    led.coordinator.listen()
    resources.view.print_line(
        f"node {nodes.name} leads the run at {resources.location.endpoint[0]} port {nodes.port},"
        f" and waits for {engine.nodes} nodes"
    )
    if options.status.metrics:
        serving = serve_metrics(options.status.metrics, folder, loop, resources.view)
        closing.callback(serving.close)
    offer = _offer(resources, serves, votes)
    return _run_led(resources, leadership, parts, offer)


def _run_led(
    resources: NodeResources, leadership: Leadership, parts: NodeParts, offer: NodeOffer
) -> int:
    """Begin the run, let it go on until its end, and return the exit code."""
    assert leadership.led is not None
    coordinator = leadership.led.coordinator
    coordinator.start()
    dialler, facts = _dial(resources)
    agent = RemoteAgent(
        parts,
        Outside(
            facts,
            dialler,
            offer,
            leadership.on_agent_left,
            leadership.standby,
            leadership.hand_run_over,
        ),
    )
    leadership.set_agent(agent)
    dialler.hand_over(agent)
    agent.begin()
    try:
        leadership.listen()
        resources.loop.run()
    finally:
        agent.close()
    return leadership.finish(agent.over)
