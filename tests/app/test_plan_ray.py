"""`outlast plan --ray`: a real Ray cluster, started for the test, works out what one core does.

Needs `outlast[ray]`.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        find_spec("ray") is None, reason="ray is not installed: pip install 'outlast[ray]'"
    ),
]
ASK = ("--preset", "lab-8", "--sensitivity", "--optimise", "interval", "--json")


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A cluster takes its time to start on a busy machine."""
    command = [sys.executable, "-m", "outlast.app.cli", "plan", *ASK, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=150)


def test_a_ray_cluster_gives_the_same_digits_as_one_core() -> None:
    """Method: `--ray local` starts a cluster that ends with the command; its JSON is compared byte
    by byte.
    """
    on_ray, here = plan("--ray", "local"), plan("--cores", "1")
    assert (on_ray.returncode, here.returncode) == (0, 0), on_ray.stderr
    assert on_ray.stdout == here.stdout


def test_an_address_without_a_cluster_is_an_error_with_a_hint() -> None:
    done = plan("--ray", "127.0.0.1:1")
    assert done.returncode == 2
    assert "there is no Ray cluster at 127.0.0.1:1" in done.stderr
    assert "ray start --head" in done.stderr
