"""Tensors as bytes: between torch and the images of the vault.

`piece` returns a live view of a contiguous CPU tensor (`is_live`), and a copy of any other. A view
takes some microseconds to create. For hundreds of tensors at every step that would be milliseconds,
so `Pieces` keeps views as long as they are valid.

On a GPU   `Pieces` returns bytes that are fetched when the image is written: on a stream of their
           own, straight into the vault, whose pages are registered with CUDA (`devices.pin`).
           `piece` copies such a tensor into fresh memory instead, which is some thirty times
           slower.

Limits     Dense tensors in the dtypes of DTYPES. A DTensor is refused: pass its local tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from outlast.errors import StateError
from outlast.runtime.tiers.image import TensorPiece, TensorSpec
from outlast.runtime.worker.process import devices

DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex128: "C128",
    torch.complex64: "C64",
    # torch 2.7 or newer
    **({torch.float8_e8m0fnu: "F8_E8M0"} if hasattr(torch, "float8_e8m0fnu") else {}),
}
# other readers of safetensors, including torch's own, refuse a file that has any of these
NOT_FOR_OTHERS = ("C128", "F8_E8M0")
_TORCH = {name: dtype for dtype, name in DTYPES.items()}


def spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    """Return the spec of a tensor. Raises StateError for a tensor that no image can contain."""
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise StateError(
            f"{name} is a tensor of {tensor.dtype}, {tensor.layout}, on {tensor.device}",
            hint=f"state must be dense tensors of {', '.join(_TORCH)}",
        )
    if hasattr(tensor, "to_local"):
        raise StateError(f"{name} is a distributed tensor", hint="pass its local tensor")
    return TensorSpec(name, dtype, tuple(tensor.shape))


def is_live(tensor: torch.Tensor) -> bool:
    """Return whether `piece` of this tensor is a view of its memory, and not a copy."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def piece(name: str, tensor: torch.Tensor) -> TensorPiece:
    """Return the tensor's bytes: a view if it `is_live`, otherwise a copy of its present value.

    Raises StateError as `spec_of` does.
    """
    spec = spec_of(name, tensor)
    plain = tensor.detach()
    if not is_live(plain):
        plain = plain.resolve_conj().resolve_neg().cpu().contiguous()
    return TensorPiece(spec, bytes_of(plain))


class OnDevice:
    """The bytes of a tensor on a GPU, as an `Arriving`: fetched when they are written."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._copied: torch.cuda.Event | None = None

    def __len__(self) -> int:
        return self._tensor.nbytes

    def start(self, target: memoryview) -> None:
        """Copy after everything that the current stream has been given so far."""
        if not len(self):
            return
        devices.pin(target)  # for memory that was mapped after the room was reserved
        tensor = self._tensor.contiguous()
        view = torch.frombuffer(target, dtype=torch.uint8).view(tensor.dtype).view(tensor.shape)
        stream = devices.copy_stream(tensor.device)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            view.copy_(tensor, non_blocking=True)
            tensor.record_stream(stream)
            self._copied = stream.record_event()

    def finish(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None


class Pieces:
    """Keep the pieces of the same tensors from step to step.

    A view is created again if its name has another storage, dtype or shape. The storage of the
    tensors of the last call is kept alive.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, torch.dtype, torch.Size, TensorPiece]] = {}

    def of(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> list[TensorPiece]:
        """Return the `piece` of each tensor. Raises StateError."""
        before, self._known = self._known, {}
        pieces = []
        for name, tensor in tensors:
            entry = before.get(name)
            # The view keeps its storage alive, so the same address is the same storage. The
            # cheapest checks come first, because this runs for each tensor at each step.
            if (
                entry is None
                or entry[0] != tensor.data_ptr()
                or entry[1] is not tensor.dtype
                or entry[2] != tensor.shape
                or not tensor.is_contiguous()
                or tensor.is_conj()
                or tensor.is_neg()
            ):
                fetched = tensor.is_cuda and not (tensor.is_conj() or tensor.is_neg())
                new = (
                    TensorPiece(spec_of(name, tensor), OnDevice(tensor.detach()))
                    if fetched
                    else piece(name, tensor)
                )
                entry = (tensor.data_ptr(), tensor.dtype, tensor.shape, new)
                if not (tensor.is_contiguous() if fetched else is_live(tensor)):
                    pieces.append(entry[3])
                    continue
            self._known[name] = entry
            pieces.append(entry[3])
        return pieces


def to_tensor(spec: TensorSpec, data: memoryview) -> torch.Tensor:
    """Return a CPU tensor with memory of its own.

    Raises StateError for a dtype that torch lacks.
    """
    tensor = torch.empty(spec.shape, dtype=dtype_of(spec.name, spec.dtype))
    bytes_of(tensor)[:] = data
    return tensor


def view_of(spec: TensorSpec, data: memoryview) -> torch.Tensor:
    """Return a CPU tensor over these very bytes, which has to be copied from at once.

    If they cannot be written to, it is a copy. Raises StateError as `to_tensor` does.

    To copy first what is copied again next would be most of the cost of a successor's restore,
    because fresh memory takes longer than the copying.
    """
    if data.readonly or not data.nbytes:
        return to_tensor(spec, data)
    return (
        torch.frombuffer(data, dtype=torch.uint8)
        .view(dtype_of(spec.name, spec.dtype))
        .reshape(spec.shape)
    )


def dtype_of(name: str, code: str) -> torch.dtype:
    """Return the dtype of the tensor `name`. Raises StateError for one that this torch lacks."""
    dtype = _TORCH.get(code)
    if dtype is None:
        raise StateError(f"{name} is {code}, which has no counterpart in torch")
    return dtype


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor that `is_live`, to be read or written in place."""
    # numel comes first, because an empty view has no address that NumPy accepts
    if tensor.numel() == 0:
        return memoryview(bytearray())
    return tensor.reshape(-1).view(torch.uint8).numpy().data
