"""`outlast metrics`: names, values, bounded cardinality, and a source that cannot be overrun."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from outlast.app.reports.metric_values import METRICS, NAMES, metrics_of
from outlast.app.reports.metrics_command import PAUSES, Source, shipped, text_of
from outlast.errors import CorruptError
from outlast.model.records import Event
from outlast.model.terms import CAUSES, UNMEASURED
from outlast.runtime.ledger.view import RunView, look
from tests.app.command import outlast
from tests.ledger import a_run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "monitor-a-run.md"


def values_of(view: RunView) -> dict[tuple[str, str], float]:
    """Return the values by name and by the value of the label beside `run`, as a scraper does."""
    out = {}
    for family in text_string_to_metric_families(text_of(metrics_of(view)).decode()):
        for sample in family.samples:
            labels = {key: one for key, one in sample.labels.items() if key != "run"}
            assert sample.labels["run"] == view.records.meta.run
            out[sample.name, ",".join(labels.values())] = sample.value
    return out


def test_the_values_are_those_of_status_and_account(tmp_path: Path) -> None:
    view = look(str(a_run.ended_run(tmp_path)))
    values = values_of(view)
    assert values["outlast_step", ""] == 200
    assert values["outlast_run_state", "ended"] == 1
    assert sum(value for (name, _), value in values.items() if name == "outlast_run_state") == 1
    assert values["outlast_wall_seconds", ""] == pytest.approx(20.0)
    assert values["outlast_interruptions_total", "signal"] == 1
    assert values["outlast_interruptions_total", "exit"] == 0, "it is part of the first one"
    assert values["outlast_interruptions_total", "hang"] == 1
    assert values["outlast_steps_repeated_total", ""] == 2
    assert values["outlast_recovery_seconds_count", ""] == 1, "of the hang no fault is known"
    assert values["outlast_recovery_seconds_sum", ""] == pytest.approx(0.1)
    assert values["outlast_recovery_seconds_bucket", "0.05"] == 0
    assert values["outlast_recovery_seconds_bucket", "0.25"] == 1
    assert values["outlast_warnings_total", ""] == 1
    measured = [cause for cause in CAUSES if cause not in UNMEASURED]
    seconds = [values["outlast_rank_seconds", cause.value] for cause in measured]
    assert sum(seconds) == pytest.approx(2 * 20.0)
    for cause in UNMEASURED:
        assert ("outlast_rank_seconds", cause.value) not in values, "what is unknown is not 0"


def test_the_class_of_an_interruption_is_that_of_its_newest_verdict(tmp_path: Path) -> None:
    view = look(str(a_run.ended_run(tmp_path)))
    (part,) = view.records.sessions
    verdicts = tuple(
        Event(1.0, 1.0, "verdict", {"interruption": 1, "verdict": verdict})
        for verdict in (
            {"class": "nic", "confidence": 0.9},
            {"class": "hbm", "confidence": 0.9},
        )
    )
    told = replace(view.records, sessions=(replace(part, events=(*part.events, *verdicts)),))
    values = values_of(replace(view, records=told))
    by_class = {
        label: value
        for (name, label), value in values.items()
        if name == "outlast_interruptions_by_class" and value
    }
    assert by_class == {"hbm": 1, "user_code": 1}


def test_what_is_not_known_has_no_sample(tmp_path: Path) -> None:
    """The run has no target, logged nothing and wrote no checkpoint."""
    values = values_of(look(str(a_run.ended_run(tmp_path))))
    names = {name for name, _ in values}
    for name in ("target_step", "logged", "last_checkpoint_step", "time_left_seconds"):
        assert f"outlast_{name}" not in names


def test_ranks_nodes_and_interruptions_add_no_series(tmp_path: Path) -> None:
    """Method: the same run with a thousand more interruptions and ranks, and hostile names."""
    view = look(str(a_run.ended_run(tmp_path)))
    (part,) = view.records.sessions
    workers = [
        {"rank": rank, "pid": rank, "node": f"node-{rank}", "state": "training"}
        for rank in range(1000)
    ]
    logged = {"step": 9, "values": {f'a"b\\{number}\n': 1.0 for number in range(1000)}}
    more = replace(
        view.records,
        snapshot={**(view.records.snapshot or {}), "workers": workers, "logged": logged},
        sessions=(
            replace(
                part,
                interruptions=tuple(replace(a_run.KILL, id=number) for number in range(1, 1000)),
            ),
        ),
    )
    few, many = values_of(view), values_of(replace(view, records=more))
    assert many["outlast_interruptions_total", "signal"] == 999
    assert many["outlast_ranks", "gone"] == 1000
    assert len(many) <= len(few) + 27


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_comes_through(tmp_path: Path, value: float) -> None:
    folder, ledger = a_run.live_run(tmp_path)
    logged = {"step": 3, "values": {"loss": value}}
    ledger.set_snapshot({**a_run.SNAPSHOT, "logged": logged}, now_s=a_run.clock.now_s())
    ledger.flush()
    said = values_of(look(str(folder.path)))["outlast_logged", "loss"]
    ledger.close()
    folder.close()
    assert str(said) == str(value)


def test_a_page_of_the_policy_counts_and_one_of_a_dry_run_does_not(tmp_path: Path) -> None:
    view = look(str(a_run.ended_run(tmp_path)))
    (part,) = view.records.sessions
    pages = tuple(
        Event(1.0, 1.0, "policy", {"action": action, "dry_run": dry})
        for action, dry in (("page", False), ("page", True), ("drain", False))
    )
    told = replace(view.records, sessions=(replace(part, events=(*part.events, *pages)),))
    assert values_of(replace(view, records=told))["outlast_pages_total", ""] == 1


def test_asking_often_reads_the_ledger_seldom(tmp_path: Path) -> None:
    """A reading takes 3 s by the test's clock, so the next one comes a minute later at the
    soonest. Where the ledger cannot be read, the values before stay and are marked as old.
    """
    view, now_s, reads = look(str(a_run.ended_run(tmp_path))), [100.0], [0]

    def read() -> RunView:
        reads[0] += 1
        now_s[0] += 3.0
        if reads[0] > 1:
            raise CorruptError("it is damaged", hint="")
        return view

    source = Source(read, lambda: now_s[0])
    for _ in range(1000):
        _, state, is_readable = source.newest()
    assert (reads[0], state, is_readable) == (1, "ended", True)
    now_s[0] += 3.0 * PAUSES
    metrics, _, is_readable = source.newest()
    assert (reads[0], is_readable) == (2, False)
    assert b"outlast_ledger_readable{" in text_of(metrics, is_readable=False)
    assert re.search(rb"outlast_ledger_readable{.*} 0.0", text_of(metrics, is_readable=False))


def test_an_error_of_the_first_reading_is_told() -> None:
    def read() -> RunView:
        raise CorruptError("it is damaged", hint="")

    with pytest.raises(CorruptError):
        Source(read, lambda: 0.0).newest()


def test_the_text_file_is_written_whole_and_ends_with_the_run(tmp_path: Path) -> None:
    run, file = a_run.ended_run(tmp_path), tmp_path / "x.prom"
    done = outlast("metrics", run, "--textfile", file)
    assert (done.returncode, done.stderr) == (0, "")
    assert file.read_text() == outlast("metrics", run).stdout
    assert [path.name for path in tmp_path.glob("x.prom*")] == ["x.prom"]
    assert outlast("metrics", run, "--textfile", tmp_path / "no" / "x.prom").returncode == 2


@pytest.mark.parametrize("port", ["none", "70000", "host:", "1:2:3x"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    done = outlast("metrics", "--port", port)
    assert done.returncode == 2
    assert "is not a port, and not HOST:PORT" in done.stderr


@contextlib.contextmanager
def serving(run: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`outlast metrics --port 0` in a process of its own, and the address that it tells."""
    process = subprocess.Popen(
        [sys.executable, "-m", "outlast", "metrics", str(run), "--port", *(words or ("0",))],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        yield process, process.stderr.readline().strip()
    finally:
        process.kill()
        process.wait(10)
        process.stderr.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_metrics_are_served_until_a_signal_comes(tmp_path: Path, number: int, code: int) -> None:
    """A client that says nothing stays connected meanwhile, and a second server finds the port
    taken.
    """
    run = a_run.ended_run(tmp_path)
    with serving(run) as (process, address):
        host, port = re.fullmatch(r"http://([\d.]+):(\d+)/metrics", address).groups()  # type: ignore[union-attr]
        assert host == "127.0.0.1"
        with contextlib.closing(socket.create_connection((host, int(port)))):
            with urllib.request.urlopen(address, timeout=10) as answer:
                text = answer.read().decode()
            assert "outlast_step{" in text
            taken = outlast("metrics", run, "--port", port)
            assert taken.returncode == 2
            assert "cannot be listened on: Address already in use" in taken.stderr
            process.send_signal(number)
            assert process.wait(10) == code


def test_a_client_that_says_nothing_is_left(tmp_path: Path) -> None:
    """Method: the server's own bound, shortened; otherwise each such client would keep a thread."""
    code = (
        "import sys; from outlast.app.reports import metrics_command;"
        " metrics_command.REQUEST_S = 0.2;"
        " sys.exit(metrics_command.main(sys.argv[1:]))"
    )
    run = a_run.ended_run(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run), "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        port = int(process.stderr.readline().strip().rpartition(":")[2].partition("/")[0])
        with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as silent:
            silent.settimeout(10)
            assert silent.recv(1) == b"", "the server has closed it"
    finally:
        process.kill()
        process.wait(10)
        process.stderr.close()


def test_the_page_names_every_metric() -> None:
    named = set(re.findall(r"`(outlast_[a-z_]+)`", PAGE.read_text()))
    assert named == {metric.name for metric in METRICS}


def queries(value: Any) -> list[str]:
    """Return every query of the board."""
    if isinstance(value, dict):
        own = [value["expr"]] if isinstance(value.get("expr"), str) else []
        return own + [one for part in value.values() for one in queries(part)]
    return [one for part in value for one in queries(part)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    "asked", [lambda: queries(json.loads(shipped("board.json"))), lambda: [shipped("rules.yml")]]
)
def test_board_and_rules_ask_for_metrics_that_there_are(asked: Callable[[], list[str]]) -> None:
    for text in asked():
        for name in re.findall(r"\boutlast_[a-z_]+", text):
            known = NAMES.get(re.sub(r"_(bucket|sum|count)$", "", name))
            assert known is not None, f"{name} in {text}"


def test_every_metric_but_a_few_is_on_the_board() -> None:
    shown = " ".join(queries(json.loads(shipped("board.json"))))
    missing = {metric.name for metric in METRICS if metric.name not in shown}
    assert missing == {
        "outlast_run_info",
        "outlast_wall_seconds",
        "outlast_world_size",
        "outlast_nodes",
        "outlast_spares_ready",
        "outlast_interruptions_open",
        "outlast_last_checkpoint_step",
        "outlast_last_upload_step",
        "outlast_last_upload_timestamp_seconds",
        "outlast_seen_timestamp_seconds",
        "outlast_ledger_readable",
    }


def test_how_often_a_file_is_written_is_asked_with_the_file_only(tmp_path: Path) -> None:
    said = outlast("metrics", a_run.ended_run(tmp_path), "--every", "5")
    assert (said.returncode, said.stdout) == (2, "")
    assert "name it with --textfile" in said.stderr
