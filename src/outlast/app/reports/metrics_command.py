"""`outlast metrics`: the metrics of a run for Prometheus.

    outlast metrics                               print them once, for the newest run under runs/
    outlast metrics RUN --port 9400               serve them, on this machine only
    outlast metrics RUN --port 0.0.0.0:9400       serve them to others as well
    outlast metrics RUN --textfile DIR/x.prom     keep a file for node_exporter's textfile collector
    outlast metrics --board, --rules              print a board for Grafana, alert rules

The command only reads the ledger, and no part of the run depends on the command. `outlast run
--metrics-port` starts it as a process of its own, with the lowest priority. It ends when the
launcher ends.

A request reads the ledger. The ledger is not read again for PAUSES times as long as the read took.
So frequent requests do not cost more.

Exit codes:

0   no error
1   the ledger is damaged
2   the run does not exist, the port is taken, or prometheus_client is not installed
"""

from __future__ import annotations

import argparse
import importlib.resources
import os
import signal
import sys
import typing
from collections.abc import Callable, Sequence

from outlast.app.command_line import (
    Parser,
    add_run,
    address,
    fail,
    finite,
    need_package,
)
from outlast.app.reports.metric_values import METRICS, RECOVERY_BUCKETS_S, RunMetrics, metrics_of
from outlast.app.reports.status import OVER
from outlast.errors import OutlastError, UsageError
from outlast.model import limits
from outlast.runtime import clock, linux
from outlast.runtime.folders.given import write_bytes
from outlast.runtime.ledger.view import RunView, look

DESCRIPTION = "Print, serve or write the metrics of a run, in the text format of Prometheus."
EVERY_S = 15.0
PAUSES = 20  # after a read, the ledger is not read again for this many times as long as it took
REQUEST_S = 10  # a connection is closed if its client sends nothing for this long
_PAUSE_LEAST_S = 1.0


def main(argv: Sequence[str]) -> int:
    """Run `outlast metrics` and return its exit code."""
    args = parser().parse_args(list(argv))
    if args.every is not None and args.textfile is None:
        raise UsageError("--every is about a file", hint="name it with --textfile FILE")
    if args.board or args.rules:
        sys.stdout.write(shipped("board.json" if args.board else "rules.yml"))
        return 0
    if args.port is None and args.textfile is None:
        view = look(args.run)
        sys.stdout.write(text_of(metrics_of(view)).decode())
        sys.stdout.flush()
        return 0
    need_package("prometheus_client", what="metrics", extra="metrics")
    every_s = EVERY_S if args.every is None else args.every
    source = Source(lambda: look(args.run), clock.now_s)
    source.newest()  # an error of the command line is told before anything is served
    if args.textfile is not None:
        return _keep_file(source, args.textfile, every_s=every_s)
    return _serve(source, args.port, until=lambda: False)


def parser() -> Parser:
    """Return the parser of the command."""
    out = Parser(prog="outlast metrics", description=DESCRIPTION)
    add_run(out)
    output = out.add_mutually_exclusive_group()
    output.add_argument(
        "--port",
        type=address,
        metavar="[HOST:]PORT",
        help="serve the metrics there, until Ctrl-C (default for HOST: 127.0.0.1)",
    )
    output.add_argument(
        "--board", action="store_true", help="print a board for Grafana, as JSON, and nothing else"
    )
    output.add_argument(
        "--rules", action="store_true", help="print alert rules for Prometheus, and nothing else"
    )
    output.add_argument(
        "--textfile",
        metavar="FILE",
        help="write them to FILE again and again until the run is over, for the textfile"
        " collector of node_exporter",
    )
    out.add_argument(
        "--every",
        type=_seconds,
        metavar="SECONDS",
        help=f"how often --textfile writes (default: {EVERY_S:g})",
    )
    return out


