"""The worked screens of docs/reference/diagnosis.md, and the incidents that they are of.

    python -m tests.diagnose.worked.page                 # write the screens into the page again
    python -m tests.diagnose.worked.page --make sleep    # also make one incident again, with torch

An incident is what `examples/broken.py` leaves behind, as it stands in the folder of its kind. Only
the paths of the machine that made it are replaced, and of a dump the last ENTRIES_KEPT entries are
kept, as by a recorder with a smaller buffer. The page has the screen of each kind below the
heading that ends with its name; `test_worked.py` holds the two together.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.app.command import outlast

HOME = Path(__file__).parents[3]
HERE = Path(__file__).parent
PAGE = HOME / "docs" / "reference" / "diagnosis.md"
KINDS = ("sleep", "shape", "kill", "disk", "index")
WIDTH = 100  # columns of the screens, as of the page
END_S = 120.0
ENTRIES_KEPT = 12


def screen_of(kind: str) -> tuple[str, int]:
    """Return what `outlast diagnose incident` prints for the kept incident, and its exit code.

    Files are copied first: when they were written must not matter.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(HERE / kind / "incident", Path(folder) / "incident")
        done = outlast("diagnose", "incident", "--explain", cwd=Path(folder), COLUMNS=str(WIDTH))
    return done.stdout, done.returncode


def block_of(kind: str, text: str) -> re.Match[str]:
    """Return where the page has the screen of a kind, and the exit code that it gives."""
    found = re.search(
        rf"(^### [^\n]*\(`{kind}`\)\n.*?\n```\n)(.*?)(```\n\nExit code )(\d)",
        text,
        re.DOTALL | re.MULTILINE,
    )
    assert found, f"the page has no screen for {kind}"
    return found


def write_page() -> None:
    text = PAGE.read_text()
    for kind in KINDS:
        screen, code = screen_of(kind)
        found = block_of(kind, text)
        text = f"{text[: found.start()]}{found[1]}{screen}{found[3]}{code}{text[found.end() :]}"
    PAGE.write_text(text)


def make(kind: str) -> None:
    """Run the job that breaks, as the page says, and keep what it leaves behind."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "incident").mkdir()
        with (folder / "incident" / "torchrun.log").open("wb") as log:
            job = subprocess.Popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                    *("--nproc-per-node", "4", "--log-dir", "incident/logs", "--redirects", "3"),
                    *(str(HOME / "examples" / "broken.py"), kind, "incident"),
                ],
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            until_s = time.monotonic() + END_S
            while job.poll() is None and time.monotonic() < until_s and not _all_hang(folder):
                time.sleep(0.2)
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGTERM)
            job.wait(60)
        kept = HERE / kind / "incident"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder / "incident", kept, ignore=shutil.ignore_patterns(".fr_*"))
        for run in list((kept / "logs").iterdir()):
            run.rename(kept / "logs" / "run_1")
        for path in kept.rglob("*"):
            if path.is_file():
                raw = _without_places(path.read_bytes(), folder)
                path.write_bytes(_shortened(raw) if path.parent.name == "dumps" else raw)


def _all_hang(folder: Path) -> bool:
    stacks = list(folder.glob("incident/stack_rank_*.txt"))
    return len(stacks) == 4 and all(path.stat().st_size for path in stacks)


def _shortened(dump: bytes) -> bytes:
    """Keep the newest entries of a dump, one on a line."""
    told = json.loads(dump)
    entries = told.pop("entries")[-ENTRIES_KEPT:]
    head = json.dumps(told)[:-1]
    lines = ",\n".join(map(json.dumps, entries))
    return f'{head}, "entries": [\n{lines}\n]}}\n'.encode()


def _without_places(raw: bytes, folder: Path) -> bytes:
    """Replace paths of one machine by those of any."""
    raw = raw.replace(str(HOME).encode() + b"/", b"").replace(str(folder).encode(), b"/tmp/work")
    raw = re.sub(rb"/[^\s\"',:]{1,200}/site-packages/", b"/usr/lib/python3/site-packages/", raw)
    raw = re.sub(rb"/[^\s\"',:]{1,200}/lib/python3\.\d+/", b"/usr/lib/python3/", raw)
    raw = re.sub(rb"/[^\s\"',:]{1,200}/bin/python3?[\d.]*", b"/usr/bin/python3", raw)
    return re.sub(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:_\w{8})?", b"run_1", raw)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--make", nargs="*", choices=KINDS, default=[], metavar="KIND")
    for kind in parser.parse_args().make:
        make(kind)
    write_page()


if __name__ == "__main__":
    main()
