"""A log that prints its own source: the words of failures in it are no failures."""

from __future__ import annotations

import random

import pytest

from outlast.diagnose.fuse import decide
from outlast.diagnose.logs import read_lines
from outlast.diagnose.logs.source_echo import is_source
from outlast.model.terms import FailureClass
from outlast.model.verdict import Role, Verdict

SOURCE = [
    'raise ValueError(f"loss is nan at step {step}")',
    '    raise RuntimeError("CUDA out of memory")',
    "        raise",
    "except torch.cuda.OutOfMemoryError as e:",
    "except (OSError, FileNotFoundError):  # No space left on device",
    "    except ImportError:",
    'assert torch.isfinite(loss), f"loss is inf: {loss}"',
    "        assert self.world_size == 8, 'size mismatch for world'",
    'print("CUDA error: an illegal memory access was encountered")',
    'logger.error("uncorrectable ECC error encountered")',
    'logging.warning("Input/output error, retrying")',
    "if torch.isnan(loss).any():  # loss is nan",
    '    return f"ValueError: {x}"',
    "from torch import OutOfMemoryError",
]
WARNED = [
    "/lib/hydra/core/utils.py:221: UserWarning: register_new_resolver() is deprecated.",
    "Use register_resolver() instead.",
    "",
    "  OmegaConf.register_new_resolver(",
]
SAID = [
    "ValueError: loss is nan at step 3",
    "[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "OSError: [Errno 28] No space left on device",
    "2026-11-22 21:00:00 ERROR loss is nan",
    "[ 1234.567890] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, fallen off the bus",
    "for more information try --help",
    "If reserved memory is >> allocated memory try setting max_split_size_mb",
]
FILE = """\
import os, sys
import torch
from torch import nn

class Muon(torch.optim.Optimizer):
    \"\"\"
    Raises:
        ValueError: if the loss is nan
        RuntimeError: CUDA out of memory, No space left on device
    \"\"\"
    def __init__(self, params, lr=0.02):
        # segfault at 0 ip 00 without this: uncorrectable ECC error encountered
        self.error = "RuntimeError: NCCL error: remote process exited"
        self.hint = "OSError: [Errno 28] No space left on device"
        if lr < 0:
            raise ValueError(f"Invalid learning rate: {lr}")
        try:
            import flash_attn
        except ImportError:
            raise ModuleNotFoundError("No module named 'flash_attn'")
        assert torch.isfinite(lr), f"loss is nan: {lr}"
        dist.init_process_group(backend="nccl")
        torch.cuda.check_error(torch.cuda.cudart().cudaErrorIllegalAddress)
        print("CUDA out of memory. Tried to allocate")
====================================================================================================
Running Python 3.12.7
step:0/1393 val_loss:10.8258 train_time:0ms step_avg:nanms
step:1/1393 train_time:51ms step_avg:nanms
step:2/1393 train_loss:7.8 train_time:151ms step_avg:75.5ms
"""
FAILURES = [
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total",
        FailureClass.GPU_OOM,
    ),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", FailureClass.HBM),
    ("OSError: [Errno 28] No space left on device", FailureClass.STORAGE),
    ("ModuleNotFoundError: No module named 'apex'", FailureClass.DEPENDENCY),
]


def verdict(text: str) -> Verdict:
    return decide(
        list(read_lines((line.encode() for line in text.splitlines()), name="log")), blame=None
    )


@pytest.mark.parametrize("line", SOURCE)
@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "+"])
def test_a_line_of_source_is_known_by_its_form(line: str, prefix: str) -> None:
    assert is_source(prefix + line, [])


@pytest.mark.parametrize("line", SAID)
def test_a_line_that_says_what_happened_is_no_source(line: str) -> None:
    """Whatever stands around it, and it often follows the source at once."""
    assert not is_source(line, SOURCE)


@pytest.mark.parametrize("label", ["", "[rank0]: "])
def test_the_line_of_source_below_a_python_warning_is_source(label: str) -> None:
    """Only the first line that is indented by two is source. What follows is not of the warning."""
    above = [f"{label}{line}" for line in WARNED]
    assert is_source(above[-1], above[:-1])
    assert not is_source(f"{label}  ValueError was raised", above)
    assert not is_source(above[1], above[:1])


def test_warnings_of_a_configuration_library_are_no_invalid_configuration() -> None:
    """Hydra prints four such warnings at each start. Their line of source calls OmegaConf."""
    assert verdict("\n".join(WARNED)).failure_class is FailureClass.UNKNOWN
    stack = '  File "/lib/omegaconf/omegaconf.py", line 3, in load\n'
    assert verdict(f"{stack}omegaconf.version is 2.4").failure_class is FailureClass.UNKNOWN
    raised = "omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct"
    assert verdict(f"Traceback (most recent call last):\n{stack}{raised}").failure_class is (
        FailureClass.USER_CODE
    )


@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "    "])
def test_a_healthy_log_that_begins_with_its_source_names_no_class(prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in FILE.splitlines())
    got = verdict(text)
    assert (got.failure_class, got.evidence) == (FailureClass.UNKNOWN, ())


@pytest.mark.parametrize(("said", "failure_class"), FAILURES)
def test_a_failure_after_an_echo_is_found_as_if_there_were_none(
    said: str, failure_class: FailureClass
) -> None:
    traceback = (
        'Traceback (most recent call last):\n  File "train.py", line 300, in <module>\n'
        f"    loss.backward()\n{said}\n"
    )
    alone, after = verdict(traceback), verdict(FILE + traceback)
    assert alone.failure_class is failure_class
    assert (after.failure_class, after.confidence) == (alone.failure_class, alone.confidence)


def test_any_order_of_the_lines_of_an_echo_names_no_class() -> None:
    """Method: pieces of real-looking source in drawn order, many times."""
    for seed in range(200):
        lines = FILE.splitlines()[4:24]
        random.Random(seed).shuffle(lines)
        roots = [
            one
            for one in read_lines((line.encode() for line in lines), name="log")
            if one.evidence.role is Role.ROOT
        ]
        assert not roots, (seed, roots)
