"""Who may speak on a connection: an agent that proves it knows the run's token.

It proves that for a nonce that was never used before.

This stops strangers, and a proof that is used twice. Not promised: secrecy, because nothing is
encrypted. It does not help against somebody who can change messages between two honest ends. The
coordinator does not prove itself to the agent.
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
    """Return a number for the session of an agent. No two are the same, and none is 0."""
    return secrets.randbits(_SESSION_BITS) + 1


def prove(question: Challenge, *, node: str, token: bytes) -> Proof:
    """Return the agent's answer to a challenge."""
    return Proof(node, _digest(question.nonce, node, token))


def proves(answer: Proof, question: Challenge, *, token: bytes) -> bool:
    expected = _digest(question.nonce, answer.node, token).encode()
    return hmac.compare_digest(expected, answer.digest.encode(errors="replace"))


def _digest(nonce: str, node: str, token: bytes) -> str:
    """Return the digest. The nonce has a digest of its own, so that its end is unambiguous."""
    said = hashlib.sha256(nonce.encode(errors="surrogatepass")).digest() + node.encode(
        errors="surrogatepass"
    )
    return hmac.new(token, _PURPOSE + said, hashlib.sha256).hexdigest()
