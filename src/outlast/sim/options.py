"""The options of one simulated run. A seed draws those that are not given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from outlast.errors import UsageError
from outlast.model import limits
from outlast.model.redundancy import Code
from outlast.model.terms import SPARE_KINDS
from outlast.sim.draws import Stream

# the recovery modes of a simulated script; "sharded" is "reenter" with sharded state
MODES: Mapping[str, str] = {
    "in_place": "replicated state, no collectives before run.steps: survivors stay in their step",
    "respawn": "replicated state, collectives before run.steps, no outlast.main: all restart",
    "reenter": "replicated state inside outlast.main: survivors enter the function again",
    "sharded": "sharded state inside outlast.main",
    "plain": "a script that makes no outlast call",
}
MOVES: Mapping[str, str] = {
    "": "the script's code after a block does not change private state",
    "alike": "it changes private state in the same way on all ranks",
    "apart": "from step 2 on it changes private state differently on each rank, so steps vote late",
}
POLICIES: Mapping[str, str] = {
    "none": "nothing is diagnosed, and no policy is asked",
    "default": "interruptions get right and wrong verdicts, and the default policy acts on them",
    "eager": "the same with a policy that takes every action soon and often",
}
# fields that have another name in records and on the command line
RECORDED_AS: Mapping[str, str] = {"recovery_mode": "way"}
# runs with fewer steps have no barriers, because faults may strike at each of their steps
LONG_LIFE_STEPS = 30
RANKS_MAX, SPARES_MAX, STEPS_MAX, NODES_MAX, FAILURES_MAX = 100_000, 16, 1_000_000, 20_000, 10_000
PARITIES = ("1+1", "2+1", "1+2", "3+1", "2+2")
_PARITY = r"[1-9]\d?\+[12]"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one simulated run.

    recovery_mode      how the script can go on after a fault, see MODES; "way" in records
    phase_after        the step that one run.phase follows; -1 if there is none
    latency_s          the longest time that a message takes
    first_step_s       the longest extra time of the first step of each process
    silence_s          the silence of a plain script's workers that counts as a hang
    spare_nodes        the number of nodes that house no ranks at first
    beat_s             the time between two heartbeats of an agent
    drift              the largest share by which the clock of a node is faster or slower than that
                       of the coordinator
    checkpoint_every   steps between two checkpoints; 0 if none are written
    keep_every         steps between two copies of replicated state in the vault; 0 if none are made
    step_s             the shortest body of a step
    for_s              seconds after which the run is asked to stop; 0 if it is not
    failures           the number of faults that are drawn like those of hardware, over `for_s`.
                       They replace the faults that test the protocol
    policy             see POLICIES
    again_s            seconds from the first request to stop to a second one; 0 if there is none
    warns              True: each process warns that it is not bit-exact
    moves              see MOVES
    voters             True: agents that miss a dead coordinator ask voters, and go on without it
    replicas           with sharded state, the number of ranks that hold each shard
    peer_copies        True: with sharded state, other nodes keep copies of each rank's images
    peers              with `peer_copies`: how many nodes keep a copy of each image
    domains            with `peer_copies`: the number of domains of nodes that can be lost together.
                       Neighbouring nodes are in one; 0: no node names its domain
    parity             with `peer_copies`: no copies, but parity, such as "2+1"; "": copies
    """

    recovery_mode: str = "in_place"
    ranks: int = 3
    spares: int = 0
    spare_kind: str = "hot"
    steps: int = 6
    phase_after: int = -1
    latency_s: float = 0.01
    first_step_s: float = 0.0
    silence_s: float = 5.0
    max_restarts: int | None = None
    nodes: int = 1
    spare_nodes: int = 0
    beat_s: float = limits.BEAT_S
    drift: float = 0.0
    checkpoint_every: int = 0
    keep_every: int = 0
    step_s: float = 0.01
    for_s: float = 0.0
    failures: int = 0
    policy: str = "none"
    again_s: float = 0.0
    warns: bool = False
    moves: str = ""
    voters: bool = False
    replicas: int = 1
    peer_copies: bool = False
    parity: str = ""
    peers: int = 1
    domains: int = 0

    @property
    def serves_images(self) -> bool:
        """Return True if nodes may send each other images, as copies or for a drain."""
        return self.recovery_mode == "sharded" and self.nodes > 1

    def alike_with(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that hold the same shard as `rank`; empty if no other rank does."""
        if self.replicas < 2 or self.recovery_mode != "sharded" or self.ranks % self.replicas:
            return ()
        shards = self.ranks // self.replicas
        return tuple(range(rank % shards, self.ranks, shards))

    def pieces(self, step: int) -> int:
        """Return how many pieces of the script's own code are between `step` and the next one.

        There is one, and one more after a phase.
        """
        return 2 if step == self.phase_after else 1

    @property
    def code(self) -> Code | None:
        """Return the parity that is kept of images; None: there is none."""
        if not (self.peer_copies and self.parity):
            return None
        data, rows = self.parity.split("+")
        return Code(int(data), int(rows))

    @property
    def hangs_after_s(self) -> float:
        """Return the silence after which a plain script's workers count as hung.

        It is 0 if the script has steps.
        """
        return self.silence_s if self.recovery_mode == "plain" else 0.0

    @property
    def node_names(self) -> tuple[str, ...]:
        return ("",) if self.nodes == 1 else tuple(f"node-{number}" for number in range(self.nodes))

    def domain_of(self, place: int) -> str:
        """Return the domain that the node at this place names; "": none."""
        return f"domain-{place * self.domains // self.nodes}" if self.domains else ""

    @property
    def ranks_per_node(self) -> int:
        return -(-self.ranks // (self.nodes - self.spare_nodes))

    @property
    def alike(self) -> bool:
        """Return True if ranks of a node that do the same draw the same (identical_ranks.py)."""
        return self.failures > 0 and self.nodes > 1 and not self.checkpoint_every

    def as_dict(self) -> dict[str, Any]:
        """Return the options by their names in records."""
        return {RECORDED_AS.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Options:
        """Return the options from the result of `as_dict`. Raises TypeError for unknown names."""
        fields = {recorded: name for name, recorded in RECORDED_AS.items()}
        return cls(**{fields.get(name, name): value for name, value in said.items()})


def draw_options(stream: Stream, given: Mapping[str, Any]) -> Options:
    """Draw all options that are not `given`, always in the same order.

    Raises UsageError for options that are impossible.
    """
    drawn: dict[str, Any] = {
        "recovery_mode": stream.pick(tuple(MODES)),
        "ranks": 2 + stream.below(5),
        "spares": stream.below(3),
        "spare_kind": stream.pick(SPARE_KINDS),
        "steps": 4 + stream.below(20),
        "phase_after": -1 if stream.chance(0.6) else 1 + stream.below(6),
        "latency_s": stream.pick((0.0005, 0.003, 0.01, 0.03)),
        "first_step_s": stream.pick((0.0, 0.0, 0.0, 0.5, 3.0, 8.0)),
    }
    several, nodes, spare_nodes = stream.chance(0.45), 2 + stream.below(3), stream.below(2)
    beat_s, drift = (
        stream.pick((0.1, 0.3, limits.BEAT_S)),
        stream.between(0.0, limits.CLOCK_DRIFT_MAX),
    )
    ranks = given.get("ranks", drawn["ranks"])
    if given.get("nodes", nodes if several else 1) > 1:
        drawn |= {
            "nodes": min(nodes, ranks + spare_nodes),
            "spare_nodes": spare_nodes,
            "beat_s": beat_s,
            "drift": drift,
        }
    if given.get("for_s"):
        drawn["steps"] = STEPS_MAX
    options = Options(**(drawn | dict(given)))
    check(options)
    return options


def draw_hardware(stream: Stream, options: Options) -> Options:
    """Draw whether this is a larger run that fails like hardware.

    This has a stream of its own.
    """
    large, nodes, per_node, failures = (
        stream.chance(0.02),
        3 + stream.below(3),
        2 + stream.below(4),
        1 + stream.below(4),
    )
    for_s, step_s = stream.between(10.0, 90.0), stream.pick((0.05, 0.5, 2.0))
    if not large or options.recovery_mode == "plain":
        return options
    return replace(
        options,
        nodes=nodes + 1,
        spare_nodes=1,
        ranks=nodes * per_node,
        steps=STEPS_MAX,
        for_s=for_s,
        step_s=step_s,
        failures=failures,
        beat_s=options.beat_s if options.nodes > 1 else limits.BEAT_S,
    )


def draw_checkpoints(stream: Stream, options: Options) -> Options:
    """Draw how often checkpoints are written.

    This has a stream of its own, so that it changes no other draw. So have the functions below.
    """
    some, every = stream.chance(0.35), stream.pick((1, 2, 3, 5))
    return replace(
        options, checkpoint_every=every if some and options.recovery_mode != "plain" else 0
    )


def draw_copies(stream: Stream, options: Options) -> Options:
    """Draw how often replicated state is copied."""
    some, every = stream.chance(0.5), stream.pick((1, 1, 2, 4))
    replicated = options.recovery_mode not in ("plain", "sharded")
    return replace(options, keep_every=every if some and replicated and options.nodes == 1 else 0)


def draw_stop(stream: Stream, options: Options) -> Options:
    """Draw whether the run is asked to stop before its last step."""
    asked, for_s = (
        stream.chance(0.12),
        stream.pick((0.05, 0.3, 0.6, 1.2, 3.0)) * stream.between(0.5, 1.5),
    )
    again, again_s = stream.chance(0.4), stream.between(0.0, 0.6)
    return replace(
        options, for_s=for_s if asked else 0.0, again_s=again_s if asked and again else 0.0
    )


def draw_pace(stream: Stream, options: Options) -> Options:
    """Draw how long a step takes, and whether there is anything to warn of.

    With long steps, things that happen only after a while come before the end of the run.
    """
    slow, step_s = stream.chance(0.25), stream.pick((0.15, 0.4, 1.0))
    options = replace(options, warns=stream.chance(0.1))
    return replace(options, step_s=step_s) if slow else options


def draw_moves(stream: Stream, options: Options) -> Options:
    """Draw whether the script changes private state after its blocks."""
    moves = stream.pick(("", "", "", "alike", "apart", "apart"))
    short = options.steps < LONG_LIFE_STEPS and options.recovery_mode not in ("plain", "sharded")
    return replace(options, moves=moves) if short and not options.failures else options


def draw_replicas(stream: Stream, options: Options) -> Options:
    """Draw whether two ranks hold each shard."""
    return replace(options, replicas=stream.pick((1, 2)))


def draw_peer_copies(stream: Stream, options: Options) -> Options:
    """Draw whether images are copied to other nodes."""
    may = options.nodes > 1 and options.recovery_mode == "sharded" and not options.failures
    return replace(options, peer_copies=stream.chance(0.5) and may)


def draw_peers(stream: Stream, options: Options) -> Options:
    """Draw how many nodes keep a copy of each image, if copies are made."""
    some, which = stream.chance(0.5), stream.below(1000)
    others = min(options.nodes - options.spare_nodes, options.ranks) - 1
    may = some and options.peer_copies and not options.parity and others > 1
    return replace(options, peers=2 + which % (others - 1) if may else 1)


def draw_domains(stream: Stream, options: Options) -> Options:
    """Draw into how many domains the nodes are divided, if they keep copies or parity."""
    some, which = stream.chance(0.5), stream.below(1000)
    may = some and options.peer_copies
    return replace(options, domains=1 + which % options.nodes if may else 0)


def draw_parity(stream: Stream, options: Options) -> Options:
    """Draw whether parity is kept instead of copies. It is drawn apart, as checkpoints are."""
    some, which = stream.chance(0.5), stream.below(1000)
    ring = min(options.nodes - options.spare_nodes, options.ranks)
    codes = [code for code in PARITIES if sum(map(int, code.split("+"))) <= ring]
    may = some and options.peer_copies and codes
    return replace(options, parity=codes[which % len(codes)] if may else "")


def draw_policy(stream: Stream, options: Options) -> Options:
    """Draw whether interruptions are diagnosed, and which policy acts on the verdicts."""
    return replace(options, policy=stream.pick(("none", "default", "eager", "eager")))


def _check_copies(options: Options) -> None:
    """Check what other nodes keep of images. Raises UsageError."""
    if options.parity and (not options.peer_copies or not re.fullmatch(_PARITY, options.parity)):
        raise UsageError(
            f"--parity {options.parity!r}",
            hint="K+M with M of 1 or 2, such as 2+1, and together with --peer-copies",
        )
    if options.peer_copies and (options.nodes == 1 or options.failures):
        raise UsageError(
            "copies on other nodes need several nodes, and do not go with --failures",
            hint="give --nodes 3, and leave --failures out",
        )


def check(options: Options) -> None:
    """Check the options. Raises UsageError, which names the option."""
    if options.policy not in POLICIES:
        raise UsageError(
            f"there is no policy {options.policy!r} here", hint=f"one of {', '.join(POLICIES)}"
        )
    if options.moves not in MOVES:
        raise UsageError(
            f"there is no --moves {options.moves!r}",
            hint=f"one of {', '.join(filter(None, MOVES))}",
        )
    if options.recovery_mode not in MODES:
        raise UsageError(
            f"there is no --recovery-mode {options.recovery_mode!r}",
            hint=f"one of {', '.join(MODES)}",
        )
    if options.spare_kind not in SPARE_KINDS:
        raise UsageError(f"there is no --spare-kind {options.spare_kind!r}", hint="hot or warm")
    for name, least, most in (
        ("ranks", 1, RANKS_MAX),
        ("spares", 0, SPARES_MAX),
        ("steps", 1, STEPS_MAX),
        ("nodes", 1, NODES_MAX),
        ("checkpoint_every", 0, STEPS_MAX),
        ("keep_every", 0, STEPS_MAX),
        ("peers", 1, limits.PEER_COPIES_MAX_COUNT),
        ("domains", 0, NODES_MAX),
    ):
        if not least <= getattr(options, name) <= most:
            raise UsageError(f"{name} is {getattr(options, name)}", hint=f"from {least} to {most}")
    if options.keep_every and options.nodes > 1:
        raise UsageError(
            f"copies in the vault are not possible with {options.nodes} nodes",
            hint="no vault has the images of all ranks then",
        )
    _check_copies(options)
    if options.spare_nodes >= options.nodes:
        raise UsageError(
            f"{options.spare_nodes} of {options.nodes} nodes are spare nodes",
            hint="at least one node has to house ranks",
        )
    if options.nodes - options.spare_nodes > options.ranks:
        raise UsageError(
            f"{options.nodes - options.spare_nodes} nodes for {options.ranks} ranks",
            hint="each node that is not a spare houses at least one rank",
        )
    if not 0 <= options.drift <= limits.CLOCK_DRIFT_MAX or options.beat_s <= 0:
        raise UsageError(
            f"drift is {options.drift:g}, or the time between heartbeats is not above 0",
            hint=f"drift is from 0 to {limits.CLOCK_DRIFT_MAX:g}",
        )
    if (
        min(options.latency_s, options.first_step_s, options.for_s, options.again_s) < 0
        or min(options.silence_s, options.step_s) <= 0
    ):
        raise UsageError("no time may be negative, and step_s and silence_s have to be above 0")
    if not 0 <= options.failures <= FAILURES_MAX:
        raise UsageError(f"failures is {options.failures}", hint=f"from 0 to {FAILURES_MAX}")
    if options.failures and not options.for_s:
        raise UsageError(
            f"there are {options.failures} failures, but no time over which they are spread",
            hint="give the time with --for-s",
        )
