"""Exports of logs that hold many records on one line, or deep in the answer of a service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.diagnose.findings import Finding
from outlast.diagnose.logs import log_answers, read_lines
from outlast.diagnose.logs.tracebacks import RaisedAt
from outlast.model.limits import EVIDENCE_READ_BYTES
from outlast.model.pieces import Piece
from outlast.runtime.evidence.lines import Lines
from tests.diagnose.logs._lines_to_pack import RAISED, STEPS, stamp

PLACE = "check (srv/batch.py:7)"
POD = "fit-worker-1"
ROWS = list(enumerate(STEPS + RAISED))
FIRST_MS = 1795488060_500


def read(folder: Path, text: str) -> list[bytes]:
    path = folder / "export.json"
    path.write_text(text)
    return list(Lines(Piece("export.json", path, path.stat().st_size)))


def raised(lines: list[bytes]) -> list[tuple[str, str | None, float | None]]:
    """Return where exceptions were raised, by which writer, and at what second of the minute."""
    found: list[Finding] = list(read_lines(lines, name="export.json"))
    return [
        (one.place, one.node, None if one.at_s is None else one.at_s % 60)
        for one in found
        if isinstance(one, RaisedAt)
    ]


DOCKER = [{"log": f"{text}\n", "stream": "stderr", "time": stamp(at)} for at, text in ROWS]
GOOGLE = [
    {
        "textPayload": text,
        "resource": {"labels": {"pod_name": POD, "container_name": "trainer"}},
        "timestamp": stamp(at),
    }
    for at, text in ROWS
]
CLOUDWATCH = [
    {"timestamp": FIRST_MS + 1000 * at, "message": text, "ingestionTime": FIRST_MS + 1000 * at}
    for at, text in ROWS
]
INSIGHTS = [
    [
        {"field": "@timestamp", "value": f"2026-11-24 02:41:{at:02}.500"},
        {"field": "@message", "value": text},
        {"field": "@logStream", "value": POD},
    ]
    for at, text in ROWS
]
ELASTIC = [
    {
        "_index": "logs",
        "_source": {
            "@timestamp": stamp(at),
            "message": text,
            "kubernetes": {"pod": {"name": POD}, "container": {"name": "trainer"}},
        },
    }
    for at, text in ROWS
]


def streams(rows: list[tuple[int, str]]) -> list[dict[str, Any]]:
    """Return one stream of Loki for each pod; one of them raised."""
    return [
        {
            "stream": {"pod": pod, "container": "trainer"},
            "values": [
                [str((FIRST_MS + 1000 * at) * 10**6), text]
                for at, text in rows
                if pod == POD or at < len(STEPS)
            ],
        }
        for pod in ("fit-worker-0", POD)
    ]


ANSWERS = {
    "docker": (DOCKER, None),
    "google": (GOOGLE, POD),
    "google newest first": (GOOGLE[::-1], POD),
    "google, its API": ({"entries": GOOGLE[::-1], "nextPageToken": "a"}, POD),
    "loki": (
        {"status": "success", "data": {"resultType": "streams", "result": streams(ROWS)}},
        POD,
    ),
    "loki newest first": ({"data": {"result": streams(ROWS[::-1]), "stats": {}}}, POD),
    "elastic": ({"took": 3, "hits": {"total": {"value": 18}, "hits": ELASTIC}}, POD),
    "cloudwatch": ({"events": [{**one, "logStreamName": POD} for one in CLOUDWATCH]}, POD),
    "cloudwatch, one stream": ({"events": CLOUDWATCH, "nextForwardToken": "f/1"}, None),
    "cloudwatch insights": ({"results": INSIGHTS[::-1], "status": "Complete"}, POD),
}


@pytest.mark.parametrize("indent", [None, 2], ids=["one line", "many lines"])
@pytest.mark.parametrize(("answer", "node"), ANSWERS.values(), ids=ANSWERS)
def test_the_answer_of_a_service_is_read_record_by_record(
    answer: object, node: str | None, indent: int | None, tmp_path: Path
) -> None:
    lines = read(tmp_path, json.dumps(answer, indent=indent) + "\n")
    assert raised(lines) == [(PLACE, node, len(ROWS) - 1 + 0.5)]


def of_hosts(at: int, host: str, text: str) -> list[dict[str, Any]]:
    """Return what collectors say of a file on a host: Loki's, and Elastic's."""
    path = f"/var/log/train/{host}.out"
    return [
        {"line": text, "timestamp": stamp(at), "labels": {"host": host, "filename": path}},
        {
            "_source": {
                "@timestamp": stamp(at),
                "message": text,
                "host": {"name": host},
                "agent": {"type": "filebeat"},
                "log": {"file": {"path": path}, "offset": at},
            }
        },
    ]


@pytest.mark.parametrize("kind", [0, 1], ids=["loki", "elastic"])
def test_lines_of_hosts_are_read_apart_and_the_host_is_the_node(kind: int, tmp_path: Path) -> None:
    """Both raise at once, line by line in turns."""
    records = [
        of_hosts(at, host, text.replace("batch.py", f"{host}.py"))[kind]
        for at, text in ROWS
        for host in ("gpu-1", "gpu-2")
    ]
    found = raised(read(tmp_path, json.dumps(records)))
    at_s = len(ROWS) - 1 + 0.5
    assert sorted(found) == [(f"check (srv/{one}.py:7)", one, at_s) for one in ("gpu-1", "gpu-2")]


def test_what_follows_the_list_is_read_too(tmp_path: Path) -> None:
    """Each page of an export may be a line, and other lines may stand behind them."""
    page = json.dumps(DOCKER[:12])
    text = f"{page}\n{json.dumps({'entries': DOCKER[12:]})}\nthe end\n"
    lines = read(tmp_path, text)
    assert raised(lines) == [(PLACE, None, len(ROWS) - 1 + 0.5)]
    assert lines[-1] == b"the end"


def test_a_long_export_is_read_without_being_held(tmp_path: Path) -> None:
    """Method: more than two chunks, whose ends lie within records and within a letter."""
    padded = [{**one, "log": "ü" * 700 + str(one["log"])} for one in DOCKER[:12]] * 400
    records = [*padded, *DOCKER[12:]]
    text = json.dumps(records, ensure_ascii=False)
    assert len(text.encode()) > 2 * EVIDENCE_READ_BYTES
    lines = read(tmp_path, text)
    assert [json.loads(line) for line in lines] == records


def test_a_broken_record_costs_no_other_one(tmp_path: Path) -> None:
    whole = [json.dumps(one) for one in DOCKER]
    broken = ",".join([*whole[:5], '{"log": tru, "n": 1}', *whole[5:]])
    lines = read(tmp_path, f"[{broken}]")
    assert [json.loads(line) for line in lines] == DOCKER
    cut = read(tmp_path, f"[{','.join(whole)}]"[:-20])
    assert [json.loads(line) for line in cut if line] == DOCKER[:-1]


def test_what_is_no_json_is_given_up_as_an_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_answers, "BROKEN_MAX", 3)
    whole = json.dumps(DOCKER[0])
    broken = '{"log": tru},' * 9
    text = f"[{whole},{broken}{whole}]\nValueError: boom\n"
    assert read(tmp_path, text)[-1] == b"ValueError: boom"


@pytest.mark.parametrize(
    "text",
    [
        '[{"step": 3, "loss": 2.5}, {"step": 4, "loss": 2.4}]\n',  # metrics
        '{"event": "failed", "items": [{"message": "boom"}]}\n{"event": "again"}\n',
        "[{'name': 'a', 'message': 'b'}]\nstep 3\n",  # a list as Python prints it
        '{"hits": 3, "entries": []}\n',
        "[rank0]: step 3\n[rank1]: step 3\n",
    ],
)
def test_other_lines_stay_as_they_are(text: str, tmp_path: Path) -> None:
    assert read(tmp_path, text) == text.encode().splitlines()


PARTS = st.sampled_from(
    [
        *'[]{},:"\\ \n',
        '[{"',
        '{"data":',
        '{"result":[',
        '{"stream":',
        '"values":[',
        '["1","a"]',
        json.dumps(DOCKER[0]),
        "null",
        "1",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(PARTS, max_size=30), st.integers(1, 9))
def test_bytes_of_any_shape_are_read_to_their_end(parts: list[str], size: int) -> None:
    data = ('[{"log": "a\\n", "stream": "stderr"},' + "".join(parts)).encode()
    head = 64
    chunks = iter([data[at : at + size] for at in range(head, len(data), size)])
    answer = log_answers.open_answer(data[:head], chunks)
    assert answer is not None
    assert next(iter(answer), None) is not None
    list(answer)
    assert data.endswith(answer.rest)
