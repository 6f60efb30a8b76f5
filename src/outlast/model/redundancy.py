"""How likely state is lost for good: copies and parity, in groups, when nodes fail on their own and
when racks and power feeds take many at once.

Units      Chances from 0 to 1, each for one window: the time from a failure until what it took is
           copied anew.
Symbols    k + m   a group of k data and m parity members survives any m losses among them; c copies
           are 1 + (c - 1)
           N, G    nodes; groups of k + m nodes each, none in two groups
           p       chance that one node (rack, feed) is lost within the window
Model      A feed takes its racks, a rack its nodes; feeds, racks and nodes fail independently of
           each other, each at most once in a window. State is lost if any group loses more than m
           members.
Placement  `packed`: whole groups within a rack. `spread`: the members of a group in as many racks;
           and `by_feed`: those racks over as many feeds as there are.
Sources    GEMINI's bound: Wang et al., SOSP 2023 (from memory of the paper, and held against exact
           counts here). The rest are sums over what can fail.
Limits     `loss_by_enumeration` visits every state of the domains: 2^20 at most. The regular
           placements have formulas; tests hold them against it.

This module is pure: numbers in, numbers out.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from outlast.errors import UsageError
from outlast.model.quantities import need

DOMAINS_MAX_COUNT = 20
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
        return self.data + self.parity

    @property
    def memory(self) -> float:
        """Bytes held for each byte of state."""
        return self.size / self.data


def copies(count: int) -> Code:
    """`count` in all, the first included."""
    need(count=count, least=1)
    return Code(1, count - 1)


@dataclass(frozen=True, slots=True)
class Chances:
    """That one node, one rack, one feed is lost within the window, each by itself."""

    node: float
    rack: float = 0.0
    feed: float = 0.0

    def __post_init__(self) -> None:
        need(node=self.node, rack=self.rack, feed=self.feed, least=0.0, most=1.0)


def chance_within(window_s: float, mttf_s: float) -> float:
    """1 - e^(-window / mttf): that one part fails within the window."""
    need(window_s=window_s, least=0.0)
    need(mttf_s=mttf_s, above=0.0, endless=True)
    return -math.expm1(-window_s / mttf_s)


# --- independent failures -------------------------------------------------------------------------


def loss_of_group(code: Code, node_chance: float, *, lost: int = 0) -> float:
    """That a group of which `lost` members are gone loses more than m in all: an upper binomial
    tail, summed from its small end, exact to rounding.
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


def any_of(count: float, chance: float) -> float:
    """1 - (1 - chance)^count: that it happens to at least one of so many, with all digits however
    small it is.
    """
    need(count=count, least=0.0)
    need(chance=chance, least=0.0, most=1.0)
    if chance == 1:
        return 1.0 if count else 0.0
    return -math.expm1(count * math.log1p(-chance))


def loss_independent(code: Code, *, groups: int, node_chance: float) -> float:
    """That any of the groups is lost, nodes failing each by itself. Exact."""
    need(groups=groups, least=1)
    return any_of(groups, loss_of_group(code, node_chance))


def loss_of_any(code: Code, *, groups: int, failed: int) -> float:
    """That exactly `failed` nodes, any of the N = groups x (k + m) with the same chance, take a
    group with them. Exact, by counting subsets.

    Of the C(N, failed) subsets, those that spare every group are the coefficient of z^failed in
    (sum over j <= m of C(k + m, j) z^j)^groups.
    """
    nodes = groups * code.size
    need(groups=groups, least=1)
    need(failed=failed, least=0, most=min(nodes, EXACT_SUBSETS_MAX_COUNT))
    harmless = [math.comb(code.size, j) for j in range(code.parity + 1)]
    spared = _power(harmless, groups, failed)
    total = math.comb(nodes, failed)
    return (total - (spared[failed] if failed < len(spared) else 0)) / total


