"""A worker's environment is torchrun's."""

from __future__ import annotations

import inspect
import re

from outlast.runtime.agent.environment import OF_A_RANK, RunIdentity, worker_environment

RUN = RunIdentity(
    run_id="r",
    role="trainer",
    world_size=4,
    local_world_size=4,
    master_addr="127.0.0.1",
    master_port=29400,
    max_restarts=3,
)


def test_the_names_are_those_in_the_source_of_the_installed_torch() -> None:
    """Method: read from the source of LocalElasticAgent the upper-case string keys that it writes.
    File timers concern torchrun only.
    """
    from torch.distributed.elastic.agent.server import local_elastic_agent
    from torch.distributed.elastic.multiprocessing import api

    agent = local_elastic_agent.LocalElasticAgent
    source = inspect.getsource(agent._start_workers)
    source += inspect.getsource(
        getattr(agent, "_set_local_rank_env", api.DefaultLogsSpecs.reify)
    ) + inspect.getsource(api.DefaultLogsSpecs.reify)
    theirs = set(re.findall(r'\["([A-Z_]+)"\] =', source)) | set(
        re.findall(r'"([A-Z_]+)": ', source)
    )
    ours = worker_environment({}, RUN, rank=1, local_rank=1, attempt=0, error_file="/e")
    # this one is set by the launcher's user, and handed on
    assert set(ours) == theirs - {"CUDA_VISIBLE_DEVICES"}
    assert len(ours) == 18


def test_the_values_are_torchruns() -> None:
    env = worker_environment(
        {"HOME": "/h", "RANK": "9"}, RUN, rank=2, local_rank=2, attempt=1, error_file="/e"
    )
    assert env == {
        "HOME": "/h",
        "RANK": "2",
        "LOCAL_RANK": "2",
        "GROUP_RANK": "0",
        "ROLE_RANK": "2",
        "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "4",
        "WORLD_SIZE": "4",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29400",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "r",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": "/e",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
    }


def test_a_spare_finds_no_rank_even_if_the_launcher_had_one() -> None:
    env = worker_environment(
        dict.fromkeys(OF_A_RANK, "5"), RUN, rank=None, local_rank=None, attempt=0, error_file=""
    )
    assert not set(OF_A_RANK) & set(env)
    assert env["WORLD_SIZE"] == "4"


def test_the_users_own_threads_and_nccl_setting_stay() -> None:
    base = {"OMP_NUM_THREADS": "7", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    env = worker_environment(base, RUN, rank=0, local_rank=0, attempt=0, error_file="")
    assert env["OMP_NUM_THREADS"] == "7"
    assert env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


def test_a_single_worker_keeps_torchs_own_number_of_threads() -> None:
    alone = RunIdentity(
        run_id="r",
        role="d",
        world_size=1,
        local_world_size=1,
        master_addr="h",
        master_port=1,
        max_restarts=0,
    )
    assert "OMP_NUM_THREADS" not in worker_environment(
        {}, alone, rank=0, local_rank=0, attempt=0, error_file=""
    )
