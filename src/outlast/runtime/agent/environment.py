"""The environment of a worker: the variables that torchrun sets, with the same values.

The model is LocalElasticAgent._start_workers of torch 2.13.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OF_A_RANK = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK")


@dataclass(frozen=True)
class RunIdentity:
    """The facts that all workers of a node share.

    `master_port` is the store host's: scripts that call init_process_group("env://") meet there.
    """

    run_id: str
    role: str
    world_size: int
    local_world_size: int
    master_addr: str
    master_port: int
    max_restarts: int
    group_rank: int = 0
    group_world_size: int = 1


def worker_environment(
    base: Mapping[str, str],
    run: RunIdentity,
    *,
    rank: int | None,
    local_rank: int | None,
    attempt: int,
    error_file: str,
) -> dict[str, str]:
    """Return `base` (the launcher's environment) with torchrun's variables added.

    A spare has no rank, so the variables in OF_A_RANK are absent. `attempt` counts restarts of all
    ranks. Torch uses it in the keys of its store, so that the ranks of a new attempt do not find
    the keys of the old one.
    """
    env = {name: value for name, value in base.items() if name not in OF_A_RANK}
    env.update(
        ROLE_NAME=run.role,
        LOCAL_WORLD_SIZE=str(run.local_world_size),
        WORLD_SIZE=str(run.world_size),
        GROUP_WORLD_SIZE=str(run.group_world_size),
        ROLE_WORLD_SIZE=str(run.world_size),
        MASTER_ADDR=run.master_addr,
        MASTER_PORT=str(run.master_port),
        TORCHELASTIC_RESTART_COUNT=str(attempt),
        TORCHELASTIC_MAX_RESTARTS=str(run.max_restarts),
        TORCHELASTIC_RUN_ID=run.run_id,
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_ERROR_FILE=error_file,
        TORCH_NCCL_ASYNC_ERROR_HANDLING=base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    )
    if run.local_world_size > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    if rank is not None and local_rank is not None:
        env.update(
            RANK=str(rank),
            LOCAL_RANK=str(local_rank),
            GROUP_RANK=str(run.group_rank),
            ROLE_RANK=str(rank),
        )
    return env