def loss_bound_gemini(*, nodes: int, copies: int, failed: int) -> float:
    """An upper bound of `loss_of_any` for copies in groups of their own: min(1, (N / m) C(N - m, k
    - m) / C(N, k)), m copies, k failed nodes.

    GEMINI (SOSP 2023) gives 1 minus this as a lower bound of the chance to recover from memory. It
    is the union bound over groups: exact up to failed < 2 m, where no two groups can be lost at
    once. Independent failures only.
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
    """The coefficients of base^exponent up to z^degree."""
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


# --- racks and feeds ------------------------------------------------------------------------------


class Placement(str, Enum):
    PACKED = "packed"  # whole groups within a rack
    SPREAD = "spread"  # every member in another rack, the racks of a group on one feed
    BY_FEED = "by feed"  # every member in another rack, those racks spread evenly over all feeds


@dataclass(frozen=True, slots=True)
class Site:
    """A regular cluster: `racks` racks of `nodes_per_rack` nodes each, the racks divided evenly
    over `feeds` feeds.
    """

    racks: int
    nodes_per_rack: int
    feeds: int = 1

    def __post_init__(self) -> None:
        need(racks=self.racks, nodes_per_rack=self.nodes_per_rack, feeds=self.feeds, least=1)
        if self.racks % self.feeds:
            raise UsageError(
                f"{self.racks} racks do not divide evenly over {self.feeds} feeds",
                hint="round racks up to a multiple of feeds",
            )


def loss_correlated(code: Code, site: Site, chances: Chances, placement: Placement) -> float:
    """That state is lost, for a regular placement.

    Exact: given which feeds fail, sets of racks are independent; given which racks, groups are.

    Raises UsageError where the groups do not fit the site evenly: `packed` needs nodes_per_rack a
    multiple of k + m; `spread` racks on each feed, and `by_feed` k + m and racks, multiples so that
    every set of k + m racks is alike.
    """
    if placement is Placement.PACKED:
        return _loss_packed(code, site, chances)
    width = code.size
    if placement is Placement.BY_FEED:
        _divides(width, site.feeds, "a group's members over the feeds")
    _divides(
        site.racks if placement is Placement.BY_FEED else site.racks // site.feeds,
        width,
        "racks into sets of one rack for each member",
    )
    dark = width // site.feeds if placement is Placement.BY_FEED else 0
    sets = site.racks // width

    def loss_of_set(lost: int) -> float:
        """Of so many racks that have no power, in a set of k + m racks with nodes_per_rack groups
        across them.
        """
        terms = (
            math.comb(width - lost, j)
            * chances.rack**j
            * (1 - chances.rack) ** (width - lost - j)
            * any_of(site.nodes_per_rack, loss_of_group(code, chances.node, lost=lost + j))
            for j in range(width - lost + 1)
        )
        return min(1.0, math.fsum(terms))

    if placement is Placement.SPREAD:  # a feed has its own sets, and takes them with it
        on_feed = any_of(sets // site.feeds, loss_of_set(0))
        return any_of(site.feeds, _or_else(chances.feed, on_feed))
    given_feeds = (
        math.comb(site.feeds, j)
        * chances.feed**j
        * (1 - chances.feed) ** (site.feeds - j)
        * any_of(sets, loss_of_set(j * dark))
        for j in range(site.feeds + 1)
    )
    return min(1.0, math.fsum(given_feeds))


def _loss_packed(code: Code, site: Site, chances: Chances) -> float:
    _divides(site.nodes_per_rack, code.size, "a rack's nodes into groups")
    in_rack = any_of(site.nodes_per_rack // code.size, loss_of_group(code, chances.node))
    of_rack = _or_else(chances.rack, in_rack)
    return any_of(site.feeds, _or_else(chances.feed, any_of(site.racks // site.feeds, of_rack)))


def _or_else(outright: float, otherwise: float) -> float:
    """The whole domain is lost, which no group in it outlives; or, where it is not, something in
    it.
    """
    return min(1.0, outright + (1 - outright) * otherwise)


def _divides(whole: int, part: int, what: str) -> None:
    if whole % part:
        raise UsageError(
            f"{what}: {whole} does not divide evenly by {part}",
            hint="change the site or the code so that every group lies alike",
        )


def place(code: Code, site: Site, placement: Placement) -> list[list[int]]:
    """The groups of a regular placement, as lists of nodes; node i stands in rack i //
    nodes_per_rack, rack r hangs on feed r // (racks / feeds).
    """
    racks = [
        range(rack * site.nodes_per_rack, (rack + 1) * site.nodes_per_rack)
        for rack in range(site.racks)
    ]
    if placement is Placement.PACKED:
        _divides(site.nodes_per_rack, code.size, "a rack's nodes into groups")
        return [
            list(rack[at : at + code.size])
            for rack in racks
            for at in range(0, site.nodes_per_rack, code.size)
        ]
    order = list(range(site.racks))
    if placement is Placement.BY_FEED:  # deal one rack of each feed in turn
        _divides(code.size, site.feeds, "a group's members over the feeds")
        order = [
            feed * (site.racks // site.feeds) + at
            for at in range(site.racks // site.feeds)
            for feed in range(site.feeds)
        ]
    _divides(
        site.racks if placement is Placement.BY_FEED else site.racks // site.feeds,
        code.size,
        "racks into sets of one rack for each member",
    )
    sets = [order[at : at + code.size] for at in range(0, site.racks, code.size)]
    return [
        [racks[rack][slot] for rack in one] for one in sets for slot in range(site.nodes_per_rack)
    ]


def loss_by_enumeration(
    code: Code, site: Site, chances: Chances, groups: Sequence[Sequence[int]]
) -> float:
    """That state is lost, for any placement of groups that share no node: the sum over every state
    of racks and feeds. Exact.

    Racks and feeds that can fail must be at most 20 together.
    """
    if len({node for group in groups for node in group}) != sum(map(len, groups)):
        raise UsageError("a node stands in two groups", hint="place every node in one group")
    feeds = range(site.feeds) if chances.feed else range(0)
    racks = range(site.racks) if chances.rack else range(0)
    if len(feeds) + len(racks) > DOMAINS_MAX_COUNT:
        raise UsageError(
            f"{len(feeds) + len(racks)} racks and feeds have too many states to visit",
            hint="use loss_correlated, which has a formula",
        )
    racks_per_feed = site.racks // site.feeds
    total = []
    for state in itertools.product((False, True), repeat=len(feeds) + len(racks)):
        dark = {feed for feed, down in zip(feeds, state, strict=False) if down}
        down_racks = {rack for rack, down in zip(racks, state[len(feeds) :], strict=True) if down}
        weight = math.prod(
            chances.feed if down else 1 - chances.feed for down in state[: len(feeds)]
        )
        weight *= math.prod(
            chances.rack if down else 1 - chances.rack for down in state[len(feeds) :]
        )
        losses = Counter(
            sum(
                _is_down(node // site.nodes_per_rack, down_racks, dark, racks_per_feed)
                for node in group
            )
            for group in groups
        )
        survive = math.fsum(
            count * _log1m(loss_of_group(code, chances.node, lost=lost))
            for lost, count in losses.items()
        )
        total.append(weight * -math.expm1(survive))
    return min(1.0, math.fsum(total))


def _is_down(rack: int, down_racks: set[int], dark: set[int], racks_per_feed: int) -> bool:
    return rack in down_racks or rack // racks_per_feed in dark


def _log1m(chance: float) -> float:
    return math.log1p(-chance) if chance < 1 else -math.inf
