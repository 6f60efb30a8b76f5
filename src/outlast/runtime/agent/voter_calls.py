"""A node's connections to the voters, while the coordinator is missing.

They are made when they are needed, and closed once the node is with a coordinator again.
"""

from __future__ import annotations

from collections.abc import Callable

from outlast.model.messages import Admitted, Message, Voters
from outlast.runtime.agent.dialler import Caller, Dialler
from outlast.runtime.loop import Loop
from outlast.runtime.network.address import split_address


class VoterCalls:
    """Ask all voters a question. `hear` is called with each answer, and the voter."""

    def __init__(
        self,
        loop: Loop,
        caller: Caller,
        *,
        token: bytes | None,
        hear: Callable[[str, Message], object],
    ) -> None:
        self._loop = loop
        self._caller = caller
        self._token = token
        self._hear = hear
        self._links: dict[str, _VoterLink] = {}

    def ask(self, voters: Voters, message: Message) -> None:
        """Send a message to all voters but this node, as soon as each can be reached."""
        for node, address in zip(voters.nodes, voters.addresses, strict=True):
            if node == self._caller.node:
                continue
            link = self._links.get(node)
            if link is None:
                link = self._links[node] = _VoterLink(node, self._hear)
                link.dialler = Dialler(
                    self._loop, split_address(address), self._caller, link, token=self._token
                )
                link.dialler.dial()
            link.send(message)

    def close(self) -> None:
        """Close all connections."""
        for link in self._links.values():
            link.dialler.close()
        self._links.clear()


class _VoterLink:
    """The connection to one voter (`LinkEvents`).

    The newest message is sent once it is connected.
    """

    dialler: Dialler

    def __init__(self, node: str, hear: Callable[[str, Message], object]) -> None:
        self._node = node
        self._hear = hear
        self._newest: Message | None = None
        self._open = False

    def send(self, message: Message) -> None:
        self._newest = message
        if self._open:
            self.dialler.send(message)

    def on_admitted(self, facts: Admitted) -> None:
        self._open = True
        if self._newest is not None:
            self.dialler.send(self._newest)

    def on_link(self, message: Message) -> None:
        self._hear(self._node, message)

    def on_broken(self) -> None:
        self._open = False

    def on_refused(self, reason: str) -> None:
        """Give this voter up, because another process listens there now.

        The other voters are asked.
        """
        self._open = False
