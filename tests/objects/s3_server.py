"""A real S3 server on loopback for tests: moto's, in a process of its own."""

from __future__ import annotations

import functools
import itertools
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

try:
    import obstore
    from obstore.store import from_url
except ImportError:  # tests that need them are skipped
    pass

HOME = Path(__file__).parents[2]
BUCKET = "bucket"
_NUMBERS = itertools.count()


def need() -> None:
    """Skip a test where the packages are not installed."""
    for package in ("obstore", "moto", "flask_cors"):
        pytest.importorskip(package)


class S3Server:
    """A server that can be killed and started again, at the same port, without what it had."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to be told."""
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
        }

    def new_url(self) -> str:
        """Return a place that nobody has used."""
        return f"s3://{BUCKET}/runs/{next(_NUMBERS)}"

    def start(self, *, bucket: bool = True) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.objects.s3_program", str(self.port)],
            cwd=HOME,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end_s = time.monotonic() + 60.0
        while True:
            try:
                self.faults()
                break
            except OSError:
                assert time.monotonic() < end_s, "the server does not come up"
                assert self.process.poll() is None, "the server has ended"
                time.sleep(0.05)
        if bucket:
            self.request("PUT", BUCKET)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        url = f"http://127.0.0.1:{self.port}/{path}"
        asked = urllib.request.Request(url, data=body or b"", method=method)
        with urllib.request.urlopen(asked, timeout=20.0) as answer:
            data: bytes = answer.read()
        return data

    def object(self, url: str) -> bytes:
        """Return the bytes of an object, as another program sees them."""
        return bytes(obstore.get(*self._split(url)).bytes())

    def set_object(self, url: str, data: bytes | None) -> None:
        """Put an object, or remove it. The variables of `environment` have to be set."""
        store, path = self._split(url)
        if data is None:
            obstore.delete(store, path)
        else:
            obstore.put(store, path, data)

    def _split(self, url: str) -> tuple[Any, str]:
        path = url.removeprefix(f"s3://{BUCKET}/")
        return from_url(f"s3://{BUCKET}", client_options={"allow_http": True}), path

    def set_faults(self, *, fail: int = 0, delay_s: float = 0.0) -> None:
        self.request("POST", "faults", json.dumps({"fail": fail, "delay_s": delay_s}).encode())

    def faults(self) -> dict[str, Any]:
        """Return how many requests have failed as asked, and how many will."""
        found: dict[str, Any] = json.loads(self.request("GET", "faults"))
        return found


@contextmanager
def running() -> Iterator[S3Server]:
    """Run a server of its own in the block."""
    need()
    server = S3Server()
    server.start()
    try:
        yield server
    finally:
        server.kill()


@functools.cache
def _shared() -> S3Server:
    import atexit

    server = S3Server()
    server.start()
    atexit.register(server.kill)
    return server


def shared(monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Return the server of this test process, and put it into the environment."""
    need()
    server = _shared()
    server.set_faults()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server