def _seconds(text: str) -> float:
    """Parse `--every`: a second or more, because each time the ledger is read."""
    value = finite(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than a second")
    return value


def shipped(name: str) -> str:
    """Return one of the files for Grafana and Prometheus that come with the package."""
    place = importlib.resources.files("outlast.app") / "monitoring" / name
    return place.read_text(encoding="utf-8")  # tidy: a file of the package


class Source:
    """Keep the metrics of a run. A request reads them again if they are old enough.

    look     returns the run as it is now
    now_s    the clock
    """

    def __init__(self, look: Callable[[], RunView], now_s: Callable[[], float]) -> None:
        self._look = look
        self._now_s = now_s
        self._known: tuple[RunMetrics, str] | None = None
        self._again_s = 0.0
        self._is_readable = True

    def newest(self) -> tuple[RunMetrics, str, bool]:
        """Return the metrics, the run's state, and whether the ledger could be read just now.

        Raises OutlastError if it could not be read the first time.
        """
        began_s = self._now_s()
        if self._known is None or began_s >= self._again_s:
            try:
                view = self._look()
                self._known, self._is_readable = (metrics_of(view), view.state), True
            except OutlastError:
                # boundary: what was read before is served, and marked as old
                if self._known is None:
                    raise
                self._is_readable = False
            over_s = self._now_s()
            self._again_s = over_s + max(_PAUSE_LEAST_S, PAUSES * (over_s - began_s))
        return *self._known, self._is_readable


class Collector:
    """Give a registry of prometheus_client the values that it asks for."""

    def __init__(self, read: Callable[[], tuple[RunMetrics, bool]]) -> None:
        self._read = read

    def collect(self) -> list[typing.Any]:
        """Return the families of all metrics. A metric without a value has none."""
        from prometheus_client import core

        metrics, is_readable = self._read()
        out: list[typing.Any] = []
        by_name: dict[str, list[typing.Any]] = {}
        for sample in metrics.samples:
            by_name.setdefault(sample.name, []).append(sample)
        if not is_readable:
            old = by_name["outlast_ledger_readable"][0]
            by_name["outlast_ledger_readable"] = [old._replace(value=0.0)]
        for metric in METRICS:
            labels = ("run", *metric.labels)
            if metric.kind == "histogram":
                histogram = core.HistogramMetricFamily(metric.name, metric.help, labels=labels)
                histogram.add_metric([metrics.run], *_buckets(metrics.recoveries_s))
                out.append(histogram)
                continue
            make = core.CounterMetricFamily if metric.kind == "counter" else core.GaugeMetricFamily
            family = make(metric.name, metric.help, labels=labels)
            for sample in by_name.get(metric.name, ()):
                values = [sample.labels[name] for name in metric.labels]
                family.add_metric([metrics.run, *values], sample.value)
            if family.samples:
                out.append(family)
        return out


def _buckets(values_s: Sequence[float]) -> tuple[list[tuple[str, float]], float]:
    """Return the buckets of a histogram, each with how many values it holds, and their sum."""
    counts = [
        (str(edge), float(sum(value <= edge for value in values_s))) for edge in RECOVERY_BUCKETS_S
    ]
    return [*counts, ("+Inf", float(len(values_s)))], sum(values_s)


def registry(read: Callable[[], tuple[RunMetrics, bool]]) -> typing.Any:
    """Return a registry that has the metrics of one run and nothing else."""
    from prometheus_client import CollectorRegistry

    out = CollectorRegistry(auto_describe=False)
    out.register(Collector(read))
    return out


def text_of(metrics: RunMetrics, *, is_readable: bool = True) -> bytes:
    """Return the metrics in the text format of Prometheus."""
    need_package("prometheus_client", what="metrics", extra="metrics")
    from prometheus_client import generate_latest

    text: bytes = generate_latest(registry(lambda: (metrics, is_readable)))
    return text


def _serve(source: Source, where: tuple[str, int], *, until: Callable[[], bool]) -> int:
    """Serve until a signal comes, or until `until()` holds."""
    from wsgiref.simple_server import WSGIRequestHandler

    from prometheus_client import start_http_server

    # a client that connects and says nothing would keep its thread for ever
    WSGIRequestHandler.timeout = REQUEST_S

    def read() -> tuple[RunMetrics, bool]:
        metrics, _, is_readable = source.newest()
        return metrics, is_readable

    host, port = where
    _block_signals()
    try:
        server, _ = start_http_server(port, addr=host, registry=registry(read))
    except OSError as error:
        raise UsageError(
            f"{host}:{port} cannot be listened on: {error.strerror}", hint="choose another port"
        ) from None
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{server.server_port}/metrics", file=sys.stderr, flush=True)
    while (came := _wait(1.0)) is None and not until():
        pass
    return limits.SIGINT_EXIT_CODE if came == signal.SIGINT else 0


def _keep_file(source: Source, path: str, *, every_s: float) -> int:
    """Write the file until the run is over, or until a signal comes."""
    _block_signals()
    while True:
        metrics, state, is_readable = source.newest()
        write_bytes(path, text_of(metrics, is_readable=is_readable))
        if state in OVER:
            return 0
        if (came := _wait(every_s)) is not None:
            return limits.SIGINT_EXIT_CODE if came == signal.SIGINT else 0


_STOPS = {signal.SIGINT, signal.SIGTERM}


def _block_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)


def _wait(seconds: float) -> int | None:
    """Wait for SIGINT or SIGTERM. Return its number, or None if none came in that time."""
    came = signal.sigtimedwait(_STOPS, seconds)
    return None if came is None else came.si_signo


def beside(argv: Sequence[str]) -> int:
    """Serve the metrics of a run beside its launcher: launcher's pid, [HOST:]PORT, folder."""
    launcher, where, folder = argv
    try:
        linux.stop_with(int(launcher))
    except ProcessLookupError:
        return 0
    source = Source(lambda: look(folder), clock.now_s)
    return _serve(source, address(where), until=lambda: os.getppid() != int(launcher))


if __name__ == "__main__":
    try:
        sys.exit(beside(sys.argv[1:]))
    except OutlastError as error:
        sys.exit(fail(error))
