"""Authentication of connections: both ends prove that they know the run's token.

Each proves it for a nonce that the other end has created and never used before. This keeps out
strangers, and proofs that are used twice.

Not promised: secrecy, because nothing is encrypted. It does not protect against an attacker who can
change messages between the two ends.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import astuple

from outlast.model.messages import Challenge, Proof, RemoteRequest, Request

_AGENT = b"outlast: an agent enrols"
_COORDINATOR = b"outlast: a coordinator answers"
_PERSON = b"outlast: a person asks"
_IMAGES = b"outlast: images of a run"
_SERVER = b"outlast: a node serves an image"
_NONCE_BYTES = 32
_SESSION_BITS = 62


def nonce() -> str:
    """Return a number that was never used before, in hexadecimal."""
    return secrets.token_hex(_NONCE_BYTES)


def challenge(knocked: str = "", *, token: bytes = b"") -> Challenge:
    """Return a new question. With the nonce of a Knock, it also proves who asks it."""
    question = nonce()
    digest = _digest(_COORDINATOR, knocked, question, token) if knocked else ""
    return Challenge(question, digest)


def answers(question: Challenge, knocked: str, *, token: bytes) -> bool:
    """Return whether `question` came from a process that knows the token and got this nonce."""
    return _same(question.digest, _digest(_COORDINATOR, knocked, question.nonce, token))


def session() -> int:
    """Return a number for the session of an agent. No two are the same, and none is 0."""
    return secrets.randbits(_SESSION_BITS) + 1


def prove(question: Challenge, *, node: str, token: bytes) -> Proof:
    """Return the agent's answer to a challenge."""
    return Proof(node, _digest(_AGENT, question.nonce, node, token))


def proves(answer: Proof, question: Challenge, *, token: bytes) -> bool:
    return _same(answer.digest, _digest(_AGENT, question.nonce, answer.node, token))


def prove_request(question: Challenge, request: Request, *, token: bytes) -> RemoteRequest:
    """Return a person's answer to a challenge: the request, which nobody can change on its way."""
    return RemoteRequest(request, _digest_of_request(question, request, token))


def proves_request(answer: RemoteRequest, question: Challenge, *, token: bytes) -> bool:
    """Return whether the request came from a process that knows the token, as it was sent."""
    return _same(answer.digest, _digest_of_request(question, answer.request, token))


def _digest_of_request(question: Challenge, request: Request, token: bytes) -> str:
    return _digest(_PERSON, question.nonce, json.dumps(astuple(request)), token)


def image_key(token: bytes, run: str) -> bytes:
    """Return the key with which workers and agents of a run exchange images.

    Workers have it. The token cannot be derived from it, so no worker can lead the run with it.
    """
    return hmac.new(token, _IMAGES + run.encode(errors="surrogatepass"), hashlib.sha256).digest()


def serves(asked: str, answered: str, *, key: bytes) -> str:
    """Return the proof of a server of images, for the first nonce that it was asked with."""
    return _digest(_SERVER, asked, answered, key)


def is_served(digest: str, asked: str, answered: str, *, key: bytes) -> bool:
    """Return whether `digest` is the proof of a server that has the run's key."""
    return _same(digest, serves(asked, answered, key=key))


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(other.encode(), one.encode(errors="replace"))


def _digest(purpose: bytes, nonce: str, name: str, token: bytes) -> str:
    """Return the digest. The nonce is hashed by itself first, so that its end is unambiguous."""
    said = hashlib.sha256(nonce.encode(errors="surrogatepass")).digest() + name.encode(
        errors="surrogatepass"
    )
    return hmac.new(token, purpose + said, hashlib.sha256).hexdigest()
