"""Lines that a container's runtime, a cluster's tool or a logging library has packed."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse.verdict_context import commands_of, hosts_of_pods
from outlast.diagnose.logs import read_lines
from outlast.diagnose.logs.json_lines import OfPod
from outlast.diagnose.logs.tracebacks import RaisedAt
from outlast.diagnose.logs.yaml_records import read_mapping
from outlast.model.terms import FailureClass
from tests.diagnose.logs._lines_to_pack import RAISED, STEPS, stamp

PODS = ("fit-worker-0", "fit-worker-1")


def found(lines: list[str], name: str = "log") -> list[Finding]:
    return list(read_lines([f"{line}\n".encode() for line in lines], name=name))


def raised(findings: list[Finding]) -> tuple[str, str | None, float | None]:
    """Return where the one exception was raised, on which node, and at what time of its minute."""
    (one,) = [one for one in findings if isinstance(one, RaisedAt)]
    return one.place, one.node, None if one.at_s is None else one.at_s % 60


def docker(at: int, text: str) -> str:
    return json.dumps({"log": f"{text}\n", "stream": "stderr", "time": stamp(at)})


def cri(at: int, text: str) -> str:
    return f"{stamp(at)} stderr F {text}"


PLACE = "check (srv/batch.py:7)"
LAST = len(STEPS) + len(RAISED) - 1 + 0.5


@pytest.mark.parametrize(
    ("pack", "name", "node"),
    [
        (docker, "a1b2c3d4e5f6" + 52 * "0" + "-json.log", "a1b2c3d4e5f6"),
        (docker, "container.log", None),
        (cri, "var/log/pods/ml_fit-worker-1_77-ab/trainer/0.log", "fit-worker-1"),
        (cri, "containers/fit-worker-1_ml_trainer-" + 64 * "0" + ".log", "fit-worker-1"),
        (lambda at, text: f"{stamp(at)} {text}", "pod.log", None),
    ],
)
def test_the_lines_of_one_container_are_opened(
    pack: Callable[[int, str], str], name: str, node: str | None
) -> None:
    lines = [pack(at, text) for at, text in enumerate(STEPS + RAISED)]
    assert raised(found(lines, name)) == (PLACE, node, LAST)


def google(at: int, pod: str, text: str) -> str:
    labels = {"pod_name": pod, "container_name": "trainer"}
    resource = {"type": "k8s_container", "labels": labels}
    record = {"textPayload": text, "resource": resource, "timestamp": stamp(at)}
    return json.dumps({**record, "labels": {"compute.googleapis.com/resource_name": "gke-a3-x2"}})


def loki(at: int, pod: str, text: str) -> str:
    return json.dumps({"labels": {"pod": pod}, "line": text, "timestamp": stamp(at)})


def fluent_bit(at: int, pod: str, text: str) -> str:
    kubernetes = {"pod_name": pod, "container_name": "trainer", "host": "gke-a3-x2"}
    return json.dumps({"time": stamp(at), "log": text, "kubernetes": kubernetes})


def stern(at: int, pod: str, text: str) -> str:
    where = {"podName": pod, "containerName": "trainer", "nodeName": "gke-a3-x2"}
    return json.dumps({"message": text, "namespace": "ml", **where})


def grafana(at: int, pod: str, text: str) -> str:
    at_ns = str(1795488060_500_000_000 + at * 10**9)
    return json.dumps({"line": text, "timestamp": at_ns, "fields": {"pod": pod}})


def cloudwatch(at: int, pod: str, text: str) -> str:
    """Return what Fluent Bit sent: its lines have no end of line, and are whole."""
    where = {"pod_name": pod, "container_name": "trainer"}
    sent = {"time": stamp(at), "stream": "stderr", "_p": "F", "log": text, "kubernetes": where}
    return json.dumps({"logStreamName": "fluent-bit.trainer", "message": json.dumps(sent)})


@pytest.mark.parametrize(
    "pack",
    [
        google,
        loki,
        fluent_bit,
        stern,
        grafana,
        cloudwatch,
        lambda at, pod, text: f'{stamp(at)} {{container="trainer", pod="{pod}"}} {text}',
        lambda at, pod, text: f"ml {pod} trainer {text}",
        lambda at, pod, text: f"[pod/{pod}/trainer] {text}",
        lambda at, pod, text: f"[pod/{pod}/trainer] {stamp(at)} {text}",
        lambda at, pod, text: f"\x1b[36m{pod}  | \x1b[0m{text}",
        lambda at, pod, text: f"{pod}  | {stamp(at)} {text}",
        lambda at, pod, text: f"{pod} trainer {text}",
        lambda at, pod, text: f"ml/{pod}[trainer]: {text}",
    ],
)
def test_pods_that_write_in_turns_are_read_apart(pack: Callable[[int, str, str], str]) -> None:
    """Method: both raise at once, line by line in turns, each at another place.

    Times are those of the packing, so a plain prefix has none.
    """
    lines = []
    for at, text in enumerate(STEPS + RAISED):
        lines.append(pack(at, PODS[0], text.replace("batch.py", "other.py")))
        lines.append(pack(at, PODS[1], text))
    where = {
        one.node: (one.place, None if one.at_s is None else one.at_s % 60)
        for one in found(lines)
        if isinstance(one, RaisedAt)
    }
    at_s = LAST if "02:41" in lines[0] or "timestamp" in lines[0] else None
    assert where == {
        PODS[0]: ("check (srv/other.py:7)", at_s),
        PODS[1]: (PLACE, at_s),
    }


def test_an_array_of_records_is_read_with_the_oldest_first() -> None:
    """Google's tool prints the newest record first, each over many lines."""
    rows = [json.loads(google(at, PODS[0], text)) for at, text in enumerate(STEPS + RAISED)]
    findings = found(json.dumps(rows[::-1], indent=2).splitlines())
    assert raised(findings) == (PLACE, PODS[0], LAST)
    orders = [one.order for one in findings]
    assert orders == sorted(orders)


