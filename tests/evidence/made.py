"""Evidence that tests make for themselves."""

from __future__ import annotations

import json
import pickle
import struct
import zlib
from pathlib import Path

LOG = (
    b"2026-01-02 03:04:05,006 [rank0] step 1 loss 2.0\n2026-01-02 03:04:06,006 [rank0] step 2 loss"
    b" 1.9\n"
)


def dump(
    rank: int, *, ranks: int = 2, enqueued: int = 3, last_done: bool = True, version: str = "2.9"
) -> dict[str, object]:
    """A flight-recorder dump of one group, made up: `enqueued` all-reduces, the last of them done
    or not.
    """
    entries = [
        {
            "record_id": seq - 1,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": seq,
            "p2p_seq_id": 0,
            "op_id": seq,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_700_000_000_000_000_000 + seq,
            "input_sizes": ((8,),),
            "input_dtypes": ["Float"],
            "output_sizes": ((8,),),
            "output_dtypes": ["Float"],
            "state": "completed" if seq < enqueued or last_done else "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": 1 if seq < enqueued or last_done else None,
            "retired": seq < enqueued or last_done,
            "timeout_ms": 600_000,
            "is_p2p": False,
        }
        for seq in range(1, enqueued + 1)
    ]
    done = enqueued if last_done else enqueued - 1
    return {
        "version": version,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": enqueued,
                "last_started_collective": -1,
                "last_completed_collective": done,
            }
        },
        "entries": entries,
    }


def pickled(rank: int, **options: object) -> bytes:
    return pickle.dumps(dump(rank, **options), protocol=2)  # type: ignore[arg-type]


def hung_job(folder: Path, *, ranks: int = 4, asleep: int = 2) -> Path:
    """Dumps of a job in which one rank has not come to the third all-reduce."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        late = rank == asleep
        (folder / f"nccl_trace_rank_{rank}").write_bytes(
            pickled(rank, ranks=ranks, enqueued=2 if late else 3, last_done=late)
        )
    return folder


def error_file(traceback: str) -> bytes:
    """What torchelastic's `record` writes."""
    return json.dumps(
        {
            "message": {
                "message": traceback.splitlines()[-1],
                "extraInfo": {"py_callstack": traceback, "timestamp": "1767323045"},
            }
        }
    ).encode()


def zip_bomb(unpacked_bytes: int) -> bytes:
    """A zip of one member of one letter, made without ever having it whole."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    chunk, crc, packed, left = b"a" * (1 << 20), 0, bytearray(), unpacked_bytes
    while left:
        part = chunk[: min(left, len(chunk))]
        packed += packer.compress(part)
        crc, left = zlib.crc32(part, crc), left - len(part)
    packed += packer.flush()
    name = b"a.log"
    local = (
        struct.pack(
            "<4sHHHHHIIIHH",
            b"PK\x03\x04",
            20,
            0,
            8,
            0,
            0,
            crc,
            len(packed),
            unpacked_bytes,
            len(name),
            0,
        )
        + name
    )
    central = (
        struct.pack(
            "<4sHHHHHHIIIHHHHHII",
            b"PK\x01\x02",
            20,
            20,
            0,
            8,
            0,
            0,
            crc,
            len(packed),
            unpacked_bytes,
            len(name),
            0,
            0,
            0,
            0,
            0,
            0,
        )
        + name
    )
    end = struct.pack(
        "<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, len(central), len(local) + len(packed), 0
    )
    return local + bytes(packed) + central + end
