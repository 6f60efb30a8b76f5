"""The end of the kernel's log, with the time of day and the host in each line.

It is read by one system call, syslog(2). That needs CAP_SYSLOG where the kernel restricts its log
(kernel.dmesg_restrict), as root has it outside of most containers. Without that right there is no
kernel log. The log is that of the machine: it has lines of other jobs, too.
"""

from __future__ import annotations

import re
import time
from datetime import datetime, timezone

from outlast.runtime import clock, linux

_RAW = re.compile(r"<\d{1,3}>\[ {0,8}(\d{1,9}\.\d{1,9})\] (.*)")


def read_since(since_wall_s: float, *, host: str, most_bytes: int) -> bytes:
    """Return the log's last lines that are not older than `since_wall_s`, as syslog writes them.

    Return b"" if there are none, or if this process may not read the log.
    """
    try:
        said = linux.kernel_log(most_bytes)
    except OSError:
        return b""
    lines = stamped(said, since_wall_s, host)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def stamped(raw: bytes, since_wall_s: float, host: str) -> list[str]:
    """Return the lines of `dmesg --raw` as syslog writes them, without those that are older."""
    booted_s = clock.wall_s() - time.clock_gettime(time.CLOCK_BOOTTIME)
    lines = raw.decode("utf-8", "replace").splitlines()
    found = (_stamped(line, booted_s, since_wall_s, host) for line in lines)
    return [line for line in found if line is not None]


def _stamped(raw: str, booted_s: float, since_wall_s: float, host: str) -> str | None:
    found = _RAW.match(raw)
    if found is None:
        return None
    at_s = booted_s + float(found[1])
    if at_s < since_wall_s:
        return None
    stamp = datetime.fromtimestamp(at_s, timezone.utc).isoformat(timespec="milliseconds")
    return f"{stamp} {host} kernel: {found[2]}"
