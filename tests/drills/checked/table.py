"""`outlast check` over scripts of known quality.

    python -m tests.drills.checked.table [NAME ...]

prints one line for each script. The good ones must have nothing to change. Each flawed one must be
named at the line that ends in `# FLAW: <word>`, with that word.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
GOOD = sorted(path for path in (HERE / "good").glob("*.py") if path.stem != "tqdm_like")
FLAWED = sorted((HERE / "flawed").glob("*.py"))
WITHIN_S = 170
_FLAW = re.compile(r"# FLAW: (.+)$")


@dataclass(frozen=True, slots=True)
class Row:
    """What `outlast check` reported about one script."""

    script: Path
    code: int
    facts: dict
    stderr: str
    seconds: float

    @property
    def named(self) -> bool:
        """Return whether the planted flaw is named, with its line."""
        line, word = flaw_of(self.script)
        return any(
            one["line"] == line and word in one["what"] for one in self.facts.get("remarks", ())
        )

    @property
    def well(self) -> bool:
        if self.script in FLAWED:
            return self.code == 1 and self.named
        return self.code == 0

    def __str__(self) -> str:
        kind = "flawed" if self.script in FLAWED else "good"
        said = [f"{one['line']}: {one['what']}" for one in self.facts.get("remarks", ())]
        said += [f"? {one}" for one in self.facts.get("trial", {}).get("undetermined", ())]
        head = (
            f"{'ok ' if self.well else 'BAD'} {kind:6} {self.script.stem:20} exit {self.code}"
            f" {self.seconds:5.1f} s"
        )
        return "\n      ".join([head, *said])


def flaw_of(script: Path) -> tuple[int, str]:
    """Return the line of the flaw, and a word that the remark about it must contain."""
    for number, line in enumerate(script.read_text().splitlines(), 1):
        if found := _FLAW.search(line):
            return number, found[1]
    raise AssertionError(f"{script} has no line with `# FLAW: <word>`")


def check(script: Path, *options: str) -> Row:
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "outlast.app.cli", "check", str(script), "--json", *options],
        capture_output=True,
        text=True,
        timeout=WITHIN_S + 30,
        cwd=script.parent,
    )
    try:
        facts = json.loads(done.stdout)
    except ValueError:
        facts = {}
    return Row(script, done.returncode, facts, done.stderr, time.monotonic() - began_s)


def main(names: list[str]) -> int:
    rows = []
    for script in [*GOOD, *FLAWED]:
        if not names or script.stem in names:
            rows.append(check(script))
            print(rows[-1], flush=True)
    alarms = sum(not row.well for row in rows if row.script in GOOD)
    named = sum(row.well for row in rows if row.script in FLAWED)
    flawed = sum(row.script in FLAWED for row in rows)
    print(f"{named} of {flawed} flaws named; {alarms} false alarms on {len(rows) - flawed}")
    return int(named < flawed or alarms > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
