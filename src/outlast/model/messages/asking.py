"""Messages between a person's command and the launcher of a run, over the control socket.

The command sends one Request. The launcher answers with RequestAnswers: as often as what is waited
for changes, and at last whether it is done.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.model.shorten import Text


@dataclass(frozen=True, slots=True)
class Request:
    """The kinds of requests to a run.

    wire    the version of the wire form of all messages
    what    "stop", "checkpoint", "drain", "drain_all", "cordon" or "uncordon"
    node    the node that is meant; "" where none is
    reason  why, in the words of the person who asks
    """

    wire: int
    what: str
    node: str
    reason: Text


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """The state of a request.

    state  "waits": it was taken in, and `text` says what it waits for; "done"; "refused": it is
           not done, and `text` says why
    """

    state: str
    text: Text


Asking = Request | RequestAnswer
