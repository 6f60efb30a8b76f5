"""Numbers in text: DCGM's exposition, nvidia-smi's CSV, and how long steps take.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from math import isfinite
from statistics import median

NEEDLES = (
    b"dcgm_fi_",
    b"utilization.gpu",
    b"temperature.gpu",
    b"clocks_throttle_reasons",
    b"clocks_event_reasons",
    b"ecc.errors.",
)
SAMPLES_MAX = 20_000  # of one series: later ones replace every second
SERIES_MAX = 64
STEP_NEEDLES = (
    b"elapsed time per iteration",
    b"iteration time",
    b"iteration_time",
    b"step time",
    b"step_time",
    b"s/it",
)
SLOWER_AT_LEAST = 1.04  # one slow card of 384 cost a whole run 5.4 %
SPREADS_AT_LEAST = 3.0
QUIET = 0.01  # a run whose steps differ by more shows no few per cent
MUCH_SLOWER = 1.5
SAMPLES_MIN = 5
SHAPE, SHAPE_TEXT = 60, 240  # characters of a line that tell its form; that are kept
_DIGITS = b"0123456789.,:+- "
_EXPOSED = re.compile(r"^(dcgm_fi_[a-z0-9_]{4,60})\{([^}]{0,400})\} ([-+0-9.e]{1,24})")
_GPU = re.compile(r'(?:gpu|device|pci_bus_id)="([^"]{1,40})"')
_STEP = re.compile(
    rb"(?:elapsed |)time per (?:iteration|step) ?(?:\((ms|s)\))? ?[:=]?"
    rb" ?([0-9]{1,9}(?:\.[0-9]{1,6})?)|(?:iteration"
    rb"|step)[ _]time ?(?:\((ms|s)\))? ?[:=] ?([0-9]{1,9}(?:\.[0-9]{1,6})?)"
)
_TQDM = re.compile(rb"([0-9]{1,6}(?:\.[0-9]{1,4})?) ?s/it")
# field -> (rule, smallest value that means something)
EXPOSED: dict[str, tuple[str, float]] = {
    "dcgm_fi_dev_row_remap_failure": ("metric.hbm", 1),
    "dcgm_fi_dev_ecc_dbe_vol_total": ("metric.hbm", 1),
    "dcgm_fi_dev_uncorrectable_remapped_rows": ("metric.hbm", 1),
    "dcgm_fi_dev_row_remap_pending": ("metric.hbm", 1),
    "dcgm_fi_dev_thermal_violation": ("metric.heat", 1e9),
    "dcgm_fi_dev_retired_dbe": ("metric.hbm", 1),
    "dcgm_fi_dev_gpu_temp": ("metric.heat", 90),
    "dcgm_fi_dev_memory_temp": ("metric.heat", 105),
    "dcgm_fi_dev_nvlink_crc_flit_error_count_total": ("metric.link", 1000),
    "dcgm_fi_dev_nvlink_recovery_error_count_total": ("metric.link", 1),
}
# column of nvidia-smi --query-gpu -> (rule, what its value looks like)
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("hw_thermal_slowdown", r"^active$", "metric.heat"),
    ("sw_thermal_slowdown", r"^active$", "metric.heat"),
    ("hw_power_brake", r"^active$", "metric.power"),
    ("hw_slowdown", r"^active$", "metric.heat"),
    ("temperature.gpu", r"^(?:9\d|1\d\d)(?: c)?$", "metric.heat"),
    ("ecc.errors.uncorrected.volatile.sram", r"^[1-9]", "metric.sram"),
    ("ecc.errors.uncorrected.volatile", r"^[1-9]", "metric.hbm"),
    ("remapped_rows.failure", r"^(?:1|yes)", "metric.hbm"),
    ("remapped_rows.pending", r"^(?:1|yes)", "metric.hbm"),
    ("retired_pages.pending", r"^(?:1|yes)", "metric.hbm"),
    ("pstate", r"gpu (?:is lost|requires reset)|unknown error", "metric.gpu"),
    ("utilization.gpu", r"gpu is lost|requires reset|unknown error", "metric.gpu"),
)
_DEVICE_COLUMNS = ("pci.bus_id", "gpu_bus_id", "uuid", "gpu_uuid", "index")  # the best first
_NAME = re.compile(r"[a-z][a-z_]{0,40}(?:\.[a-z_]{1,40}){0,5}(?: \[[^\]]{1,10}\])?")
# a field of a table at the end of its line which says that there is nothing; nvidia-smi -q and
# smartctl set the value apart by blanks, an exception does not
_COUNT = re.compile(
    r"(?:uncorrectable|corrected|correctable|rows|errors?|timeouts?|failures?|failed|ooms?|num_ooms"
    r"|out of memory|retries)(?: count)?[\"']?(?: |: ?|=)(\d{1,9})\b(?![.:\w])"
    r"|(?<![\w.:-])(\d{1,9}) (?:uncorrectable|errors?|timeouts?|failures?|failed|ooms?"
    r"|out of memory)"
)
_CLEAR = re.compile(
    r"(?: :|: {2,40}) {0,40}(?:0|0x0{1,8}|no|none|not active|n/a|\[n/a\]|pass(?:ed)?)$"
)
# a check's line that says that all is well, or a count of one kind of fault at its end
_WELL = re.compile(
    r"^.{0,60}?\[ ?(?:ok|pass(?:ed)?|healthy) ?\]"
    r"| (?:errors?|rows|faults?|retired pages|failures?)(?: count)?"
    r"(?:: ?| ?= ?)0(?: \([^()]{0,40}\))?$"
)
# a line of `pip freeze`, `pip list` or `conda list`: names of packages may be words of rules
_PACKAGE = re.compile(
    r"\s{0,8}[a-z0-9][\w.-]{0,60}?(?:==|-| {1,40})v?\d{1,6}(?:\.\w{1,12}){1,5}(?:[+-][\w.]{1,40})?"
    r"(?: {1,20}[\w./<>-]{1,60}){0,2}\s{0,4}$"
)


def says_nothing(low: str) -> bool:
    """Return True for a line that names a fault only to say that there is none.

    It is also True for a description, a header, or a field that is clear.
    """
    return (
        low.startswith(("# help ", "# type ", "dcgm_fi_"))
        or is_header(low)
        or _PACKAGE.match(low) is not None
        or _CLEAR.search(low[-80:].rstrip()) is not None
        or _WELL.search(low.rstrip()) is not None
        or _all_clear(low)
    )


def _all_clear(low: str) -> bool:
    """Return True for a line of counts of faults ("ECC uncorrectable 0, remapped rows 0"), all 0.

    Two at least, so that an exit code of 0 or a rank is not one.
    """
    counts = [before or after for before, after in _COUNT.findall(low)]
    return len(counts) >= 2 and all(int(one) == 0 for one in counts)


def is_header(low: str) -> bool:
    """Return True for the names of nvidia-smi's columns and nothing else."""
    cells = [cell.strip() for cell in low.split(",")]
    return (
        len(cells) >= 2
        and all(_NAME.fullmatch(cell) for cell in cells)
        and any("." in cell or "_" in cell for cell in cells)
    )


