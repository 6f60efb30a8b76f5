"""The JSON API. FastAPI describes it as OpenAPI under `/api/openapi.json`.

Keys are those of `outlast report --json` and `outlast status --json`, which
docs/reference/run-folder.md explains. What is not known is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request

from outlast.app.json_text import without_infinities
from outlast.app.page.advice import Advice
from outlast.app.page.answers import PageAnswer
from outlast.app.page.health import NodeHealth, RankHealth
from outlast.app.page.pace import PacePoint
from outlast.app.web.pages import TAIL_BYTES, NotHereError, site_of
from outlast.app.web.site import Card
from outlast.diagnose.redact import clean
from outlast.runtime.folders.run_files import RunFile, run_files, tail

PAGE_MOST = 1_000


@dataclass(frozen=True, slots=True)
class Problem:
    """Why there is no answer, and what to do about it."""

    error: str
    hint: str


@dataclass(frozen=True, slots=True)
class FileEnd:
    """The end of a file as text; secrets of known forms and control characters are taken out."""

    path: str
    size_bytes: int
    from_byte: int
    text: str


Run = Annotated[str, Path(description="name of the run's folder")]
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The request cannot be understood."},
    404: {"model": Problem, "description": "There is no such run, node, rank or file."},
    503: {"model": Problem, "description": "The run cannot be read now; the hint says why."},
}


def router() -> APIRouter:
    """Return the API."""
    out = APIRouter(prefix="/api", responses=PROBLEMS)
    for path, answer in (
        ("/runs", runs),
        ("/runs/{run}", report),
        ("/runs/{run}/status", status),
        ("/runs/{run}/answers", answers),
        ("/runs/{run}/interruptions", interruptions),
        ("/runs/{run}/nodes", nodes),
        ("/runs/{run}/ranks/{rank}", rank_health),
        ("/runs/{run}/steps", steps),
        ("/runs/{run}/advice", advice),
        ("/runs/{run}/files", files),
        ("/runs/{run}/file", file_end),
    ):
        out.add_api_route(path, answer, methods=["GET"])
    return out


def runs(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=PAGE_MOST)] = 50,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> list[Card]:
    """List the runs, the newest first."""
    site = site_of(request)
    return [site.card(name) for name in site.names()[offset : offset + limit]]


def report(request: Request, run: Run) -> dict[str, Any]:
    """Return what `outlast report --json` prints."""
    return _object(site_of(request).shown(run).page.report)


def status(request: Request, run: Run) -> dict[str, Any]:
    """Return what `outlast status --json` prints."""
    return _object(site_of(request).shown(run).page.status)


def answers(request: Request, run: Run) -> list[PageAnswer]:
    """Answer six questions: does it train, how fast, how long still, what failed, why, the cost."""
    return list(site_of(request).shown(run).page.answers)


def interruptions(
    request: Request,
    run: Run,
    before: Annotated[int | None, Query(ge=0, le=2**53, description="only older ones")] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MOST)] = 100,
) -> list[dict[str, Any]]:
    """List interruptions, the newest first, each with its verdict or null."""
    page = site_of(request).shown(run).page
    some = [one for one in page.report["interruptions"] if before is None or one["id"] < before]
    return [
        _object(one | {"verdict": page.verdicts.get(one["id"])}) for one in reversed(some[-limit:])
    ]


def nodes(request: Request, run: Run) -> list[NodeHealth]:
    """List the nodes with their ranks, the worst first."""
    return list(site_of(request).shown(run).page.nodes)


def rank_health(
    request: Request,
    run: Run,
    rank: Annotated[int, Path(ge=0, le=10_000_000)],
) -> RankHealth:
    """Return one rank."""
    page = site_of(request).shown(run).page
    for node in page.nodes:
        for one in node.ranks:
            if one.rank == rank:
                return one
    raise NotHereError(f"the run has no rank {rank}", hint="/api/runs/RUN/nodes lists the ranks")


def steps(request: Request, run: Run) -> list[PacePoint]:
    """Return the committed steps over time, merged to a few hundred spans."""
    return list(site_of(request).shown(run).page.points)


def advice(request: Request, run: Run) -> list[Advice]:
    """Say what would have helped."""
    return list(site_of(request).shown(run).page.advice)


def files(request: Request, run: Run) -> list[RunFile]:
    """List the logs and the evidence of a run."""
    return run_files(site_of(request).path(run))


def file_end(
    request: Request,
    run: Run,
    path: Annotated[str, Query(description="as `files` lists it")],
    before: Annotated[int | None, Query(ge=0, le=2**53, description="end at this byte")] = None,
) -> FileEnd:
    """Return the last 64 kB of a file, or those that end at byte `before`."""
    end = tail(site_of(request).path(run), path, most_bytes=TAIL_BYTES, before=before)
    text = clean(end.data.decode("utf-8", "replace"), lines=True)
    return FileEnd(path, end.size_bytes, end.from_byte, text)


def _object(value: Any) -> dict[str, Any]:
    """Return a JSON object without numbers that are not finite."""
    made: dict[str, Any] = without_infinities(value)
    return made
