"""Calls that torch compares between ranks: the lines of all ranks show which one is the odd one."""

from __future__ import annotations

from itertools import cycle

import pytest

from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse import decide
from outlast.diagnose.logs import read_lines
from outlast.diagnose.logs.fingerprints import odd_call
from outlast.model.terms import FailureClass, Mechanism

# As torch 2.13 prints it, without the device types behind the data types.
CALL = "CollectiveFingerPrint(SequenceNumber={n}, OpType={op}{more}, TensorDeviceTypes=...)"
LINE = (
    "[rank{a}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {a} is running"
    " collective: {one}, but Rank {b} is running collective: {other}.Collectives differ in the"
    " following aspects: \t Tensor Tensor dtypes: Floatvs Double"
)
FLOAT = ("ALLREDUCE", ", TensorShape=[256], TensorDtypes=Float")
DOUBLE = ("ALLREDUCE", ", TensorShape=[256], TensorDtypes=Double")
BARRIER = ("BARRIER", "")


def lines(calls: list[tuple[str, str]], n: int = 40) -> list[Finding]:
    """Each rank compares its call with the first rank that made another one."""
    said = [CALL.format(n=n, op=op, more=more) for op, more in calls]
    text = [
        LINE.format(
            a=rank,
            one=said[rank],
            b=next(at for at, other in enumerate(said) if other != said[rank]),
            other=next(other for other in said if other != said[rank]),
        )
        for rank in range(len(calls))
    ]
    return list(read_lines([one.encode() for one in text], name="log"))


@pytest.mark.parametrize(
    ("calls", "odd", "sentence"),
    [
        ([FLOAT, DOUBLE, FLOAT], [1], "called allreduce double [256] where most ranks called"),
        ([BARRIER, FLOAT, FLOAT, FLOAT], [0], "called barrier where most ranks called allreduce"),
        ([FLOAT, FLOAT, FLOAT, DOUBLE, BARRIER], [3, 4], "allreduce double [256] or barrier"),
    ],
)
def test_a_rank_that_calls_what_most_ranks_do_not_is_guilty(
    calls: list[tuple[str, str]], odd: list[int], sentence: str
) -> None:
    """All ranks raise the same error, so that no rank stands out by having failed."""
    said = decide(lines(calls), blame=None)
    assert [one.rank for one in said.ranks] == odd
    assert (said.failure_class, said.mechanism) == (FailureClass.USER_CODE, Mechanism.EXCEPTION)
    assert sentence in said.reason


@pytest.mark.parametrize("calls", [[FLOAT, DOUBLE], [FLOAT, DOUBLE, FLOAT, DOUBLE]])
def test_without_a_majority_of_calls_no_rank_is_guilty(calls: list[tuple[str, str]]) -> None:
    said = decide(lines(calls), blame=None)
    assert said.failure_class is FailureClass.USER_CODE
    assert said.ranks == ()


def test_only_the_first_number_at_which_calls_differ_counts() -> None:
    """After a missed call every later one differs, and the majority may be another one."""
    later = lines([DOUBLE, FLOAT, FLOAT], n=41)
    odd = odd_call([*later, *lines([FLOAT, DOUBLE, FLOAT])])
    assert odd is not None
    assert odd.ranks == (1,)


def test_a_rank_that_received_another_size_is_not_guilty_of_it() -> None:
    """Gloo aborts the rank that received what it did not expect, and names no sender.

    Method: the log of that rank beside that of one that lost its peer, without a launcher's table.
    """
    texts = {
        "attempt_0/0/stderr.log": (
            "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
            "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <="
            " op.nbytes. 344 vs 172. Received data size doesn't match expected size. Is there a"
            " distributed collective mismatch in your code?\n"
        ),
        "attempt_0/2/stderr.log": (
            "[rank2]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer"
            " [127.0.0.1]:8866\n"
        ),
    }
    found = [
        one
        for name, text in texts.items()
        for one in read_lines(text.encode().splitlines(keepends=True), name=name)
    ]
    said = decide(found, blame=None)
    assert said.ranks == ()
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL" in said.next_test


def test_a_line_of_any_length_is_read_in_linear_time() -> None:
    """Method: a line full of beginnings of fingerprints, none of which ends."""
    part = cycle(["rank 1 is running collective: collectivefingerprint(sequencenumber=1, "])
    line = "Detected mismatch between collectives on ranks. " + "".join(
        next(part) for _ in range(800)
    )
    [finding] = read_lines([line.encode()], name="log")
    assert odd_call([finding]) is None
