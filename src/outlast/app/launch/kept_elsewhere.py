"""What `--keep` says of the memory of other nodes: copies of images, or parity of them.

It is refused if the run has too few nodes, or if it is to be made more or less often than images
are sealed.
"""

from __future__ import annotations

from outlast.errors import UsageError
from outlast.model.keep import NEVER, Every, KeepOption
from outlast.model.redundancy import Code


def copies_at_peers(keep: KeepOption, *, snapshot_every: int, nodes: int) -> int:
    """Return how many other nodes keep a copy of each image; 0: none does.

    Raises UsageError if there are too few nodes for that.
    """
    peers, copies = keep.peers or NEVER, keep.copies
    if peers.is_never:
        return 0
    name = f"peers={copies}"
    if nodes < 2:
        raise UsageError(
            f"--keep {name}: the copy of an image lies on another node, and this run has one node",
            hint="start it on several nodes (--nnodes 2), or leave peers out of --keep",
        )
    if nodes <= copies:
        raise UsageError(
            f"--keep {name}: an image and its {copies} copies lie on {copies + 1} nodes, and this"
            f" run has {nodes}",
            hint=f"start it on {copies + 1} nodes that hold ranks, or write peers={nodes - 1}",
        )
    _check_rhythm(peers, name, "a peer copies", snapshot_every=snapshot_every)
    return copies


def parity_of(keep: KeepOption, *, snapshot_every: int, nodes: int) -> Code | None:
    """Return the code of parity that is kept; None: none is. Raises UsageError if it cannot be."""
    code, every = keep.code, keep.parity or NEVER
    if code is None or every.is_never:
        return None
    name = f"parity={code.data}+{code.parity}"
    if nodes < code.size:
        raise UsageError(
            f"--keep {name}: the parts of an image and their parity lie on {code.size} nodes, and"
            f" this run has {nodes}",
            hint=f"start it on {code.size} nodes that hold ranks, or choose a smaller K+M",
        )
    _check_rhythm(every, name, "parity is made of", snapshot_every=snapshot_every)
    return code


def _check_rhythm(every: Every, where: str, does: str, *, snapshot_every: int) -> None:
    """Raise UsageError if `where` is to be kept more or less often than images are sealed."""
    if every.steps == snapshot_every:
        return
    sealed = "each step" if snapshot_every == 1 else f"every {snapshot_every} steps"
    raise UsageError(
        f"--keep {where}:{every.steps}steps: {does} what the ranks seal, and they seal {sealed}",
        hint=f"add --snapshot-every {every.steps}, or write {where}:{snapshot_every}steps",
    )
