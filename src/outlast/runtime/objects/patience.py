"""How long one request to object storage is tried."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestPatience:
    """This says how long one request to object storage is tried.

    request_s   the limit of one try, from the connection to the last byte of the answer
    retries     how many further tries follow errors of server and network, with growing pauses
    total_s     no try begins later than this
    """

    request_s: float
    retries: int
    total_s: float


AT_START = RequestPatience(request_s=30.0, retries=4, total_s=30.0)  # a person waits for the start
BESIDE_TRAINING = RequestPatience(request_s=300.0, retries=8, total_s=180.0)
