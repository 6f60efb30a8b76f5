"""moto's S3 server over HTTP, in a process of its own, with faults on request.

    python -m tests.objects.s3_program PORT

`POST /faults {"fail": 3, "delay_s": 0.5}`: the next three requests are answered by 503, and each
one after that waits. Moto keeps everything in memory, so a server that is killed has lost it.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.wrappers import Request, Response


class Faults:
    """Answer some requests by errors, and others late."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._fail, self._delay_s, self._failed = 0, 0.0, 0

    def __call__(self, environ: Any, start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(environ)
        if request.path == "/faults":
            return self._ask(request)(environ, start_response)
        with self._lock:
            fails = self._fail > 0
            self._fail -= fails
            self._failed += fails
        if fails:
            request.get_data()
            return Response("<Error><Code>SlowDown</Code></Error>", 503)(environ, start_response)
        time.sleep(self._delay_s)
        answer: Iterable[bytes] = self._app(environ, start_response)
        return answer

    def _ask(self, request: Request) -> Response:
        with self._lock:
            if request.method == "POST":
                asked = json.loads(request.get_data())
                self._fail, self._delay_s = asked.get("fail", 0), asked.get("delay_s", 0.0)
                self._failed = 0
            return Response(json.dumps({"failed": self._failed, "left": self._fail}))


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Faults(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=True)
