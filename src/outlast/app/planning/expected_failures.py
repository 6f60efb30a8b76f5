"""How often a run is expected to fail, from a cluster file: what `--keep disk:auto` begins with."""

from __future__ import annotations

from outlast.engine.save_interval import ExpectedFailures
from outlast.planner.cluster_file import Origin, defaults, parse
from outlast.planner.resolve import rate_per_s, resolve
from outlast.runtime.folders.given import read_text


def expected_failures(cluster_file: str | None, *, world_size: int) -> ExpectedFailures:
    """Return the expected rate of failures of a run with `world_size` GPUs.

    It adds up the classes of failures in `cluster_file`, as `outlast calibrate` writes it; None: in
    the planner's stated defaults, the rate of Llama 3's GPUs. Raises UsageError for a file that
    cannot be read.
    """
    if cluster_file is None:
        cluster, source = defaults(), "the rate of Llama 3's GPUs"
    else:
        cluster, source = parse(read_text(cluster_file), source=cluster_file), cluster_file
    cluster = cluster.put(
        "job.gpus",
        str(world_size),
        origin=Origin.FLAG,
        source="the run",
        name="the number of ranks",
    )
    scenario = resolve(cluster).scenario
    per_s = sum(rate_per_s(rate, scenario.job) for rate in scenario.failures)
    mttf_s = 1 / per_s if per_s > 0 else float("inf")
    return ExpectedFailures(mttf_s, f"{source}, for {world_size} GPUs")
