"""Our own earlier output is no evidence: recognised as a file, and within a log."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.diagnose import self_output
from outlast.model.limits import OWN_OUTPUT_LINES_MAX
from outlast.model.terms import FailureClass
from outlast.model.verdict import Evidence, Role, Verdict

XID = "NVRM: Xid (PCI:0000:3b:00): 48, pid=1"
VERDICT = Verdict(
    FailureClass.HBM, None, 0.9, "why", "do", evidence=(Evidence("kern.log", 3, XID, Role.ROOT),)
)
SCREEN = [
    "outlast diagnose: hbm (0.90), rank 3",
    "",
    "why",
    f"  kern.log:3  root  {XID}",
    "end of outlast diagnose 0.1.0: 1 file read",
]


def read(lines: list[str]) -> list[str]:
    return [
        line.decode() for line in self_output.without_own_verdicts(line.encode() for line in lines)
    ]


@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "2026-01-02T03:04:05Z stdout F "])
def test_a_verdict_in_a_log_is_left_out_and_line_numbers_stay(prefix: str) -> None:
    log = ["before", *(prefix + line for line in SCREEN), "after"]
    assert read(log) == ["before", "", "", "", "", "", "after"]


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_a_verdict_in_json_in_a_log_is_left_out(prefix: str) -> None:
    text = json.dumps(VERDICT.public(), indent=2).splitlines()
    log = ["before", *(prefix + line for line in text), "after"]
    assert [line for line in read(log) if line and line != prefix + "{"] == ["before", "after"]
    assert read(["before", json.dumps(VERDICT.public()), "after"]) == ["before", "", "after"]


def test_a_first_line_alone_hides_nothing() -> None:
    """Method: it is forged, and longer than any verdict; or it is cut off where the log ends."""
    for log in ([SCREEN[0], XID], [SCREEN[0], *[XID] * (OWN_OUTPUT_LINES_MAX + 5), SCREEN[-1]]):
        assert read(log)[:2] == [SCREEN[0], XID]
        assert len(read(log)) == len(log)


def test_a_log_that_speaks_of_outlast_or_of_classes_is_read() -> None:
    log = [
        "$ outlast diagnose runs/x",
        '{"class": "Linear", "name": "head"}',
        "outlast diagnose: command not found",
        '  "class": "x",',
        "}",
    ]
    assert read(log) == log


@pytest.mark.parametrize(
    "head",
    [
        json.dumps(VERDICT.public()),
        json.dumps(VERDICT.public(), indent=2),
        (
            '<!doctype html>\n<meta charset="utf-8">\n<meta name="generator" content="outlast '
            'diagnose 0.1.0">'
        ),
        "20260102T030405Z-toy-abc123  ended  200 steps on 2 ranks in 20.0 s\n",
        '{\n  "run": "x",\n  "ettr": 0.9,\n  "rank_seconds": {}}',
    ],
)
def test_a_file_of_ours_is_known_by_its_beginning(head: str) -> None:
    assert self_output.is_own_file(head.encode())


@pytest.mark.parametrize(
    "head",
    [
        "{}",
        '{"class": "Linear"}',
        "<!doctype html><p>outlast diagnose",
        "rank 0 ended  ",
        '{"version": "2.9", "pg_config": {}}',
    ],
)
def test_a_file_of_others_is_not_ours(head: str) -> None:
    assert not self_output.is_own_file(head.encode())


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.sampled_from(
                [line.encode() for line in SCREEN] + [b'  "class": "hbm",', b"}", b"{"]
            ),
        ),
        max_size=40,
    )
)
def test_lines_are_never_lost_or_changed_but_emptied(lines: list[bytes]) -> None:
    out = list(self_output.without_own_verdicts(lines))
    assert len(out) == len(lines)
    assert all(now in (before, b"") for now, before in zip(out, lines, strict=True))


def test_a_record_of_a_collection_says_what_was_not_collected() -> None:
    """Method: the record as the collector writes it; cut, changed, and of something else."""
    record = b'{\n "collected_at_s": 1.5,\n "lacking": ["no py-spy", "no pipe"]\n}\n'
    assert self_output.not_collected(record) == ("no py-spy", "no pipe")
    for other in (record[:40], record.replace(b"[", b"{"), record.replace(b"collected_", b""), b""):
        assert self_output.not_collected(other) == ()
