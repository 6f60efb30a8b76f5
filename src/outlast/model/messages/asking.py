"""Messages between a person's command and the launcher of a run.

Over the control socket, the command sends one Request. Over the network it knocks as an agent does
(node_link.py), and answers the Challenge with a RemoteRequest. The launcher answers with a
RequestAnswer each time that the state of the request changes. The last answer says whether the
request was done.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.model.shorten import Text


@dataclass(frozen=True, slots=True)
class Request:
    """A person's request to a run.

    wire    the version of the wire form of all messages
    what    "stop", "checkpoint", "drain", "drain_all", "cordon" or "uncordon"
    node    the node that the request is about; "" if it is about none
    reason  why, in the words of the person who asks
    by      who asks, in their own words; the launcher adds what it knows of the caller
    """

    wire: int
    what: str
    node: str
    reason: Text
    by: Text = ""


@dataclass(frozen=True, slots=True)
class RemoteRequest:
    """A person's request over the network, as the answer to a Challenge.

    digest  hexadecimal, of the question and of the whole request; it can only be made with the
            run's token
    """

    request: Request
    digest: str


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """The state of a request.

    state  "waits": the request was accepted, and `text` says what it waits for. "done": it was
           done. "refused": it is not done, and `text` says why
    """

    state: str
    text: Text


Asking = Request | RemoteRequest | RequestAnswer
