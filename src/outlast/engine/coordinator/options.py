"""The options of a run, which the launcher gives to the coordinator. This module is pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.default_policy import default_policy
from outlast.engine.save_interval import ExpectedFailures
from outlast.model import limits
from outlast.model.policy import Policy
from outlast.model.redundancy import Code


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """The options of one run.

    start              what the ranks begin from
    checkpoint         folder and step of the newest good checkpoint, or ("", 0)
    committed_before   the newest step that earlier sessions of the run have committed
    durable            checkpoints are written, or are on the disk from before
    term_grace_s       seconds from a request to stop until the processes are killed
    nodes              how many agents to wait for at the start; 0: the only agent is in the
                       coordinator's own process
    enrol_wait_s       how long to wait for them; then the run begins on those that are there
    saves_last         the newest state is saved before the run gives up
    greets             workers say Hello. A program (--no-python) never does, and counts as running
                       once its process is started
    peer_copies        after how many steps an image of sharded state is sealed, and copied to other
                       nodes; 0: no copies are made
    peers              how many other nodes keep a copy of each image
    expected_failures  `--keep disk:auto`: the coordinator asks for checkpoints, and expects this
                       rate of failures until it has seen one. None: it asks for none
    parity             other nodes keep parity of parts of each image, and no whole copies, as often
                       as `peer_copies` says; None: no parity is kept
    leads_on           the node on which this coordinator leads; "": there is one node
    cut_for_good_s     seconds after which a node is given up for a link that stays cut; infinite:
                       no node is given up
    """

    world_size: int
    start: Restart
    spares: int = 0
    spare_kind: str = "hot"
    max_restarts: int | None = None
    checkpoint: tuple[str, int] = ("", 0)
    committed_before: int = 0
    checkpoint_on_stop: bool = False
    durable: bool = False
    term_grace_s: float = limits.TERM_GRACE_S
    generation: int = 0
    first_interruption: int = 1
    first_worker: int = 1
    nodes: int = 0
    enrol_wait_s: float = limits.ENROL_WAIT_S
    saves_last: bool = False
    greets: bool = True
    peer_copies: int = 0
    peers: int = 1
    expected_failures: ExpectedFailures | None = None
    parity: Code | None = None
    leads_on: str = ""
    cut_for_good_s: float = math.inf
    policy: Policy = field(default_factory=default_policy)
