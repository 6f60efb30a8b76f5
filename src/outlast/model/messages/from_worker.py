"""Messages from a worker to the coordinator. They pass through the agent of its node."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.model.shorten import Some, Text

# These stand in `Broke.unreached` in place of a rank: the store that groups are built with, and the
# transfer image.
STORE, IMAGE = -1, -2


@dataclass(frozen=True, slots=True)
class Hello:
    """The process is up and listens. A worker sends this once, before its script starts."""

    worker: int
    pid: int


@dataclass(frozen=True, slots=True)
class Parked:
    """This spare can take a rank now. Its `kind` is "hot" or "warm"."""

    worker: int
    kind: str


@dataclass(frozen=True, slots=True)
class Registered:
    """The script has reached run.steps. This says how its state can be recovered.

    recovery_mode   "in_place", "reenter" or "respawn": the cheapest mode in which survivors can go
                    on
    sharded         True: each shard of the state has one owner. Restores go to the newest snapshot
                    that all ranks have
    exact           True: outlast promises identical bits. Otherwise `note` says what prevents that
    at_steps        False: the worker sends this in outlast.join, before run.steps. It then assumes
                    the mode of a script that starts over
    alike           with sharded state, the ranks that hold the same shards, this one included. It
                    is empty if no other rank does, or if that is not known
    """

    worker: int
    generation: int
    step: int
    recovery_mode: str
    sharded: bool
    exact: bool
    note: Text
    at_steps: bool = True
    alike: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Broke:
    """This worker cannot go on in this generation.

    mechanism  "exception": its own error. "corrupt": its transfer image was also damaged.
               "collective": another rank failed. "alone": it replaces a rank in place, but its
               script needs all ranks before run.steps
    unreached  ranks that were there, but could not be connected to while it joined the generation;
               or STORE, or IMAGE
    """

    worker: int
    generation: int
    step: int
    mechanism: str
    error: Text
    traceback: Text
    at_s: float
    unreached: Some = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """A survivor reports what it holds. It sends this once it has stopped working on its step.

    committed  the newest step that it has committed
    prepared   the newest step whose gradients and private state are complete and sealed; at least
               `committed`
    passed     the newest step whose vote it saw pass; at least `committed`
    in_hook    True: it waits in the optimizer hook of step `prepared`, and can still apply the step
    sealed     the steps whose images (sharded state) are sealed in its slots
    phases     the number of phases (run.phase) that it has finished since `committed`
    begun      True: it has asked for the step after `committed`, so no more phase can come before
    over       True: no step follows `committed`, because the last vote closed the steps
    cut_off    as in Pong, at the moment when it was told to leave; also cut_off_bytes
    """

    worker: int
    generation: int
    committed: int
    prepared: int
    passed: int
    in_hook: bool
    sealed: tuple[int, ...]
    phases: int = 0
    begun: bool = False
    over: bool = False
    cut_off: Some = ()
    cut_off_bytes: Some = ()


@dataclass(frozen=True, slots=True)
class Donated:
    """The replicated state of `step` is sealed in the vault's transfer image."""

    worker: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class Underway:
    """This worker has reached another waypoint while it joins `generation`.

    place  the value of a `terms.Waypoint`. Other workers may wait for those at a lower one
    """

    worker: int
    generation: int
    place: int


@dataclass(frozen=True, slots=True)
class Joined:
    """This worker is in the group of `generation` with its state at `step`, and trains."""

    worker: int
    generation: int
    step: int
    group_s: float
    restore_s: float


@dataclass(frozen=True, slots=True)
class Committed:
    """This worker has committed its first step in its generation.

    is_new   True: the step comes after the one that the generation goes on from. So all ranks have
             voted for it, and are in the generation. False: survivors have finished a step that
             was prepared before. Then a second message follows for the first new step
    """

    worker: int
    generation: int
    step: int
    at_s: float
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """This rank has written its shard of the checkpoint of `step`, or `error` says why it has not.

    generation  the generation in which this rank committed the step
    file        the file of the shard, relative to the folder of the checkpoint
    in_vault    True: this is not a shard, but a copy of its state that the rank sealed in the vault
    paused_s    how long training paused on this rank while its shard was copied
    """

    worker: int
    generation: int
    rank: int
    step: int
    file: str
    length: int
    checksum: str
    error: Text
    in_vault: bool = False
    paused_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The loop over run.steps has ended on this worker, and `step` is committed.

    stopped  True: it ended because a stop was requested
    in_step  True: the script has left within a step (sys.exit) for which it has not voted
    """

    worker: int
    generation: int
    step: int
    stopped: bool
    in_step: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The script or its input cannot work. The run ends with `error` and `exit_code`."""

    worker: int
    error: Text
    exit_code: int


@dataclass(frozen=True, slots=True)
class Warned:
    """The user should know this. It is shown once and recorded in the ledger."""

    worker: int
    text: Text


@dataclass(frozen=True, slots=True)
class Pong:
    """The listener thread's answer to Ping.

    collectives    the number of collectives that the default group was given
    where          the innermost frame of the user's code in the main thread
    cut_off        ranks that do not acknowledge data on the group's connections, although it was
                   sent more than once
    cut_off_bytes  how many bytes each of them has not acknowledged; empty if that is not known
    """

    worker: int
    nonce: int
    collectives: int
    where: Text
    cut_off: Some = ()
    cut_off_bytes: Some = ()


@dataclass(frozen=True, slots=True)
class CopyRefused:
    """This rank cannot begin from an image of `step`, because the image cannot be read.

    The image is a copy that another node keeps, or it was to be rebuilt from parity.

    own   True: it is neither, but the rank's own image in the vault
    """

    worker: int
    generation: int
    rank: int
    step: int
    reason: Text
    own: bool = False


@dataclass(frozen=True, slots=True)
class Sealed:
    """This rank has sealed an image of `step`, and seals one after each step that follows.

    It answers SealEach, once in a generation. All ranks begin with the same step.
    """

    worker: int
    generation: int
    step: int


FromWorker = (
    Hello
    | Parked
    | Registered
    | Broke
    | Inventory
    | Donated
    | Underway
    | Joined
    | Committed
    | Checkpointed
    | Finished
    | Refused
    | Warned
    | Pong
    | CopyRefused
    | Sealed
)
