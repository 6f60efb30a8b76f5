"""Start torchft's lighthouse and all replicas of a script, and replace a replica that fails.

    python -m outlast.runtime.worker.adapters.against.torchft_replicas COUNT SCRIPT [arguments]

It ends once a replica has ended normally and the others have had ENDING_S to do so. A replica that
hangs stays as it is, because torchft does not replace it: the others go on without it.

Two settings favour torchft: a heartbeat time-out of 1 s (its default is 5 s), and a second for the
live replicas to join (its default is a minute).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from outlast.runtime import clock, linux

FLAGS = (
    "--min_replicas",
    "2",
    "--quorum_tick_ms",
    "100",
    "--join_timeout_ms",
    "1000",
    "--heartbeat_timeout_ms",
    "1000",
)
ENDING_S = 20.0
LOOK_S = 0.05


def main() -> int:
    count, script = int(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    mine = os.getpid()
    port = 20_000 + mine % 10_000
    lighthouse = str(Path(sys.executable).with_name("torchft_lighthouse"))

    def start(command: list[str], rank: int) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "OUTLAST_DRILL_RANK": str(rank),
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
        }
        return subprocess.Popen(command, env=environment, preexec_fn=lambda: linux.die_with(mine))

    replica = [sys.executable, "-u", "-m", "outlast.runtime.worker.adapters.against.rank", *script]
    head = start([lighthouse, "--bind", f"127.0.0.1:{port}", *FLAGS], -1)
    children = [start(replica, rank) for rank in range(count)]
    over_s = None
    try:
        while any(child.poll() != 0 for child in children):
            if over_s is None and any(child.poll() == 0 for child in children):
                over_s = clock.now_s() + ENDING_S
            if over_s is not None and clock.now_s() > over_s:
                break
            for rank, child in enumerate(children):
                if over_s is None and child.poll() not in (None, 0):
                    children[rank] = start(replica, rank)
            time.sleep(LOOK_S)
    finally:
        for child in [head, *children]:
            child.kill()
            child.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
