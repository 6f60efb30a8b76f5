"""Parity: k data parts and m parity rows, of which any k restore the parts that were lost.

    row[q] = sum over places c of weight(q, c) * part[c]         weight(q, c) = 2 ** (q * c)

Sums and products are those of GF(256), byte by byte: a sum is an XOR. Row 0 is the plain XOR of the
parts, and row 1 multiplies each part by another constant (Reed-Solomon, as RAID 6 has it). A lost
part is another such sum, over parts and rows that are left: `weights_to_rebuild` solves for it. So
`fold` does all the work, in both directions, and the bytes may come in any order and in pieces. A
part that is shorter than the row counts as if zeros followed it.

Promises   Any m lost parts are rebuilt bit for bit. Nothing here notices damaged bytes: the seal of
           the image does (model/manifest.py).
Limits     ROWS_MAX rows and PLACES_MAX places.
Sources    H. P. Anvin, The mathematics of RAID-6, 2004.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations

from outlast.errors import CorruptError
from outlast.model.limits import PARITY_ROWS_MAX_COUNT

__all__ = [
    "IS_COMPILED",
    "PLACES_MAX",
    "ROWS_MAX",
    "fold",
    "part_of",
    "rows_to_try",
    "weight",
    "weights_to_rebuild",
]

ROWS_MAX = PARITY_ROWS_MAX_COUNT
PLACES_MAX = 255  # powers of 2 differ up to there, so any two columns are independent
_VALUES, _POLYNOMIAL = 256, 0x11D


def _powers() -> list[int]:
    out, value = [], 1
    for _ in range(_VALUES - 1):
        out.append(value)
        value <<= 1
        if value >= _VALUES:
            value ^= _POLYNOMIAL
    return out


_EXP = _powers()
_LOG = {value: power for power, value in enumerate(_EXP)}


def _times(a: int, b: int) -> int:
    return _EXP[(_LOG[a] + _LOG[b]) % (_VALUES - 1)] if a and b else 0


def _inverse(a: int) -> int:
    return _EXP[-_LOG[a] % (_VALUES - 1)]


def weight(row: int, place: int) -> int:
    """Return the constant by which the part at `place` is multiplied in `row`."""
    return _EXP[row * place % (_VALUES - 1)]


def part_of(length: int, *, data: int, place: int) -> tuple[int, int]:
    """Return where the part `place` of an image begins and ends, if `data` parts divide it.

    All but the last parts are equally long. In a short image the last ones may be empty.
    """
    each = -(-length // data)
    return min(place * each, length), min((place + 1) * each, length)


def rows_to_try(rows: Collection[int], *, lost: int) -> Iterable[tuple[int, ...]]:
    """Return each choice of rows from which `lost` parts can be rebuilt, the cheapest first.

    There are several choices if there are more rows than lost parts. If a row turns out to be
    damaged, the next choice may not need it.
    """
    return combinations(sorted(rows), lost)


def weights_to_rebuild(
    place: int, *, lost: Sequence[int], left: Iterable[int], rows: Sequence[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the weights of each remaining part and each row that give the part at `place`.

    The first value is by place, the second by row. The sum of all products is the part.

    lost   the places whose parts are lost, `place` among them
    left   the places whose parts are there
    rows   as many rows as there are lost places

    Raises CorruptError if there are too few rows.
    """
    if len(rows) < len(lost):
        raise CorruptError(f"{len(lost)} parts are lost, and {len(rows)} rows of parity are left")
    inverted = _invert([[weight(row, one) for one in lost] for row in rows[: len(lost)]])
    of_row = dict(zip(rows, inverted[list(lost).index(place)], strict=False))
    of_part = {}
    for one in left:
        sum_ = 0
        for row, factor in of_row.items():
            sum_ ^= _times(factor, weight(row, one))
        of_part[one] = sum_
    return of_part, of_row


def _invert(matrix: list[list[int]]) -> list[list[int]]:
    """Return the inverse of a square matrix (Gauss and Jordan). It has one: see PLACES_MAX."""
    size = len(matrix)
    both = [[*row, *(int(at == i) for i in range(size))] for at, row in enumerate(matrix)]
    for at in range(size):
        pivot = next(i for i in range(at, size) if both[i][at])
        both[at], both[pivot] = both[pivot], both[at]
        factor = _inverse(both[at][at])
        both[at] = [_times(factor, value) for value in both[at]]
        for i in range(size):
            if i != at and (factor := both[i][at]):
                both[i] = [
                    value ^ _times(factor, other)
                    for value, other in zip(both[i], both[at], strict=True)
                ]
    return [row[size:] for row in both]


# --- the bytes ---------------------------------------------------------------------------------

_PIECE_BYTES = 64 << 10  # the tables for a piece stay in the nearest caches


def plain_fold(target: memoryview, source: memoryview, weight: int) -> None:
    """Add `weight` times each byte of `source` to `target`, in place, with tables of numpy.

    Raises ValueError unless both are one-dimensional, contiguous and of one length, and unless the
    weight is in 0 to 255.
    """
    import numpy  # it is imported here, because an agent with the compiled part does not need it

    if len(target) != len(source):
        raise ValueError(f"the target has {len(target)} bytes, the source {len(source)}")
    if not 0 <= weight < _VALUES:
        raise ValueError(f"the weight is {weight}, and must be 0 to 255")
    into, given = numpy.frombuffer(target, numpy.uint8), numpy.frombuffer(source, numpy.uint8)
    if weight == 1:
        numpy.bitwise_xor(into, given, out=into)
    elif weight:
        table = numpy.array([_times(value, weight) for value in range(_VALUES)], numpy.uint8)
        for at in range(0, len(given), _PIECE_BYTES):
            piece = into[at : at + _PIECE_BYTES]
            numpy.bitwise_xor(piece, table[given[at : at + _PIECE_BYTES]], out=piece)


try:
    from outlast.runtime.tiers._parity import fold
except ImportError:  # there was no C compiler when the package was built
    fold = plain_fold

IS_COMPILED = fold is not plain_fold
