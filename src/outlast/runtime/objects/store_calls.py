"""Ask the process that talks to object storage, and wait for its answers.

These calls are for the start of a run only. While a run goes on, its launcher must not wait
(runtime/coordinator/upload_process.py).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from outlast.errors import OutlastError, UsageError
from outlast.runtime.objects.upload_order import PROGRAM


def ask(command: str, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the reports of the process. Raises the error that it reports."""
    with subprocess.Popen(
        (*PROGRAM, command, json.dumps(asked)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                try:
                    report: dict[str, Any] = json.loads(line)
                except ValueError:
                    # a line that the interpreter's own start-up files print is not a report
                    continue
                if report["what"] == "error":
                    raise _error(report)
                yield report
            if code := process.wait():
                raise OutlastError(f"{asked['url']}: the process that reads it ended with {code}")
        finally:
            process.kill()


def _error(report: Mapping[str, Any]) -> OutlastError:
    kind = UsageError if report["code"] == UsageError.exit_code else OutlastError
    return kind(report["message"], hint=report["hint"])
