"""What a rule is: a pattern, the worth of a line that matches it, and the source for that.

A rule looks at one line, in lower case and at most `LINE_BYTES` of logs/lines.py long. Patterns run
in linear time: every repeat that can match the same text as its neighbour is bounded, and no repeat
stands in a repeat. A test checks that, on the parsed patterns and on adversarial lines.

The source is a vendor's catalogue, the source of a driver, kernel or library, or two independent
incidents ("incident: A; incident: B"). A rule without one is refused when it is made.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Role

MATCHES_MAX = 200  # the widest bounded gap that a pattern may have, in characters


class Grade(str, Enum):
    """This says how much one such line tells of the class (fuse/weights.py has probabilities)."""

    NAMED = "named"  # its maker says so in as many words
    LIKELY = "likely"
    POSSIBLE = "possible"  # more likely than any other class
    HINT = "hint"  # not enough by itself
    NONE = "none"  # says nothing of the class


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of a table.

    also       classes that the line fits too, less well
    pattern    its groups `device`, `node` and `rank` say where the line is from; "" for a rule that
               is applied by other code, such as a deduction
    priority   the place of the rule when several match a line: the smallest number decides what the
               line is. Every rule with a pattern has a number of its own, and others have 0
    """

    name: str
    pattern: str
    role: Role
    source: str
    failure_class: FailureClass | None = None
    grade: Grade = Grade.NONE
    also: tuple[FailureClass, ...] = ()
    mechanism: Mechanism | None = None
    priority: int = 0
    needles: tuple[bytes, ...] = field(default=())

    def __post_init__(self) -> None:
        assert well_sourced(self.source), f"{self.name}: no source: {self.source!r}"
        assert (self.failure_class is None) == (self.grade is Grade.NONE), self.name
        assert self.role is not Role.ROOT or self.failure_class is not None, (
            f"{self.name}: a root names a class"
        )
        assert (self.priority > 0) == bool(self.pattern), f"{self.name}: a pattern has a priority"
        if not self.needles:
            object.__setattr__(self, "needles", needles_of(self.pattern))
        assert not self.pattern or self.needles, f"{self.name}: no literal of four characters"


MAKERS = (
    "nvidia",
    "amd",
    "linux",
    "torch",
    "nccl",
    "gloo",
    "python",
    "numpy",
    "slurm",
    "kubernetes",
    "megatron-lm",
    "nvrx",
    "rdma-core",
    "ipmi",
    "systemd",
    "docker",
    "deepspeed",
    "huggingface",
    "ray",
    "open mpi",
    "gpud",
    "gcm",
    "submitit",
    "cloud",
    "posix",
    "lustre",
    "nfs",
    "juicefs",
    "ceph",
    "py-spy",
    "outlast",
    "pci-sig",
    "smartmontools",
    "glibc",
    "triton",
    "lightning",
    "transformers",
    "wekafs",
    "gpfs",
    "arrow",
    "aws",
    "s3",
    "tensorflow",
    "pytest",
    "dcgm",
    "infiniband",
    "jedec",
    "graph",
    "cupy",
    "grpc",
    "lsf",
)


def well_sourced(source: str) -> bool:
    """Return True for a source that begins with a maker, or that names two incidents."""
    parts = [part.strip().lower() for part in source.split(";")]
    incidents = [part for part in parts if part.startswith("incident:")]
    return len(set(incidents)) >= 2 or any(
        part.startswith(MAKERS) for part in parts if part not in incidents
    )


def root(
    name: str,
    pattern: str,
    failure_class: FailureClass,
    grade: Grade,
    source: str,
    *,
    priority: int,
    also: tuple[FailureClass, ...] = (),
    mechanism: Mechanism | None = None,
) -> Rule:
    """Return a rule for lines that name a cause."""
    return Rule(name, pattern, Role.ROOT, source, failure_class, grade, also, mechanism, priority)


def effect(
    name: str, pattern: str, source: str, *, priority: int, mechanism: Mechanism | None = None
) -> Rule:
    """Return a rule for lines that follow from another failure: teardown, peers of the dead."""
    return Rule(name, pattern, Role.EFFECT, source, mechanism=mechanism, priority=priority)


