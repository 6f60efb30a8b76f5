"""Shorten the long errors of the client of object storage.

obstore has few types of errors. What happened is in their first line, and in the server's XML. This
module needs no obstore.
"""

from __future__ import annotations

import re

from outlast.model.texts import cut_at_word

_HINT_CREDENTIALS = (
    "export the credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3 (of a profile:"
    ' `eval "$(aws configure export-credentials --format env)"`), GOOGLE_APPLICATION_CREDENTIALS'
    " for gs, AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY for az"
)
_WORDS_COUNT = 200
# a text in an error, what it means, and what to do
_MEANINGS = (
    (
        "NoSuchBucket|ContainerNotFound|specified bucket does not exist",
        "there is no such bucket",
        "make it, or correct its name; outlast makes none",
    ),
    (
        r"169\.254\.\d+\.\d+|latest/api/token|computeMetadata|metadata/identity|MissingAccount",
        "no credentials were found",
        _HINT_CREDENTIALS,
    ),
    (
        "InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|AuthenticationFailed",
        "the credentials are not accepted",
        _HINT_CREDENTIALS,
    ),
    ("ExpiredToken|TokenRefreshRequired", "the credentials have expired", _HINT_CREDENTIALS),
    (
        "403 Forbidden|401 Unauthorized|AccessDenied|AuthorizationFailed",
        "the credentials do not allow it",
        "they need the right to list, read, write and delete below that path",
    ),
    (
        "PermanentRedirect|AuthorizationHeaderMalformed|301 Moved",
        "the bucket is in another region",
        "export AWS_REGION with that of the bucket",
    ),
    (
        "URL scheme is not allowed|BadScheme",
        "http:// is not allowed for an endpoint unless it is asked for",
        "export AWS_ALLOW_HTTP=true, or use https://",
    ),
    (
        "timed out|TimedOut|Timeout|deadline has elapsed",
        "it does not answer in time",
        "is the network there? `AWS_ENDPOINT_URL` names another server",
    ),
    (
        "HTTP error|error sending request|Connect|connection|dns error",
        "it cannot be reached",
        "is the network there? `AWS_ENDPOINT_URL` names another server",
    ),
)


def explained(error: Exception) -> tuple[str, str]:
    """Return what an error of the client means, and what to do about it."""
    text = str(error)
    if found := re.search(r"status code: (5\d\d[^\n:<]*)", text):
        return f"the server answers {found[1].strip()}", "try again later"
    for pattern, meaning, hint in _MEANINGS:
        if re.search(pattern, text):
            return meaning, hint
    first = text.partition("\n")[0]
    return cut_at_word(first, _WORDS_COUNT) or type(error).__name__, ""


def is_missing(error: FileNotFoundError) -> bool:
    """Return whether an object does not exist. A bucket that does not exist is another error."""
    return re.search(_MEANINGS[0][0], str(error)) is None
