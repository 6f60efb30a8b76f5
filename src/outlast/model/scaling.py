"""Calculate how far a run can grow before it fails faster than it can save.

There is one answer for each named assumption about storage, network and the growth of the model.

Units      GPUs (a float, because caps reach 1e25), seconds, bytes, bytes per second.
Symbols    N     gpus
           m     unit_mttf_s: mean time to failure of one GPU; M(N) = m / N
           S(N)  state to save: S0 (N / N0)^a. With a = 0 the model stays as it is. a = 1/2 is
                 Chinchilla scaling (parameters ~ sqrt(compute), compute ~ N)
           B(N)  bandwidth of the whole system: b0 for storage that does not grow, otherwise
                 b N^beta, where b is that of one GPU
           T(N)  seconds for one save, or one load: S(N) / B(N) + latency(N)
Cap        The N at which M(N) = T(N). It is not a usable size, because progress approaches 0 long
           before. `run_at_best_interval` says how much of the time is productive.
Sources    The caps for fixed and scaled storage are our reconstruction of Epoch AI, "Hardware
           failures won't limit AI scaling", 2024. Their formula is not known to us. The forms for
           memory are our own. A d-dimensional torus of N nodes has bisection ~ N^((d-1)/d).
Limits     The failure rate per GPU is constant, saves block training, saving and loading have the
           same bandwidth, the interval is the best one, and there are always enough spares.

This module is pure: numbers in, numbers out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from outlast.model.intervals import best_efficiency, best_s
from outlast.model.quantities import need

GPUS_MAX = 1e40  # a cap above this counts as no cap


class Latency(str, Enum):
    """This says how the time of a message to all GPUs grows, apart from its bytes."""

    NONE = "none"
    RING = "ring"  # one hop after the other: hop x N
    TREE = "tree"  # hop x log2 N


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth S(N) = state_bytes (N / at_gpus)^exponent. It also holds below at_gpus."""

    name: str
    state_bytes: float
    exponent: float = 0.0
    at_gpus: float = 1.0

    def __post_init__(self) -> None:
        need(state_bytes=self.state_bytes, at_gpus=self.at_gpus, above=0.0)
        need(exponent=self.exponent, least=0.0)

    def bytes_at(self, gpus: float) -> float:
        return self.state_bytes * math.pow(gpus / self.at_gpus, self.exponent)


def fixed_model(state_bytes: float) -> Growth:
    """Return a growth in which the model and its state keep their size, in bytes."""
    return Growth("fixed model", state_bytes)


def chinchilla(state_bytes: float, at_gpus: float) -> Growth:
    """Return the growth of a model whose state grows with the square root of N.

    `state_bytes` is its state at `at_gpus`.
    """
    return Growth("Chinchilla-scaled model", state_bytes, 0.5, at_gpus)