def exposed(low: str) -> tuple[str, str | None] | None:
    """Return the rule and the device of a DCGM sample that means something, or None.

    The rule of an Xid is named "xid.<code>".
    """
    found = _EXPOSED.match(low)
    if not found:
        return None
    try:
        value = float(found[3])
    except ValueError:
        return None
    if not isfinite(value):
        return None
    gpu = _GPU.search(found[2])
    device = None if gpu is None else gpu[1]
    if found[1] == "dcgm_fi_dev_xid_errors":
        return (f"xid.{int(value)}", device) if value >= 1 else None
    rule, least = EXPOSED.get(found[1], ("", 0.0))
    return (rule, device) if rule and value >= least else None


class Csv:
    """The rows below a header of nvidia-smi's query."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    @property
    def active(self) -> bool:
        return bool(self._columns)

    def begin(self, low: str) -> None:
        columns = [cell.strip() for cell in low.split(",")]
        self._columns = columns if len(columns) >= 2 else []

    def feed(self, low: str) -> tuple[str, str | None] | None:
        cells = [cell.strip() for cell in low.split(",")]
        if len(cells) != len(self._columns):
            self._columns = []
            return None
        named = dict(zip(self._columns, cells, strict=True))
        device = next((named[name] for name in _DEVICE_COLUMNS if name in named), None)
        for name, cell in zip(self._columns, cells, strict=True):
            for part, looks, rule in COLUMNS:
                if part in name and re.search(looks, cell):
                    return rule, device
        return None


class StepTimes:
    """Durations of steps, one series for each form of line.

    A series got slower if its last quarter is slower than its first half, and stayed so.
    """

    def __init__(self) -> None:
        self._series: dict[bytes, list[tuple[int, float, bytes]]] = {}

    def feed(self, line: int, low: bytes, raw: bytes) -> None:
        """Read a line. `low` is in lower case, and holds one of `STEP_NEEDLES`."""
        at = low.find(STEP_NEEDLES[0])
        if at < 0:
            at = min(
                (place for needle in STEP_NEEDLES[1:] if (place := low.find(needle)) >= 0),
                default=0,
            )
        found = _STEP.match(low, at)
        if found:
            unit, digits = (found[1], found[2]) if found[2] else (found[3], found[4])
        else:
            found, unit = _TQDM.search(low, max(0, at - 16)), b"s"
            if found is None:
                return
            digits = found[1]
        shape = low[:SHAPE].translate(None, _DIGITS)
        samples = self._series.get(shape)
        if samples is None:
            if len(self._series) >= SERIES_MAX:
                return
            samples = self._series[shape] = []
        value = float(digits)
        samples.append((line, value / 1000 if unit == b"ms" else value, raw[:SHAPE_TEXT]))
        if len(samples) >= SAMPLES_MAX:
            del samples[::2]

    def slower(self) -> tuple[int, str, float] | None:
        """Return (line, text, ratio) of the first slow sample of a series that got slower."""
        return next((one for one in map(_slower, self._series.values()) if one is not None), None)


def _slower(samples: list[tuple[int, float, bytes]]) -> tuple[int, str, float] | None:
    if len(samples) < SAMPLES_MIN:
        return None
    times = [value for _, value, _ in samples]
    before, after = times[: len(times) // 2], times[-max(2, len(times) // 4) :]
    usual = median(before)
    spread = median(abs(value - usual) for value in before) * 1.4826
    ratio = median(after) / usual if usual > 0 else 0.0
    if (
        ratio < (SLOWER_AT_LEAST if spread <= QUIET * usual else MUCH_SLOWER)
        or median(after) - usual < SPREADS_AT_LEAST * spread
    ):
        return None
    line, _, text = next(sample for sample in samples if sample[1] >= usual * (1 + (ratio - 1) / 2))
    return line, text.decode("utf-8", "replace").strip(), ratio
