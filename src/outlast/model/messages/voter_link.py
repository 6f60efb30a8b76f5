"""Messages between the coordinator, the voters and the agents, to survive a lost coordinator.

The voters are up to five of the run's agents. The coordinator sends them copies of the ledger's
records (`Keep`), and a decision counts once a majority of them holds its record (`Kept`). An agent
that misses the coordinator asks all voters (`Ask`, `Answer`). A voter that is to take over asks the
others for their votes (`Claim`, `Claimed`). `epoch` numbers the coordinators of a run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Voters:
    """The coordinator names the voters, in the order in which they try to take over.

    If it names none, no other node can take over until voters are named again.

    addresses  the address of each voter, as HOST:PORT, in the same order
    """

    epoch: int
    nodes: tuple[str, ...]
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """The coordinator gives a voter record `number` of its epoch to keep.

    part    "": a new record. "first", "more" or "last": a part of the records that the ledger held
            when the voters were named. When they are complete, they replace all that the voter kept
    record  the record, as `runtime/ledger/record_text.py` writes it
    """

    epoch: int
    number: int
    part: str
    sent_s: float
    record: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A voter holds all records of this epoch up to `number`, and votes for no other coordinator.

    seen_s  the coordinator's clock when it sent the newest message that the voter has heard
    """

    epoch: int
    number: int
    seen_s: float


@dataclass(frozen=True, slots=True)
class Ask:
    """An agent asks a voter whether the voter misses the coordinator too."""

    number: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A voter answers question `number`.

    missing  True: the voter misses the coordinator too, so the agent's processes may go on for a
             lease
    epoch    the newest coordinator to which the voter has promised its vote
    leader   the address of that one, as HOST:PORT; "" if no node has asked for its vote yet
    at_epoch, at_number    the newest record that the voter holds
    """

    number: int
    missing: bool
    epoch: int
    leader: str
    at_epoch: int
    at_number: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A voter asks another one for its vote, because it wants to become coordinator of `epoch`.

    leader                the address at which it listens, as HOST:PORT
    at_epoch, at_number   the newest record that it holds
    """

    epoch: int
    leader: str
    at_epoch: int
    at_number: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to a Claim. A voter gives its vote in an epoch to one candidate only."""

    epoch: int
    granted: bool


Voting = Voters | Keep | Kept | Ask | Answer | Claim | Claimed
