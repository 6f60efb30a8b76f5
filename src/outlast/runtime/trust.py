"""Who may speak on a connection: whoever knows the run's token, and proves it for a nonce that was never used before.

Stands against strangers, and against a proof that is said again. Not promised: secrecy (nothing is encrypted), or anything against somebody who can
change what is on its way between two honest ends; the coordinator does not prove itself to the agent.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from outlast.model.messages import Challenge, Proof

_PURPOSE = b"outlast: an agent enrols"
_NONCE_BYTES = 32


def challenge() -> Challenge:
    return Challenge(secrets.token_hex(_NONCE_BYTES))


def prove(question: Challenge, *, node: str, token: bytes) -> Proof:
    """The agent's answer."""
    return Proof(node, _digest(question.nonce, node, token))


def proves(answer: Proof, question: Challenge, *, token: bytes) -> bool:
    expected = _digest(question.nonce, answer.node, token).encode()
    return hmac.compare_digest(expected, answer.digest.encode(errors="replace"))


def _digest(nonce: str, node: str, token: bytes) -> str:
    """The nonce is digested first: so no other cut between nonce and node says the same."""
    said = hashlib.sha256(nonce.encode(errors="surrogatepass")).digest() + node.encode(errors="surrogatepass")
    return hmac.new(token, _PURPOSE + said, hashlib.sha256).hexdigest()
