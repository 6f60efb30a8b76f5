"""URLs of places for checkpoints: `s3://BUCKET/PATH`, `gs://`, `az://` and `file:///PATH`.

Only the form of a URL is checked here. runtime/objects checks whether there is such a bucket.

This module is pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.errors import UsageError

FILE = "file"
SCHEMES = {
    "s3": "s3://BUCKET/PATH",
    "gs": "gs://BUCKET/PATH",
    "az": "az://CONTAINER/PATH",
    FILE: "file:///PATH",
}
_HINT = "write one of " + ", ".join(SCHEMES.values())


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A place for checkpoints.

    text     the URL without a slash at its end, as messages show it
    bucket   bucket or container; "" for file://
    path     the path within the bucket; for file://, the path of a folder, as written in the URL
    """

    text: str
    scheme: str
    bucket: str
    path: str


def is_url(text: str) -> bool:
    """Return whether a text is meant as a URL of any scheme, and not as a path."""
    return "://" in text


def read_url(text: str, *, name: str) -> StoreUrl:
    """Read a URL. Raises UsageError, whose message begins with `name`, if it cannot be used."""
    scheme, _, rest = text.partition("://")
    if scheme not in SCHEMES:
        raise UsageError(f"{name}: {scheme}:// is no scheme that checkpoints can go to", hint=_HINT)
    if any(sign in rest for sign in "@?#"):
        raise UsageError(
            f"{name}: a URL with a password, `?` or `#` is not allowed",
            hint="credentials are read from the environment, such as AWS_ACCESS_KEY_ID",
        )
    bucket, _, path = rest.partition("/")
    path = path.rstrip("/")
    parts = path.split("/") if path else []
    if any(letter.isspace() for letter in text) or {"", ".", ".."} & set(parts):
        raise UsageError(f"{name}: it has spaces, `..` or an empty part of a path", hint=_HINT)
    if scheme == FILE and (bucket or not path):
        raise UsageError(f"{name}: it does not name a folder of this machine", hint=_HINT)
    if scheme != FILE and (not bucket or ":" in bucket):
        raise UsageError(f"{name}: it does not name a bucket", hint=_HINT)
    return StoreUrl(text.rstrip("/"), scheme, bucket, f"/{path}" if scheme == FILE else path)
