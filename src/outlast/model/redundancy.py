"""The chance to lose state for good: copies and parity in groups of nodes that fail independently.

Units      Chances from 0 to 1, each for one window: the time from a failure until what it took is
           copied again.
Symbols    k + m   a group of k data and m parity members survives any m losses among them; c copies
           are 1 + (c - 1)
           N, G    nodes; groups of k + m nodes each, none in two groups
           p       chance that one node is lost within the window
Sources    GEMINI's bound: Wang et al., SOSP 2023 (from memory of the paper, and compared with exact
           counts here). The rest are sums over what can fail.
Limits     Nodes fail independently of each other. A rack or a power feed that takes many at once is
           in the planner's simulation.

This module is pure: numbers in, numbers out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from outlast.errors import UsageError
from outlast.model.quantities import need

GROUP_MAX_COUNT = 1000  # members of a group: binomial coefficients stay below the largest float
EXACT_SUBSETS_MAX_COUNT = 4096  # failed nodes for which `loss_of_any` counts subsets one by one


@dataclass(frozen=True, slots=True)
class Code:
    """k data and m parity members in each group.

    `copies(2)`: every image twice, each on its own node.
    """

    data: int
    parity: int

    def __post_init__(self) -> None:
        need(data=self.data, least=1)
        need(parity=self.parity, least=0)
        need(members=self.size, most=GROUP_MAX_COUNT)

    @property
    def size(self) -> int:
        """The number of members of a group: those with data and those with parity."""
        return self.data + self.parity

    @property
    def memory(self) -> float:
        """Return the bytes held for each byte of state."""
        return self.size / self.data


def copies(count: int) -> Code:
    """Return the code that keeps `count` copies, the first included."""
    need(count=count, least=1)
    return Code(1, count - 1)


def chance_within(window_s: float, mttf_s: float) -> float:
    """Return the chance that one part fails within the window: 1 - e^(-window / mttf)."""
    need(window_s=window_s, least=0.0)
    need(mttf_s=mttf_s, above=0.0, endless=True)
    return -math.expm1(-window_s / mttf_s)


# --- independent failures -------------------------------------------------------------------------


def loss_of_group(code: Code, node_chance: float, *, lost: int = 0) -> float:
    """Return the chance that a group loses more than m members, of which `lost` are gone already.

    It is an upper binomial tail, summed from its small end, and exact to rounding.
    """
    need(node_chance=node_chance, least=0.0, most=1.0)
    left, spare = code.size - lost, code.parity - lost
    if spare < 0:
        return 1.0
    terms = (
        math.comb(left, j) * node_chance**j * (1 - node_chance) ** (left - j)
        for j in range(spare + 1, left + 1)
    )
    return min(1.0, math.fsum(terms))


def loss_of_any(code: Code, *, groups: int, failed: int) -> float:
    """Return the chance that exactly `failed` nodes take a group with them.

    Each of the N = groups x (k + m) nodes fails with the same chance. The result is exact, by
    counting subsets. There are C(N, failed) subsets. The number of those that spare every group is
    the coefficient of z^failed in (sum over j <= m of C(k + m, j) z^j)^groups.
    """
    nodes = groups * code.size
    need(groups=groups, least=1)
    need(failed=failed, least=0, most=min(nodes, EXACT_SUBSETS_MAX_COUNT))
    harmless = [math.comb(code.size, j) for j in range(code.parity + 1)]
    spared = _power(harmless, groups, failed)
    total = math.comb(nodes, failed)
    return (total - (spared[failed] if failed < len(spared) else 0)) / total


def loss_bound_gemini(*, nodes: int, copies: int, failed: int) -> float:
    """Return an upper bound of `loss_of_any` for copies in groups of their own.

    It is min(1, (N / m) C(N - m, k - m) / C(N, k)) for m copies and k failed nodes.

    GEMINI (SOSP 2023) gives 1 minus this as a lower bound of the chance to recover from memory. It
    is the union bound over groups: exact up to failed < 2 m, where no two groups can be lost at
    once. Independent failures only.

    Raises UsageError if the nodes do not divide into groups of `copies`.
    """
    need(copies=copies, least=1)
    need(failed=failed, least=0, most=nodes)
    if nodes % copies:
        raise UsageError(
            f"{nodes} nodes do not divide into groups of {copies}", hint="take a multiple of copies"
        )
    if failed < copies:
        return 0.0
    return min(
        1.0,
        (nodes // copies) * math.comb(nodes - copies, failed - copies) / math.comb(nodes, failed),
    )


def _power(base: list[int], exponent: int, degree: int) -> list[int]:
    """Return the coefficients of base^exponent up to z^degree."""
    result = [1]
    while exponent:
        if exponent & 1:
            result = _times(result, base, degree)
        exponent >>= 1
        base = _times(base, base, degree) if exponent else base
    return result


def _times(left: list[int], right: list[int], degree: int) -> list[int]:
    product = [0] * min(len(left) + len(right) - 1, degree + 1)
    for i, one in enumerate(left):
        for j, other in enumerate(right[: max(0, len(product) - i)]):
            product[i + j] += one * other
    return product
