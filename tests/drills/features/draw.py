"""The features of a drawn script: `Features`, the draw from a seed, and the rules of the draw.

    features = draw(17)                          the same features each time
    features = plain(kind="alone", dropout=True) the plainest script, with these features

`CHOICES` is the table of all features. Each feature is drawn by itself, then `RULES` replace those
that cannot be combined. Each rule has a name and a reason, so that a reader can see why two
features are never drawn together.

No feature is drawn that is refused or not kept, as docs/explanation/assumptions.md or a docstring
of `Run` says. The rule about it quotes that text.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Features:
    """The features of one script. `CHOICES` explains the fields.

    `until` has the last step of each call of run.steps. The defaults are the plainest script.
    """

    seed: int = 0
    until: tuple[int, ...] = (12,)
    kind: str = "ddp"
    world: int = 4
    in_main: bool = False
    spares: str = "none"
    snapshot_every: int = 1
    reads_rank: bool = False
    rank_asked: str = "nowhere"
    collective_before: bool = False
    reduce_in_block: bool = False
    accumulate: int = 1
    no_sync: bool = False
    clip: str = "none"
    optimizer: str = "sgd"
    fused: bool = False
    tensor_lr: bool = False
    groups: bool = False
    second_optimizer: bool = False
    schedule: str = "none"
    hand_set: tuple[str, ...] = ()
    batch_norm: bool = False
    broadcast_buffers: bool = True
    assigned_buffer: bool = False
    extra_state: bool = False
    dropout: bool = False
    average: str = "none"
    meter: str = "plain"
    metered: tuple[str, ...] = ()
    draws: tuple[str, ...] = ()
    generators: bool = False
    loader: str = "none"
    workers: int = 0
    random_dataset: bool = False
    bucket_view: bool = False
    small_buckets: bool = False
    comm_hook: bool = False
    unused: bool = False
    ignored: bool = False
    frozen: bool = False
    tied: bool = False
    zero_grad: str = "first"
    set_to_none: bool = True
    precision: str = "float32"
    overflow: bool = False
    evaluate: str = "none"
    evaluation_draws: bool = False
    logs: bool = False
    average_at: str = "tail"
    average_by_data: bool = False
    swapped: bool = False
    history: bool = False
    deep: bool = False
    evaluate_on: str = "all"
    evaluation_seeds: str = "none"
    inference_mode: bool = False
    reparametrized: str = "none"
    recomputed: bool = False
    compiled: bool = False
    by_hand: int = 1
    zero_by: str = "optimizer"
    wrapped: str = "none"
    left_by_break: bool = False
    writes: bool = False

    @property
    def sharded(self) -> bool:
        return self.kind in SHARDED

    @property
    def stands(self) -> bool:
        """Return whether survivors go on in place."""
        return not self.sealed_whole and not self.collective_before

    @property
    def sealed_whole(self) -> bool:
        """Return whether each rank seals all of its state, as for shards and private parameters."""
        return self.sharded or self.kind == "alone" or self.ignored

    @property
    def scales(self) -> bool:
        """Return whether the loss goes through a GradScaler."""
        return self.precision in ("scaler", "amp", "disabled_scaler")

    @property
    def evaluation_moves(self) -> bool:
        """Return whether an evaluation changes the random state."""
        return self.evaluation_draws and self.evaluation_seeds != "forked"

    @property
    def names(self) -> frozenset[str]:
        """Return `field=value` for each feature; a tuple gives one name for each of its values."""
        out = set()
        for field in CHOICES:
            value = getattr(self, field)
            out |= {f"{field}={one}" for one in (value if isinstance(value, tuple) else (value,))}
        return frozenset(out | {f"calls={len(self.until)}"})

    def __str__(self) -> str:
        """Return the features that differ from the plainest script."""
        plainest = Features()
        said = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name != "seed" and getattr(self, field.name) != getattr(plainest, field.name)
        ]
        return f"seed {self.seed}: " + (", ".join(said) or "all plain")


SHARDED = ("fsdp", "hsdp", "mesh2d")

# A repeated value is drawn more often. For a field that is a tuple, each of its values is drawn by
# itself, a third of the time.
CHOICES: dict[str, tuple[Any, ...]] = {
    # DDP; a model per rank without any wrapper; FSDP2; FSDP2 in two replicas; FSDP2 and tensor
    # parallelism on a 2-D mesh
    "kind": ("ddp", "ddp", "ddp", "ddp", "ddp", "alone", "alone", "fsdp", "fsdp", "hsdp", "mesh2d"),
    "world": (4, 4, 3, 2),
    "in_main": (False, True),  # the training is a function given to outlast.main
    "spares": ("none", "hot", "warm"),
    "snapshot_every": (1, 1, 2, 3),  # sharded state only
    "reads_rank": (False, True, True),  # at the start, as a seed: ranks draw different numbers
    "rank_asked": ("nowhere", "inside", "tail", "behind"),  # a spare parks there
    "collective_before": (False, False, False, False, False, True),  # made by the script itself
    "reduce_in_block": (False, False, True),  # the loss is all-reduced before the optimizer
    "accumulate": (1, 1, 2, 3),
    "no_sync": (False, True),
    "clip": ("none", "norm", "value"),
    "optimizer": (
        *("sgd", "momentum", "adamw", "amsgrad", "rmsprop", "adagrad"),
        *("nadam", "adafactor"),
    ),
    "fused": (False, False, True),
    "tensor_lr": (False, False, True),
    "groups": (False, True),
    "second_optimizer": (False, False, True),
    "schedule": ("none", "step", "cosine", "onecycle", "lambda", "sequential", "plateau"),
    "hand_set": ("before", "inside", "tail", "behind", "calls"),  # where hyper-parameters are set
    "batch_norm": (False, True),
    "broadcast_buffers": (True, False),
    "assigned_buffer": (False, False, True),  # forward assigns a new tensor to a buffer
    "extra_state": (False, False, True),  # a module with get_extra_state()
    "dropout": (False, True),
    "average": ("none", "none", "ema", "swa"),
    # numbers; a tensor; an object whose state_dict() returns its own dict; run.values
    "meter": ("plain", "tensor", "live", "values"),
    "metered": ("before", "inside", "tail", "behind"),  # where meters move
    # where the script draws random numbers
    "draws": ("before", "inside", "tail", "behind", "calls"),
    "generators": (False, False, True),  # draws come from generators in run.state, too
    "loader": ("none", "sampler", "sampler", "stateful", "drawn"),  # the last one by run.draw
    "workers": (0, 0, 0, 1, 2),
    "random_dataset": (False, True),
    "bucket_view": (False, True),
    "small_buckets": (False, True),
    "comm_hook": (False, False, True),  # torch's own, without a state
    "unused": (False, False, True),  # a layer that is left out in some steps
    "ignored": (False, False, False, True),
    "frozen": (False, False, True),  # a layer that requires no gradient
    "tied": (False, False, True),  # two layers with one weight
    "zero_grad": ("first", "last"),
    "set_to_none": (True, False),
    # "amp": autocast and a GradScaler
    "precision": ("float32", "float32", "bfloat16", "scaler", "amp", "disabled_scaler"),
    "overflow": (False, True),
    "evaluate": ("none", "none", "plain", "phase"),
    "evaluation_draws": (False, True),
    "logs": (False, True),
    "average_at": ("tail", "tail", "inside", "behind"),  # where the average moves
    "average_by_data": (False, True),  # by hand, through `.data`
    "swapped": (False, True),  # the average is swapped in for the evaluation
    "history": (False, False, True),  # an object whose state grows with each step
    "deep": (False, False, True),  # many layers with long names
    "evaluate_on": ("all", "all", "first"),  # "first": by rank 0 alone
    # "forked": under fork_rng; "reseeded": from a seed, the same each time
    "evaluation_seeds": ("none", "none", "forked", "reseeded"),
    "inference_mode": (False, True),  # evaluations are under it, in place of no_grad
    "reparametrized": ("none", "none", "none", "spectral", "weight"),  # norms of a layer's weight
    "recomputed": (False, False, False, True),  # activation checkpointing
    "compiled": (*(False,) * 9, True),  # a layer, by torch.compile
    "by_hand": (1, 1, 1, 2),  # backward passes over the same batch, in a loop of the script
    "zero_by": ("optimizer", "model"),
    "wrapped": ("none", "none", "enumerate", "generator"),  # the loop over run.steps
    "left_by_break": (False, False, False, True),
    "writes": (False, False, True),  # a line of a CSV file in the block, the weights after it
}
LISTED = ("hand_set", "metered", "draws")  # fields that hold several values


@dataclass(frozen=True)
class Rule:
    """A rule of the draw. `why` is the reason not to combine two features that conflict, and
    `instead` what is drawn then.
    """

    name: str
    why: str
    conflicts: Callable[[Features], bool]
    instead: Callable[[Features], dict[str, Any]]


def _without(field: str, *values: str) -> Callable[[Features], dict[str, Any]]:
    return lambda f: {field: tuple(one for one in getattr(f, field) if one not in values)}


def _set(**values: Any) -> Callable[[Features], dict[str, Any]]:
    return lambda f: values


RULES = (
    Rule(
        "meshes of four",
        "a mesh of 2 x 2 has four ranks",
        lambda f: f.kind in ("hsdp", "mesh2d") and f.world != 4,
        _set(world=4),
    ),
    Rule(
        "snapshots of shards",
        "--snapshot-every is about sharded state",
        lambda f: not f.sharded and f.snapshot_every != 1,
        _set(snapshot_every=1),
    ),
    Rule(
        "arguments of DDP",
        "these are arguments of DDP, or marks that only DDP reads",
        lambda f: (
            f.kind != "ddp"
            and (
                f.bucket_view
                or f.small_buckets
                or f.comm_hook
                or f.ignored
                or not f.broadcast_buffers
            )
        ),
        _set(
            bucket_view=False,
            small_buckets=False,
            comm_hook=False,
            ignored=False,
            broadcast_buffers=True,
        ),
    ),
    Rule(
        "nothing to skip",
        "no_sync leaves out the reductions of all micro-batches but the last",
        lambda f: f.no_sync and (f.accumulate == 1 or f.kind == "alone"),
        _set(no_sync=False),
    ),
    Rule(
        "a model of each rank's own",
        "ranks that share nothing have no collective to make: what they share would be a claim",
        lambda f: f.kind == "alone" and (f.collective_before or f.reduce_in_block),
        _set(collective_before=False, reduce_in_block=False),
    ),
    Rule(
        "a seed of each rank's own",
        "a model per rank is one only if the script reads its rank",
        lambda f: f.kind == "alone" and not f.reads_rank,
        _set(reads_rank=True),
    ),
    Rule(
        "sharded scripts are entered again anyway",
        "a collective before the steps changes nothing where survivors never go on in place",
        lambda f: f.sharded and f.collective_before,
        _set(collective_before=False),
    ),
    Rule(
        "two scaled optimizers of shards",
        "a GradScaler asks all ranks whether the second one's gradients are finite, which is"
        " refused once the first was applied",
        lambda f: f.sharded and f.second_optimizer and f.precision in ("scaler", "amp"),
        _set(second_optimizer=False),
    ),
    Rule(
        "a norm over two meshes",
        "torch cannot stack norms of parameters that lie on different meshes",
        lambda f: f.kind == "mesh2d" and f.clip == "norm",
        _set(clip="value"),
    ),
    Rule(
        "one weight, two plans",
        "a tied weight would be cut by columns and by rows",
        lambda f: f.kind == "mesh2d" and f.tied,
        _set(tied=False),
    ),
    Rule(
        "random evaluation of those who start over",
        "assumptions.md: where all ranks restart to state that was handed over, a phase that was"
        " not done yet is not made up for, and with it the numbers that it would have drawn",
        lambda f: not f.stands and not f.sealed_whole and f.evaluation_draws,
        _set(evaluation_draws=False),
    ),
    Rule(
        "an average to move",
        "where and how an average moves is a question only if there is one; shards have none to"
        " swap",
        lambda f: (
            (f.average == "none" and (f.average_at != "tail" or f.average_by_data))
            or ((f.sharded or f.average == "swa") and f.average_by_data)
        ),
        lambda f: {
            "average_at": "tail" if f.average == "none" else f.average_at,
            "average_by_data": False,
        },
    ),
    Rule(
        "weights swapped for a phase",
        "assumptions.md: weights are swapped in a phase, from an average that has all of them",
        lambda f: f.swapped and (f.evaluate != "phase" or f.sharded or f.average != "ema"),
        _set(swapped=False),
    ),
    Rule(
        "an average that begins to move",
        "assumptions.md: a repeat of the very step in which the script first changes parameters"
        " outside the block's tail, and not the run's first, is not bit-exact, which is said",
        lambda f: f.average == "swa" and f.average_at != "tail",
        _set(average_at="tail"),
    ),
    Rule(
        "nothing to evaluate with",
        "numbers are drawn in an evaluation only if there is one",
        lambda f: f.evaluate == "none" and f.evaluation_draws,
        _set(evaluation_draws=False),
    ),
    Rule(
        "a plateau of all ranks",
        "schedulers count as replicated: ReduceLROnPlateau has to see the same number on all ranks",
        lambda f: f.schedule == "plateau" and f.kind != "alone" and not f.reduce_in_block,
        _set(reduce_in_block=True),
    ),
    Rule(
        "between calls",
        "there is something between calls only if there are two",
        lambda f: len(f.until) == 1 and "calls" in {*f.hand_set, *f.draws},
        lambda f: {**_without("hand_set", "calls")(f), **_without("draws", "calls")(f)},
    ),
    Rule(
        "workers load",
        "a loader's workers and a random data set need a loader",
        lambda f: f.loader in ("none", "drawn") and (f.workers > 0 or f.random_dataset),
        _set(workers=0, random_dataset=False),
    ),
    Rule(
        "micro-batches are loaded",
        "step.batches has something in it only with a loader",
        lambda f: f.loader == "none" and f.accumulate > 1,
        _set(accumulate=1, no_sync=False),
    ),
    Rule(
        "a rank's share",
        "DistributedSampler, which a StatefulDataLoader is given, asks for the rank",
        lambda f: f.loader == "stateful" and not f.reads_rank,
        _set(reads_rank=True),
    ),
    Rule(
        "overflow is the scaler's",
        "only a GradScaler skips a step whose gradients are infinite",
        lambda f: f.overflow and f.precision not in ("scaler", "amp"),
        _set(overflow=False),
    ),
    Rule(
        "not fused",
        "torch has no fused form of them",
        lambda f: f.optimizer in ("rmsprop", "nadam", "adafactor") and f.fused,
        _set(fused=False),
    ),
    Rule(
        "fused optimizers of shards",
        "torch has no sharding strategy for the others, nor for parameters on two meshes",
        lambda f: (
            f.fused
            and f.sharded
            and (f.optimizer not in ("adamw", "amsgrad") or f.kind == "mesh2d")
        ),
        _set(fused=False),
    ),
    Rule(
        "whole rows and columns",
        "torch's Adafactor keeps them of whole tensors",
        lambda f: f.optimizer == "adafactor" and f.sharded,
        _set(optimizer="adamw"),
    ),
    Rule(
        "an evaluation of rank 0",
        "all ranks enter a phase, a sharded model's forward is one of all ranks, models that share"
        " nothing have no first one, and parameters that DDP ignores would differ from then on,"
        " since rank 0 draws other numbers: that ends the run as a divergence",
        lambda f: (
            f.evaluate_on == "first"
            and (f.evaluate != "plain" or f.sharded or f.kind == "alone" or f.ignored)
        ),
        _set(evaluate_on="all"),
    ),
    Rule(
        "seeds of an evaluation",
        "numbers that are not drawn need no seed, and nothing is read under inference_mode that"
        " is not evaluated",
        lambda f: (
            (f.evaluation_seeds != "none" and not f.evaluation_draws)
            or (f.inference_mode and f.evaluate == "none")
        ),
        lambda f: {
            "evaluation_seeds": f.evaluation_seeds if f.evaluation_draws else "none",
            "inference_mode": f.inference_mode and f.evaluate != "none",
        },
    ),
    Rule(
        "plain layers of shards",
        "fully_shard and tensor parallelism take layers as they are; they recompute and compile in"
        " ways of their own",
        lambda f: f.sharded and (f.reparametrized != "none" or f.recomputed or f.compiled),
        _set(reparametrized="none", recomputed=False, compiled=False),
    ),
    Rule(
        "gradients of gathered weights",
        "assumptions.md: an evaluation leaves a sharded model's weights gathered, and"
        " model.zero_grad() then clears the gradients of these, not of the shards",
        lambda f: f.sharded and f.zero_by == "model" and f.evaluate != "none",
        _set(zero_by="optimizer"),
    ),
    Rule(
        "weights in a file",
        "sharded weights are in no rank's file",
        lambda f: f.sharded and f.writes,
        _set(writes=False),
    ),
    Rule(
        "a loop by hand",
        "where step.batches is the loop, there is no other",
        lambda f: f.by_hand > 1 and f.accumulate > 1,
        _set(by_hand=1),
    ),
    Rule(
        "asked before",
        "a spare is parked where the rank is asked for first",
        lambda f: f.reads_rank and f.rank_asked != "nowhere",
        _set(rank_asked="nowhere"),
    ),
    Rule(
        "fused momentum of unused parameters",
        "torch's fused SGD takes momentum buffers of all parameters or of none",
        lambda f: f.fused and f.unused and f.optimizer in ("sgd", "momentum"),
        _set(fused=False),
    ),
)


def draw(seed: int) -> Features:
    """Return the features of this seed."""
    return ruled(unruled(seed))


def unruled(seed: int) -> Features:
    """Draw each feature by itself. Not every such script can run."""
    chance = random.Random(f"features {seed}")
    values: dict[str, Any] = {"seed": seed}
    for field, choices in CHOICES.items():
        if field in LISTED:
            values[field] = tuple(one for one in choices if chance.random() < 1 / 3)
        else:
            values[field] = chance.choice(choices)
    last = chance.randint(12, 30)
    two_calls = last >= 16 and chance.random() < 0.4
    values["until"] = (chance.randint(6, last - 6), last) if two_calls else (last,)
    return Features(**values)


def plain(**given: Any) -> Features:
    """Return the plainest script with the given features, and with what the rules require beside
    them.
    """
    return ruled(Features(**given))


def ruled(features: Features) -> Features:
    """Apply the rules in their order. A later rule never brings back what an earlier one took."""
    for rule in RULES:
        if rule.conflicts(features):
            features = dataclasses.replace(features, **rule.instead(features))
    return features