def whole_memory(memory_bytes: float) -> Growth:
    """Return the growth if the whole memory of every GPU is saved: S = memory_bytes x N."""
    return Growth("whole GPU memory", memory_bytes, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Network:
    """A network with B(N) = bandwidth N^exponent, and a latency."""

    name: str
    bandwidth: float
    exponent: float
    latency: Latency = Latency.NONE
    hop_s: float = 0.0

    def __post_init__(self) -> None:
        need(bandwidth=self.bandwidth, above=0.0)
        need(exponent=self.exponent, hop_s=self.hop_s, least=0.0)

    def latency_s(self, gpus: float) -> float:
        return (
            self.hop_s
            * {Latency.NONE: 0.0, Latency.RING: gpus, Latency.TREE: math.log2(max(1.0, gpus))}[
                self.latency
            ]
        )

    def bytes_s(self, gpus: float, growth: Growth) -> float:
        """Return the seconds for the bytes alone."""
        return growth.bytes_at(gpus) / (self.bandwidth * math.pow(gpus, self.exponent))

    def with_latency(self, latency: Latency, hop_s: float) -> Network:
        return Network(
            f"{self.name}, {latency.value} latency", self.bandwidth, self.exponent, latency, hop_s
        )


def constant_storage(bandwidth: float) -> Network:
    """Return the network of one storage system that is not enlarged."""
    return Network("constant storage", bandwidth, 0.0)


def torus(dimensions: int, gpu_bandwidth: float) -> Network:
    """Return the network in which all state crosses the bisection of a torus: b N^((d-1)/d)."""
    need(dimensions=dimensions, least=1)
    return Network(f"{dimensions}D torus", gpu_bandwidth, (dimensions - 1) / dimensions)


def full_bisection(gpu_bandwidth: float) -> Network:
    """Return a fat tree without oversubscription: each GPU moves its shard at its own speed."""
    return Network("full bisection", gpu_bandwidth, 1.0)


def transfer_s(gpus: float, growth: Growth, network: Network) -> float:
    """Return T(N), the time of one save or one load."""
    return network.bytes_s(gpus, growth) + network.latency_s(gpus)


def cap_gpus(
    unit_mttf_s: float, growth: Growth, network: Network, *, transfers: float = 1.0
) -> float:
    """Return the N at which the time between failures is as long as `transfers` transfers.

    1 transfer is a save, and 2 are a save and a load. The result is inf if N is not below 1e40.

    Without latency it is (m b N0^a / (transfers S0))^(1 / (1 + a - beta)). There is no cap if
    a - beta <= -1.
    """
    need(unit_mttf_s=unit_mttf_s, transfers=transfers, above=0.0)
    return _last(lambda gpus: transfers * transfer_s(gpus, growth, network) <= unit_mttf_s / gpus)


def cap_storage_fixed_gpus(unit_mttf_s: float, save_s: float) -> float:
    """Return N = m / delta, the cap if neither the model nor its storage grows."""
    need(unit_mttf_s=unit_mttf_s, save_s=save_s, above=0.0)
    return unit_mttf_s / save_s


def cap_storage_chinchilla_gpus(unit_mttf_s: float, save_s: float, at_gpus: float) -> float:
    """Return the cap of a Chinchilla-scaled model on storage that does not grow.

    N = (m sqrt(N0) / delta0)^(2/3), if it takes delta0 = save_s to save at N0 = at_gpus.
    """
    need(unit_mttf_s=unit_mttf_s, save_s=save_s, at_gpus=at_gpus, above=0.0)
    return math.pow(unit_mttf_s * math.sqrt(at_gpus) / save_s, 2 / 3)


def exponent_for_cap(unit_mttf_s: float, growth: Growth, bandwidth: float, gpus: float) -> float:
    """Return the exponent beta of a network, without latency, whose cap is this number of GPUs."""
    need(unit_mttf_s=unit_mttf_s, bandwidth=bandwidth, above=0.0)
    need(gpus=gpus, least=2.0)
    return 1 - math.log(unit_mttf_s * bandwidth / growth.bytes_at(gpus)) / math.log(gpus)


# --- the productive share, and its costs ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScaledRun:
    """A run of `gpus` GPUs, at the interval that is best for it.

    costs  by term, the logarithm of the factor by which the run takes longer. They sum to
           -ln(efficiency). "restart" is detection and re-initialisation. "bandwidth" is saves,
           loads and repeated work, as far as bytes cause them. "latency" is the same for hops
    """

    gpus: float
    mttf_s: float
    save_s: float
    interval_s: float
    efficiency: float
    costs: dict[str, float]

    @property
    def binding(self) -> str:
        """Return the name of the largest of the costs."""
        return max(self.costs, key=lambda term: self.costs[term])


def run_at_best_interval(
    gpus: float, *, unit_mttf_s: float, growth: Growth, network: Network, restart_s: float
) -> ScaledRun:
    """Return a run of `gpus` GPUs at the best interval of Daly's cost.

    Saving and loading take T(N) each. A restart takes `restart_s` (detection, new members,
    re-initialisation) and a load.

    If a save took no time, there would be no cost of saves and repeated work. So their whole cost
    counts as that of the transfer.
    """
    need(gpus=gpus, least=1.0)
    need(unit_mttf_s=unit_mttf_s, above=0.0, endless=True)
    need(restart_s=restart_s, least=0.0)
    mttf_s, save_s = unit_mttf_s / gpus, transfer_s(gpus, growth, network)
    interval_s = best_s(save_s, mttf_s)
    # at the best interval, efficiency = e^(-(tau + delta + R) / M)
    moving = (interval_s + 2 * save_s) / mttf_s if math.isfinite(mttf_s) else 0.0
    late = network.latency_s(gpus) / save_s if save_s > 0 else 0.0
    costs = {
        "restart": restart_s / mttf_s,
        "bandwidth": moving * (1 - late),
        "latency": moving * late,
    }
    return ScaledRun(
        gpus, mttf_s, save_s, interval_s, best_efficiency(save_s, mttf_s, restart_s + save_s), costs
    )


def gpus_at_efficiency(
    efficiency: float, *, unit_mttf_s: float, growth: Growth, network: Network, restart_s: float
) -> float:
    """Return the N above which less than this share of the time is productive.

    The result is inf if it is not below 1e40, and 0 if not even one GPU reaches that share.
    """
    need(efficiency=efficiency, above=0.0, most=1.0)

    def holds(gpus: float) -> bool:
        return (
            run_at_best_interval(
                gpus, unit_mttf_s=unit_mttf_s, growth=growth, network=network, restart_s=restart_s
            ).efficiency
            >= efficiency
        )

    return _last(holds)


def _last(holds: Callable[[float], bool]) -> float:
    """Return the largest N >= 1 for which `holds` is True, to 12 digits.

    `holds` must be True up to some N, and False above. The result is 0 if it is never True, and inf
    if it is True up to 1e40.
    """
    low, high = 0.0, math.log(GPUS_MAX)
    if not holds(1.0):
        return 0.0
    if holds(GPUS_MAX):
        return math.inf
    while high - low > 1e-12 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(math.exp(middle)) else (low, middle)
    return math.exp(low)
