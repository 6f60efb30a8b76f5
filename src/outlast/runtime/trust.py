"""Who speaks on a connection, and who may: those who know the run's token, and prove it for a nonce
that was never used before.

Stands against strangers, and against a proof that is said again. Not promised: secrecy (nothing is
encrypted), or anything against somebody who can change what is on its way between two honest ends;
the coordinator does not prove itself to the agent.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from outlast.model.messages import Challenge, Proof

_PURPOSE = b"outlast: an agent enrols"
_NONCE_BYTES = 32
_SESSION_BITS = 62


def challenge() -> Challenge:
    return Challenge(secrets.token_hex(_NONCE_BYTES))


def session() -> int:
    """Return what an agent is known by since it began: no two have the same, and none is 0."""
    return secrets.randbits(_SESSION_BITS) + 1


def prove(question: Challenge, *, node: str, token: bytes) -> Proof:
    """Return the agent's answer."""
    return Proof(node, _digest(question.nonce, node, token))


def proves(answer: Proof, question: Challenge, *, token: bytes) -> bool:
    expected = _digest(question.nonce, answer.node, token).encode()
    return hmac.compare_digest(expected, answer.digest.encode(errors="replace"))


def _digest(nonce: str, node: str, token: bytes) -> str:
    """The nonce is digested first: so no other cut between nonce and node says the same."""
    said = hashlib.sha256(nonce.encode(errors="surrogatepass")).digest() + node.encode(
        errors="surrogatepass"
    )
    return hmac.new(token, _PURPOSE + said, hashlib.sha256).hexdigest()
