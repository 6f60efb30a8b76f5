"""Pages of a real run: a command is called once for each interruption, and a webhook that never
answers does not delay the recovery.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.drills._run import Drill

POLICY = """
schema = 1
[budget]
page = { times = 100, within_s = 3600 }
[[rule]]
id = "all"
action = "page"
when = { incidents = 1, within_s = 3600 }
"""


@pytest.mark.drill
@pytest.mark.timeout(120)
def test_a_silent_webhook_delays_no_recovery_and_the_command_runs(tmp_path: Path) -> None:
    """Method: two kills. The page goes to a command, and to a webhook that only listens."""
    policy, pages = tmp_path / "policy.toml", tmp_path / "pages"
    policy.write_text(POLICY)
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:
        secret = f"http://127.0.0.1:{mute.getsockname()[1]}/secret"
        flags = (
            "--spares",
            1,
            "--policy",
            policy,
            "--page-webhook",
            "$HOOK",
            "--page-command",
            f"sh -c 'cat >> {pages}; echo >> {pages}'",
        )
        drill = Drill(
            tmp_path,
            "quick.py",
            "--steps",
            20_000,
            workers=2,
            flags=flags,
            env={"HOOK": secret},
            within_s=90.0,
        )
        with drill:
            for number in (1, 2):
                drill.until(lambda: drill.step > 20, "training")
                drill.until(
                    lambda: drill.status["redundancy"]["spares_ready"] == 1, "a spare is ready"
                )
                os.kill(drill.pid_of(1), signal.SIGKILL)
                drill.until(
                    lambda number=number: (
                        pages.exists() and len(pages.read_text().splitlines()) == number
                    ),
                    f"page {number}",
                )
            step = drill.step
            drill.until(lambda: drill.step > step + 20, "training goes on")
            drill.process.send_signal(signal.SIGINT)
            outcome = drill.finish()
            children = [
                int(stat.parent.name)
                for stat in Path("/proc").glob("[0-9]*/cmdline")
                if b"page_sender" in stat.read_bytes() and secret.encode() not in stat.read_bytes()
            ]
            for pid in children:
                os.kill(pid, signal.SIGKILL)
    assert len(children) == 2, "both go on alone, and show the address to nobody"
    assert outcome.code == 130, outcome
    assert [one["mttr_s"] < 2.0 for one in outcome.interruptions] == [True, True], outcome
    told = [json.loads(line) for line in pages.read_text().splitlines()]
    assert [page["interruption"] for page in told] == [one["id"] for one in outcome.interruptions]
    assert all("SIGKILL" in page["verdict"] for page in told), told
    card = (drill.folder / "run.json").read_text()
    assert "secret" not in card
    outcome.ledger_is_sound()
