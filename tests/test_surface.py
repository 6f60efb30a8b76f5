"""The public names of outlast are a table; whoever adds or removes one changes it here and in
CHANGELOG.md.
"""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import outlast

SURFACE = {
    # to use
    "join": "the run this process is part of",
    "main": "enter a training function, and again where recovery needs it",
    "tick": "one iteration of a plain loop is done",
    "load": "weights out of a run, into a model",
    "digest": "a stable hash of all tensors",
    "diagnose": "the verdict on what a job left behind",
    "record_collectives": "answer requests for this rank's flight recorder",
    "StepSampler": "an order of samples that depends on seed and step only",
    "__version__": "",
    # to name in annotations
    "Run": "",
    "State": "",
    "Step": "",
    # to catch
    "OutlastError": "",
    "UsageError": "",
    "TransactionError": "",
    "StateError": "",
    "CapacityError": "",
    "CorruptError": "",
    "DivergedError": "",
}


def test_the_public_names_are_those_of_the_table() -> None:
    assert sorted(outlast.__all__) == sorted(SURFACE)


def test_dir_shows_the_public_names_before_they_are_loaded() -> None:
    assert set(SURFACE) <= set(dir(outlast))


def test_importing_outlast_loads_no_torch() -> None:
    """The names that need torch load it when they are first asked for."""
    program = (
        "import sys, outlast; outlast.__version__; outlast.OutlastError; sys.exit('torch' in"
        " sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=50).returncode == 0


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="jion"):
        _ = outlast.jion


@pytest.mark.parametrize("name", sorted(set(SURFACE) - {"__version__"}))
def test_every_public_name_says_what_it_does(name: str) -> None:
    """A docstring of its own on everything to use or annotate; the errors are explained at the head
    of errors.py.
    """
    thing = getattr(outlast, name)
    if inspect.isclass(thing) and issubclass(thing, outlast.OutlastError):
        assert name in (inspect.getmodule(thing).__doc__ or "")
    else:
        assert thing.__doc__
        public = (
            [member for key, member in vars(thing).items() if not key.startswith("_")]
            if inspect.isclass(thing)
            else []
        )
        silent = [
            member.__qualname__
            for member in public
            if inspect.isfunction(member) and not member.__doc__
        ]
        assert not silent, f"no docstring: {silent}"


def test_the_version_is_the_packages() -> None:
    from importlib.metadata import version

    assert outlast.__version__ == version("outlast")