def yaml_text(text: str) -> str:
    """Return the text as the tool prints it: it breaks long texts, and quotes what needs it."""
    if "\n" in text:
        return "|-\n" + "\n".join(f"  {line}" for line in text.splitlines())
    head, _, rest = text.rpartition(" ")
    folded = f"{head}\n  {rest}" if head.strip() else rest
    return "'" + folded.replace("'", "''") + "'"


def google_yaml(at: int, pod: str, text: str) -> list[str]:
    return f"""---
insertId: a{at}
labels:
  compute.googleapis.com/resource_name: gke-a3-x2
logName: projects/p/logs/stderr
resource:
  labels:
    container_name: trainer
    pod_name: {pod}
  type: k8s_container
textPayload: {yaml_text(text)}
timestamp: '{stamp(at)}'""".splitlines()


@pytest.mark.parametrize("texts", [STEPS + RAISED, [*STEPS, "\n".join(RAISED)]])
def test_records_of_google_in_yaml_are_read(texts: list[str]) -> None:
    """Each record is a document; a traceback comes line by line, or as one text."""
    records = [google_yaml(at, PODS[at % 2], text) for at, text in enumerate(texts)]
    if len(texts) > len(STEPS) + 1:
        records = [google_yaml(at, PODS[0], text) for at, text in enumerate(texts)]
    findings = found([line for record in records[::-1] for line in record])
    assert raised(findings) == (PLACE, PODS[0], len(texts) - 1 + 0.5)


def test_texts_of_yaml_are_read_as_the_format_says() -> None:
    lines = r"""a: plain words
  that go on
b: 'it''s quoted
  twice

  over'
c: "tab \t and \"more\" \
  \  joined \u00e9"
d: |2-
    indented
  less
e:
  f: {}
list:
- g: 1
h: last""".splitlines()
    assert read_mapping(lines) == {
        "a": "plain words that go on",
        "b": "it's quoted twice\nover",
        "c": 'tab \t and "more"   joined \u00e9',
        "d": "  indented\nless",
        "e": {"f": "{}"},
        "list": None,
        "h": "last",
    }


@pytest.mark.parametrize("pack", [google, stern])
def test_objects_one_behind_the_other_are_read(pack: Callable[[int, str, str], str]) -> None:
    rows = [json.loads(pack(at, PODS[0], text)) for at, text in enumerate(STEPS + RAISED)]
    lines = [line for row in rows for line in json.dumps(row, indent=2).splitlines()]
    assert raised(found(lines))[:2] == (PLACE, PODS[0])


def test_streams_of_cloudwatch_as_text_are_read_apart() -> None:
    lines = [
        f"2026-11-24T02:41:{at:02}.500000+00:00 fit/trainer/{pod} {text}"
        for at, text in enumerate(STEPS + RAISED)
        for pod in PODS
    ]
    where = {one.node for one in found(lines) if isinstance(one, RaisedAt)}
    assert where == {f"fit/trainer/{pod}" for pod in PODS}


def test_a_healthy_job_stays_healthy_in_yaml() -> None:
    records = [google_yaml(at, PODS[at % 2], text) for at, text in enumerate(STEPS)]
    findings = found([line for record in records for line in record])
    assert {type(one) for one in findings} == {OfPod}


def test_other_documents_of_yaml_stay_as_they_are() -> None:
    line = "note: 'RuntimeError: NCCL communicator was aborted'"
    (one, *_) = found(["---", "kind: Job", line, "---", "kind: Service"])
    assert (one.evidence.text, one.evidence.line) == (line, 3)


