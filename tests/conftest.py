"""What all tests share: one thread per process, a quiet Hypothesis, GPU tests that skip with a
reason.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from outlast.errors import OutlastError
from outlast.runtime.folders.run_folder import read_card
from outlast.runtime.tiers.vault_owner import vault_folder

# Tests start many processes on few cores; each library would otherwise start a thread per core in
# each of them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

# Under nohup, and in a background job of a shell, some signals are ignored. That would be inherited
# by all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(_number, signal.SIG_DFL)

# A machine that is shared is slow at times: no deadline per example. A failing one is printed so
# that it can be pasted. The same examples each time: who changes one line is not stopped by a case
# of another. `make fuzz` looks for new ones.
settings.register_profile(
    "outlast",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    max_examples=35,
)
settings.register_profile(
    "fuzz", settings.get_profile("outlast"), derandomize=False, max_examples=100
)
settings.load_profile("outlast")


# The collector would go through all modules and tests again and again as more of them come, for a
# third of the time that it takes to collect them.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on the collector looks at what tests make."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `gpu` skip where there is no CUDA device; torch is imported only if one was
    asked for.
    """
    if not any(item.get_closest_marker("gpu") for item in items) or "not gpu" in (
        config.getoption("-m") or ""
    ):
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


@pytest.fixture(scope="session", autouse=True)
def _no_vault_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """At the session's end no run of it has left shared memory behind.

    A launcher that is killed leaves its vault to `--resume`, and a run of the next day removes
    it. So the error names a test that killed a launcher and did not clean up, or a bug.
    """
    yield
    left = []
    # folders may vanish meanwhile, where the session was interrupted: os.walk passes over them
    walk = os.walk(tmp_path_factory.getbasetemp())
    for card in [Path(folder, "run.json") for folder, _, files in walk if "run.json" in files]:
        with contextlib.suppress(OutlastError):  # a test has damaged it on purpose
            vault = vault_folder(str(read_card(card.parent)["run"]))
            left += [f"{vault}, of {card.parent}"] if vault.exists() else []
    assert not left, "vaults are left behind:\n" + "\n".join(left)