def messenger(
    name: str,
    pattern: str,
    source: str,
    *,
    priority: int,
    failure_class: FailureClass | None = None,
    grade: Grade = Grade.NONE,
    mechanism: Mechanism | None = None,
) -> Rule:
    """Return a rule for lines that report a failure which happened elsewhere or earlier."""
    return Rule(
        name,
        pattern,
        Role.MESSENGER,
        source,
        failure_class,
        grade,
        mechanism=mechanism,
        priority=priority,
    )


def advice(name: str, pattern: str, source: str, *, priority: int) -> Rule:
    """Return a rule for hints that are printed beside a failure and show nothing themselves."""
    return Rule(name, pattern, Role.ADVICE, source, priority=priority)


# --- what a line must contain to match ------------------------------------------------------------

_PLAIN = re.compile(r"\\[^a-zA-Z0-9]|[a-z0-9 _:'/<>=,;!@#%&\"`~-]")
NEEDLE_MIN = 4
HEALTHY = frozenset(
    b"loss grad rank ranks node exit gpu read slow training device memory warning nccl error"
    b" process checkpoint data model step size info".split()
)


def needles_of(pattern: str) -> tuple[bytes, ...]:
    """Return literals of which every match of the pattern contains at least one.

    Empty if there are none of four characters. It understands what the tables use: top-level text,
    one level of (?:a|b) groups, and quantifiers after single characters and groups.
    """
    alternatives = _split(pattern)
    if len(alternatives) > 1:
        found = [needles_of(one) for one in alternatives]
        return tuple(sorted({needle for some in found for needle in some})) if all(found) else ()
    best: tuple[bytes, ...] = ()
    for run in _runs(pattern):
        some: tuple[bytes, ...]
        if isinstance(run, str):
            some = (run.encode(),) if len(run) >= NEEDLE_MIN else ()
        else:
            inner = [needles_of(one) for one in run]
            some = (
                tuple(sorted({needle for found in inner for needle in found})) if all(inner) else ()
            )
        best = max(best, some, key=_rarity)
    return best


def _rarity(needles: tuple[bytes, ...]) -> tuple[bool, bool, int]:
    """Return how rare needles are: words of healthy logs are the least rare, then short ones."""
    return (
        bool(needles),
        not any(needle.strip() in HEALTHY for needle in needles),
        min(map(len, needles), default=0),
    )


def _split(pattern: str) -> list[str]:
    """Split a pattern at the bars of its top level."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif char == "[":
            at = _class_end(pattern, at)
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            parts.append(pattern[start:at])
            start = at + 1
        at += 1
    return [*parts, pattern[start:]]


def _class_end(pattern: str, at: int) -> int:
    end = at + 1
    if pattern[end] == "^":
        end += 1
    if pattern[end] == "]":
        end += 1
    while pattern[end] != "]":
        end += 2 if pattern[end] == "\\" else 1
    return end


def _group_end(pattern: str, at: int) -> int:
    depth = 0
    while True:
        char = pattern[at]
        if char == "\\":
            at += 1
        elif char == "[":
            at = _class_end(pattern, at)
        elif char in "()":
            depth += 1 if char == "(" else -1
            if depth == 0:
                return at
        at += 1


def _runs(pattern: str) -> list[str | list[str]]:
    """Return what a pattern without top-level bars must contain, in order.

    They are literal runs, and groups as lists of their alternatives.
    """
    runs: list[str | list[str]] = [""]
    at = 0
    while at < len(pattern):
        char = pattern[at]
        plain = _PLAIN.match(pattern, at)
        group: list[str] | None = None
        if plain:
            end = plain.end()
        elif char == "(":
            end = _group_end(pattern, at) + 1
            inner = re.sub(r"^\?(?::|P<\w+>)", "", pattern[at + 1 : end - 1])
            group = [] if inner.startswith("?") else _split(inner)
        elif char == "[":
            end = _class_end(pattern, at) + 1
        else:
            end = at + (2 if char == "\\" else 1)
        quantified = end < len(pattern) and pattern[end] in "?*{+"
        once_at_least = (
            not quantified
            or pattern[end] == "+"
            or (pattern[end] == "{" and pattern[end + 1] not in "0,")
        )
        if plain and once_at_least and isinstance(runs[-1], str) and not quantified:
            runs[-1] += plain.group().lstrip("\\") if len(plain.group()) > 1 else plain.group()
        else:
            if group and once_at_least:
                runs.append(group)
            runs.append("")
        if quantified:
            end = pattern.index("}", end) + 1 if pattern[end] == "{" else end + 1
        at = end
    return runs
