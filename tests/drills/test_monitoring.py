"""Metrics, dashboard and alert rules with a real Prometheus (Debian: apt-get install
prometheus).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from outlast.app.reports.metrics_command import shipped
from tests.app.test_metrics import queries
from tests.drills._run import SCRIPTS, Drill

pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(180),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no Prometheus"),
]
STEPS = 20_000  # more than there is time for: the drill ends the run


def a_port() -> int:
    with closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def test_every_alert_fires_for_its_run_and_none_for_a_healthy_one(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(shipped("rules.yml"))
    test = (SCRIPTS / "alerts.yml").read_text().replace("RULES", "rules.yml")
    (tmp_path / "alerts.yml").write_text(test)
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = {line.split()[-1] for line in shipped("rules.yml").splitlines() if "- alert:" in line}
    assert names == {name for name in names if f'"{name}"' in test}


@contextmanager
def prometheus(folder: Path, *, scrapes: int) -> Iterator[str]:
    """Run a Prometheus that scrapes the port each second, and yield its own address."""
    folder.mkdir()
    (folder / "rules.yml").write_text(shipped("rules.yml"))
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        "rule_files: [rules.yml]\n"
        "scrape_configs:\n"
        f"  - {{job_name: outlast, static_configs: [{{targets: ['127.0.0.1:{scrapes}']}}]}}\n"
    )
    port = a_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(10)


def asked(server: str, path: str, **parameters: str) -> Any:
    """Return the data that Prometheus answers with."""
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    with urllib.request.urlopen(f"{server}/api/v1/{path}{query}", timeout=10) as answer:
        said = json.load(answer)
    assert said["status"] == "success", said
    return said["data"]


def test_every_query_of_board_and_rules_runs_on_a_real_run(
    tmp_path: Path,
) -> None:
    """Method: a rank of a real run is killed while Prometheus watches, and then each query is
    asked.

    At last the process that serves the metrics is killed: the run says so and goes on.
    """
    port = a_port()
    flags = ("--spares", 1, "--checkpoint-every", 20, "--metrics-port", port)
    drill = Drill(tmp_path, "quick.py", "--steps", STEPS, workers=2, flags=flags, within_s=150.0)
    with drill, prometheus(tmp_path / "prometheus", scrapes=port) as server:

        def value(query: str) -> float:
            try:
                found = asked(server, "query", query=query)["result"]
            except OSError:
                return -1.0
            return float(found[0]["value"][1]) if found else -1.0

        drill.until(lambda: value("outlast_last_checkpoint_step") > 0, "a checkpoint is seen")
        drill.until(lambda: value("outlast_spares_ready") == 1, "a spare is seen")
        os.kill(drill.pid_of(1), signal.SIGKILL)
        kills = 'outlast_interruptions_total{mechanism="signal"}'
        drill.until(lambda: value(kills) == 1, "the kill is seen")
        drill.until(lambda: value("outlast_recovery_seconds_count") == 1, "the recovery is seen")
        run = drill.status["run"]
        empty = []
        for query in queries(json.loads(shipped("board.json"))):
            filled = query.replace("$run", run).replace("$__rate_interval", "1m")
            if not asked(server, "query", query=filled)["result"]:
                empty.append(query)
        assert not [one for one in empty if "outlast_logged" not in one], empty
        (group,) = asked(server, "rules")["groups"]
        assert len(group["rules"]) == shipped("rules.yml").count("- alert:")
        assert {rule["health"] for rule in group["rules"]} == {"ok"}, group
        firing = [rule["name"] for rule in group["rules"] if rule["state"] == "firing"]
        assert not firing, firing
        (serving,) = [
            pid
            for pid in drill.children("python3") + drill.children("python")
            if b"outlast.app.reports.metrics_command" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert os.getpriority(os.PRIO_PROCESS, serving) == 19
        os.kill(serving, signal.SIGKILL)
        step = drill.step
        drill.until(lambda: "metrics: its process has ended" in drill.stderr, "it is told")
        drill.until(lambda: drill.step > step + 20, "training goes on")
        drill.process.send_signal(signal.SIGINT)
        outcome = drill.finish()
    assert outcome.code == 130, outcome
    assert len(outcome.interruptions) == 1, outcome
    outcome.ledger_is_sound()
