"""Which GPU a line of text names: by its UUID, its PCI address, or its number.

    UUID      GPU-5a2b...                            as nvidia-smi -L prints it
    address   0000:9B:00.0, PCI:0000:9b:00           as the driver and nvidia-smi print it
    number    GPU 3, GPU#3, GPU4:, gpu=3, "gpu": 3   as nvidia-smi numbers the GPUs of a host
              cuda:3, CUDA device 3                  as CUDA numbers those that a process sees

The two numberings differ under CUDA_VISIBLE_DEVICES, so each keeps its own spelling: "GPU 3" and
"cuda:3". A line that names several GPUs shows none of them to be the one that is meant. A number
is also part of names ("gpu-12" is a host) and of amounts ("GPU 80GB"), which are no GPUs.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re

from outlast.diagnose.logs.prefixes import node_told
from outlast.model.terms import FailureClass

OF_A_GPU = frozenset(
    {
        FailureClass.GPU,
        FailureClass.HBM,
        FailureClass.SRAM,
        FailureClass.NVLINK,
        FailureClass.GPU_SYSTEM_PROCESSOR,
        FailureClass.THERMAL,
    }
)
_UUID = re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_ADDRESS = re.compile(r"(?<![\w:])([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)(?!\w|:\w)")
_SPEAKS_OF_GPUS = re.compile(r"gpu|nvidia|nvrm|cuda|hip\b|\bpci\b", re.IGNORECASE)
_END = r"(?![\w-]|[.%:]\d| ?(?:%|/|of\b|[gm]i?b\b))"
_NUMBER = re.compile(
    # in prose, in capitals: a host may be called gpu3
    rf"\bGPU(?: ?#| ?| id:? | index:? | no\.? )(?P<prose>\d{{1,2}}){_END}"
    # a field, as logs of key and value, JSON and YAML write it
    r"|(?i:\bgpu(?:[_.]?(?:id|idx|index|num|number))?[\"']?\s?[=:]\s?[\"']?(?P<field>\d{1,2})"
    r"(?![\w%-]|[.:]\w))"
)
_ORDINAL = re.compile(
    r"\b(?:cuda:|cuda device (?:id:? |#|no\.? )?)(\d{1,2})(?![\w%-]|[.:]\w)", re.IGNORECASE
)
_INDEXED = re.compile(r"(?:GPU |cuda:)\d{1,2}")


def gpu_and_host(of: FailureClass | None, text: str) -> tuple[str | None, str | None]:
    """Return the GPU and the host that a line names; both None unless `of` is a fault of a GPU."""
    return (gpu_of(text), node_told(text)) if of in OF_A_GPU else (None, None)


def gpu_of(text: str) -> str | None:
    """Return the GPU that a line names; None if it names none, or several."""
    named = set(_UUID.findall(text))
    if not named and _SPEAKS_OF_GPUS.search(text):
        named = set(_ADDRESS.findall(text.lower()))
    if not named:
        numbers = {found["prose"] or found["field"] for found in _NUMBER.finditer(text)}
        ordinals = set(_ORDINAL.findall(text))
        named = {f"GPU {int(one)}" for one in numbers} or {f"cuda:{int(one)}" for one in ordinals}
    return named.pop() if len(named) == 1 else None


def is_numbered(device: str) -> bool:
    """Return True for a GPU that is named by its number, which says less than its address."""
    return _INDEXED.fullmatch(device) is not None
