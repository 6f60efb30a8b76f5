"""Who may act on a run from its page: people who have shown the token of the server.

The token is shown once, by a form, and the browser gets a cookie with a random number for it. Only
its digest is kept here. Each session has a second number, which every form sends back (against
cross-site request forgery), and a list of actions that were asked for and wait to be confirmed. An
action is confirmed once.

Sessions live in the memory of the server: all end with it. At most SESSIONS_MOST_COUNT are kept,
one that is not used for IDLE_S is over, and none lasts longer than LONGEST_S. After TRIES_COUNT
wrong tokens in TRIES_S no token is accepted until that time is over, so nobody can guess one.

Not protected: the connection is not encrypted, so who can read it can read the token. Use a tunnel.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from outlast.runtime.network import trust

SESSIONS_MOST_COUNT = 64
IDLE_S = 3600.0
LONGEST_S = 12 * 3600.0
TRIES_COUNT = 10
TRIES_S = 60.0
PENDING_MOST_COUNT = 16
ANSWERS_MOST_COUNT = 10


@dataclass(frozen=True, slots=True)
class PageAction:
    """Something that a person asks of a run. `what` and `node` are as in the message `Request`."""

    run: str
    what: str
    node: str


@dataclass(frozen=True, slots=True)
class AnsweredAction:
    """An action that was asked of a run, with what its launcher has answered so far.

    state  "waits", "done", "refused", or "" if the launcher could not be asked
    """

    action: PageAction
    state: str
    text: str
    at_wall_s: float


@dataclass(slots=True)
class PageSession:
    """One browser whose user has shown the token.

    name      who they say they are
    form_key  the number that every form of this session sends back
    pending   the actions that wait to be confirmed, by a number that is used once
    answers   the newest answers, the oldest first
    """

    name: str
    form_key: str
    began_s: float
    used_s: float
    pending: OrderedDict[str, PageAction] = field(default_factory=OrderedDict)
    answers: deque[AnsweredAction] = field(default_factory=lambda: deque(maxlen=ANSWERS_MOST_COUNT))

    def owns_form(self, key: str) -> bool:
        """Return whether a form with this number is one of this session."""
        return hmac.compare_digest(self.form_key.encode(), key.encode())

    def prepare(self, action: PageAction) -> str:
        """Keep an action until it is confirmed, and return the number to confirm it with."""
        number = trust.nonce()
        self.pending[number] = action
        while len(self.pending) > PENDING_MOST_COUNT:
            self.pending.popitem(last=False)
        return number

    def confirm(self, number: str) -> PageAction | None:
        """Return the action of this number, once. None: there is none, or it was confirmed."""
        return self.pending.pop(number, None)


class SignedIn:
    """The sessions of one server.

    enabled   the server has a token. Without one nobody can sign in, and pages are read-only
    cookie    the name of the cookie. Servers of one machine share the cookies of a browser, so each
              has a name of its own
    """

    def __init__(self, token: bytes | None, *, now_s: Callable[[], float]) -> None:
        self.enabled = token is not None
        self.cookie = f"outlast_{trust.nonce()}"
        self._token = token
        self._now_s = now_s
        self._sessions: OrderedDict[bytes, PageSession] = OrderedDict()
        self._wrong_s: deque[float] = deque(maxlen=TRIES_COUNT)

    @property
    def is_locked(self) -> bool:
        """Return whether no token is accepted for a while, because too many wrong ones came."""
        full = len(self._wrong_s) == TRIES_COUNT
        return full and self._now_s() - self._wrong_s[0] < TRIES_S

    def sign_in(self, token: str, name: str) -> str | None:
        """Return the value of the cookie of a new session. None: the token is wrong."""
        if self._token is None or self.is_locked:
            return None
        given = token.strip().encode(errors="surrogateescape")
        if not hmac.compare_digest(_digest(given), _digest(self._token)):
            self._wrong_s.append(self._now_s())
            return None
        now_s, value = self._now_s(), trust.nonce()
        form_key = trust.nonce()
        self._sessions[_digest(value.encode())] = PageSession(name, form_key, now_s, now_s)
        while len(self._sessions) > SESSIONS_MOST_COUNT:
            self._sessions.popitem(last=False)
        return value

    def session(self, value: str) -> PageSession | None:
        """Return the session of this cookie, or None if there is none, or it is over."""
        key, now_s = _digest(value.encode(errors="replace")), self._now_s()
        found = self._sessions.get(key)
        if found is None:
            return None
        if now_s - found.used_s > IDLE_S or now_s - found.began_s > LONGEST_S:
            self._sessions.pop(key)
            return None
        found.used_s = now_s
        self._sessions.move_to_end(key)
        return found

    def sign_out(self, value: str) -> None:
        """End the session of this cookie."""
        self._sessions.pop(_digest(value.encode(errors="replace")), None)


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
