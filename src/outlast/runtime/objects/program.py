"""The process that talks to object storage for a launcher, which never does so itself.

    look      list what is there: one JSON object on stdout, then the process ends
    fetch     download the newest checkpoint: lines of JSON, then the process ends
    upload    upload checkpoints while the run goes on: lines of JSON, until stdin says "finish"

The client of object storage has threads, and may wait for minutes. A launcher that did either would
not notice faults. The second argument says as JSON what is asked.

Exit codes   0 done; 1 `upload`: the newest checkpoint is not at the URL; otherwise those of
             errors.py.
"""

from __future__ import annotations

import json
import os
import resource
import select
import sys
import time
from pathlib import Path
from typing import Any

from outlast.errors import CorruptError, OutlastError
from outlast.runtime import clock, linux
from outlast.runtime.objects.fetching import fetch
from outlast.runtime.objects.patience import BESIDE_TRAINING
from outlast.runtime.objects.upload_order import FINISH, UploadOrder, decode_order
from outlast.runtime.objects.uploader import Uploader
from outlast.runtime.objects.url_places import open_place

_TOLD_S = 1.0  # the time between two reports of how much was downloaded
# the client's variable; by default it has as many threads as there are processors
_THREADS_VARIABLE = "TOKIO_WORKER_THREADS"


def main(argv: list[str]) -> int:
    """Execute the command, and return the exit code."""
    command, given = argv
    os.environ.setdefault(_THREADS_VARIABLE, "2")
    try:
        if command == "upload":
            return _upload(*decode_order(given))
        asked = json.loads(given)
        _say(_fetch(asked) if command == "fetch" else _look(asked))
    except OutlastError as error:
        code = error.exit_code
        _say({"what": "error", "message": error.message, "hint": error.hint, "code": code})
        return code
    return 0


def _say(report: dict[str, Any]) -> None:
    print(json.dumps(report), flush=True, file=sys.stdout)


def _look(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the checkpoints at a URL, newest first, with the run of each.

    Only the newest manifests are read. Writing is tried as well.
    """
    place = open_place(asked["url"])
    place.try_writing()
    found: list[dict[str, Any]] = []
    for one in place.step_folders():
        if one.has_manifest and len(found) < asked["most"]:
            try:
                run: str | None = place.manifest(one.step).run
            except CorruptError:
                run = None
            found.append({"step": one.step, "run": run})
    return {"what": "found", "checkpoints": found}


def _fetch(asked: dict[str, Any]) -> dict[str, Any]:
    told_s, total = clock.now_s(), 0

    def seen(count: int) -> None:
        nonlocal told_s, total
        total += count
        if clock.now_s() - told_s >= _TOLD_S:
            told_s = clock.now_s()
            _say({"what": "got", "bytes": total})

    brought = fetch(
        open_place(asked["url"], patience=BESIDE_TRAINING),
        Path(asked["root"]),
        asked["run"],
        tell=lambda text: _say({"what": "refused", "text": text}),
        seen=seen,
    )
    return {"what": "fetched", "step": brought.step, "bytes": brought.size_bytes}


def _upload(order: UploadOrder, launcher: int) -> int:
    try:
        linux.stop_with(launcher)
    except ProcessLookupError:
        return 0
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # all files of a checkpoint are open at once
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uploader = Uploader(
        order, lambda: open_place(order.url, patience=BESIDE_TRAINING), _say, _Rest()
    )
    return 0 if uploader.run() else 1


class _Rest:
    """Wait for some seconds, or until stdin says that the run is over."""

    def __init__(self) -> None:
        self._is_over = False

    def __call__(self, seconds: float) -> bool:
        if self._is_over:
            time.sleep(seconds)
        elif select.select([0], [], [], seconds)[0]:
            self._is_over = True  # it read "finish", or the launcher has closed its end
            os.read(0, len(FINISH))
        return self._is_over


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