def test_a_line_that_came_in_parts_is_put_together() -> None:
    """Both runtimes cut long lines: one says so, of the other the end of the line is missing."""
    marked = [
        f"{stamp(1)} stderr {'PF'[end]} {RAISED[-1][12 * end :][: 12 + 99 * end]}" for end in (0, 1)
    ]
    cut = [
        json.dumps({"log": part, "stream": "stderr"})
        for part in (RAISED[-1][:9], RAISED[-1][9:] + "\n")
    ]
    for lines in (
        [cri(0, text) for text in STEPS + RAISED[:-1]] + marked,
        [docker(0, text) for text in STEPS + RAISED[:-1]] + cut,
    ):
        (one,) = [one for one in found(lines) if isinstance(one, RaisedAt)]
        assert one.evidence.text == RAISED[-1]
        assert one.evidence.line == len(lines) - 1


def test_journald_tells_host_and_time() -> None:
    said = "NVRM: Xid (PCI:0000:43:00): 79, pid=1, GPU has fallen off the bus."
    record = {"MESSAGE": said, "_HOSTNAME": "gpu-45", "SYSLOG_IDENTIFIER": "kernel"}
    (one,) = found([json.dumps({**record, "__REALTIME_TIMESTAMP": "1795488069500000"})])
    assert (one.rule, one.node, one.at_s) == ("xid.79", "gpu-45", 1795488069.5)
    letters = {**record, "MESSAGE": list(said.encode())}
    assert [(one.rule, one.node) for one in found([json.dumps(letters)])] == [("xid.79", "gpu-45")]


def test_a_programs_own_records_are_read() -> None:
    """The exception has a key of its own, and the record may lie within a container's."""
    record = {"event": "it failed", "level": "error", "rank": 3, "exception": "\n".join(RAISED)}
    for line in (json.dumps(record), docker(0, json.dumps(record))):
        (one,) = [one for one in found([line]) if isinstance(one, RaisedAt)]
        assert (one.place, one.rank) == (PLACE, 3)


def test_what_a_program_warns_of_is_no_failure() -> None:
    record = {"message": "ValueError: a sample was left out", "level": "warning", "host": "n1"}
    assert found([json.dumps(record)]) == []


@pytest.mark.parametrize(
    "lines",
    [
        ["771204  | OUT_OF_MEMORY | 0:125"],  # a table
        ["INFO     | RuntimeError: boom", "ERROR    | RuntimeError: boom"],  # a log with levels
        ["2026-11-24T02:41:09Z gpu-45 kernel: NVRM: Xid (PCI:0000:43:00): 79, GPU has fallen"],
        ['{"step": 3, "loss": 2.5}', '{"step": 4, "gpu": "CUDA error: out of memory"}'],
    ],
)
def test_what_only_looks_packed_is_left_as_it_is(lines: list[str]) -> None:
    findings = found(lines)
    assert findings
    assert all(one.evidence.text in lines for one in findings)


def test_the_node_of_a_pod_is_cordoned_and_not_the_pod() -> None:
    def commands(lines: list[str]) -> tuple[str, ...]:
        hosts = hosts_of_pods(found(lines))
        gpu = FailureClass.GPU
        return commands_of(
            gpu, nodes=PODS[:1], devices=(), scheduler="kubernetes", winner=None, hosts=hosts
        )

    assert commands([google(0, PODS[0], "x")])[0] == "kubectl cordon gke-a3-x2"
    asks, cordons, _ = commands([f"[pod/{PODS[0]}/trainer] x"])
    assert f"metadata.name={PODS[0]}" in asks
    assert (asks[:7], cordons) == ("NODE=$(", "kubectl cordon $NODE")


def test_a_name_that_cannot_be_printed_is_no_node() -> None:
    line = r'{"MESSAGE": "NVRM: Xid (PCI:0000:43:00): 79, GPU lost", "_HOSTNAME": "n\ud800"}'
    assert [one.node for one in found([line])] == ["localhost"]


KEYS = [
    *("log", "stream", "time", "textPayload", "jsonPayload", "resource", "labels", "pod_name"),
    *("MESSAGE", "_HOSTNAME", "__REALTIME_TIMESTAMP", "message", "event", "exception", "level"),
    *("kubernetes", "host", "_source", "line", "rank", "timestamp", "pod", "name", "attrs"),
    *("fields", "podName", "containerName", "logStreamName", "_p"),
]
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
RECORDS = st.recursive(
    LEAVES | st.just("RuntimeError: boom") | st.just("2026-11-24T02:41:09Z"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=20,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), RECORDS), min_size=1, max_size=4))
def test_records_of_any_shape_are_read(records: list[dict[str, object]]) -> None:
    """Nothing in a record raises, and what it names can be printed."""
    for one in found([json.dumps(record) for record in records]):
        (one.node or "").encode()
        one.evidence.text.encode()
