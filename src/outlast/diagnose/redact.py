"""Make text safe to show and to mail: remove secrets, and make control characters visible.

Secrets    found by their own shape (keys of AWS, Hugging Face, GitHub, GitLab, Slack, Google,
           OpenAI, npm, PyPI, Stripe, JSON web tokens, private keys), or by what stands before them
           (names of passwords, tokens and keys in assignments, JSON, headers, URLs and command
           lines). A number or a truth value after "token" or "key" is not a secret:
           `pad_token_id=0`, `max_tokens: 4096`.
Controls   ESC, C0, C1, DEL, line and paragraph separators, and what turns the direction of text or
           hides in it, as \\x1b or \\u202e.
Limits     Linear time: every pattern begins with a literal or a word boundary and repeats one class
           of characters at a time. Not promised: a secret without a known shape and without a name
           before it stays.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from outlast.model.texts import cut_at_word, escaped

GONE = "[redacted]"
TEXT_MAX = 100_000  # characters of one string that are looked at; what is longer is cut

Value = TypeVar("Value")
_Replacement = Callable[["re.Match[str]"], str]

_SECRET_NAME = (
    r"(?:passw(?:or)?d|passphrase|pwd|secret|token|api[_-]?key|apikey|access[_-]?key"
    r"|account[_-]?key|private[_-]?key|credentials?)"
)
_NAME = rf"[\w.-]{{0,64}}?{_SECRET_NAME}[\w.-]{{0,64}}"
_QUOTED = r"\\?\"[^\"\\]{0,4096}\\?\"|\\?'[^'\\]{0,4096}\\?'"
_BARE = r"[^\s\"',;&)\]}\\]{1,4096}"
_HARMLESS = re.compile(
    (
        r"(?:[-+]?[0-9][0-9._]{0,11}(?:e[-+]?[0-9]{1,3})?|true|false|none|null|nan|\*+|<[^>]*>"
        r"|\[redacted\])\Z"
    ),
    re.IGNORECASE,
)
# a number after these is a secret too
_ALWAYS = re.compile(r"passw|passphrase|pwd|secret", re.IGNORECASE)
_COUNTED = re.compile(
    (
        r"tokens|tokeniz|token_?(?:id|type|count|len|num|idx|index|per)|(?:num|max|min|n|pad"
        r"|bos|eos|unk|mask|sep|cls|per|special|added)_?token"
    ),
    re.IGNORECASE,
)

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE"
    r" KEY-----|\Z)"
)
_SHAPES = re.compile(
    r"""(?x)
    \b(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{16}\b
    | \b(?:hf_|api_org_)[A-Za-z0-9]{16,256}
    | \b(?:sk|rk|pk)[-_](?:[a-z]{2,16}[-_])?[A-Za-z0-9_-]{16,256}
    | \bgh[pousr]_[A-Za-z0-9]{16,256} | \bgithub_pat_\w{16,256} | \bglpat-[\w-]{16,256}
    | \bxox[abeoprs]-[A-Za-z0-9-]{8,256} | \bAIza[\w-]{30,64} | \bya29\.[\w.-]{16,2048}
    | \b(?:npm|dop_v1|wandb_v1)_\w{16,256} | \bpypi-[\w-]{16,512} | \bnvapi-[\w-]{16,256}
    | \beyJ[\w-]{6,8192}\.[\w-]{4,8192}(?:\.[\w-]{0,8192})?
    """
)
_HEADER = re.compile(
    r"(?i)\b(authorization\\?[\"']?\s{0,4}[:=]\s{0,4}\\?[\"']?(?:(?:bearer|basic|token"
    r"|digest|aws4-hmac-sha256)\s{1,4})?|bearer\s{1,4}(?=\S{12}))([^\s\"'\\]{1,8192})"
)
_COOKIE = re.compile(r"(?i)\b((?:set-)?cookie\s{0,4}:\s{0,4})([^\r\n]{1,8192})")
_URL_USER = re.compile(
    r"\b([A-Za-z][A-Za-z0-9+.-]{1,31}://)([^\s/@:\"']{0,1024}:[^\s/@\"']{1,4096}"
    r"|[^\s/@:\"']{16,4096})@"
)
_URL_QUERY = re.compile(
    r"(?i)([?&](?:token|sig|signature|key|api_?key|access_?token|auth|code|secret|password"
    r"|x-(?:amz|goog)-(?:signature|credential|security-token))=)([^&\s\"'#]{1,4096})"
)
_ASSIGNED = re.compile(
    rf"(?i)(?<![\w.-])({_NAME})(\\?[\"']?\s{{0,4}}(?:=>|:=|[:=])\s{{0,4}})({_QUOTED}|{_BARE})"
)
_SHOUTED = re.compile(
    rf"(?<![\w.-])([A-Z][A-Z0-9_]{{0,64}}_(?:KEY|PASS|PW|AUTH"
    rf"|CREDS))(\\?[\"']?\s{{0,4}}[:=]\s{{0,4}})({_QUOTED}|{_BARE})"
)
_FLAG = re.compile(
    rf"(?i)(?<![\w-])(--?{_NAME})([\"']?[\s,]{{1,4}})(?![\s,]|[\"']?--?[a-z])({_QUOTED}|{_BARE})"
)
_NETRC = re.compile(
    r"(?i)\b((?:login|user|account)\s{1,4}\S{1,256}\s{1,4}password\s{1,4})(\S{1,1024})"
)
_SSHPASS = re.compile(r"(\bsshpass\s{1,4}-p\s{0,4})(\S{1,1024})")
_WANDB = re.compile(r"(?i)\b(wandb\b[^\n]{0,200}?[^0-9a-fx])([0-9a-f]{40})(?![0-9a-f])")


def redacted(text: str) -> str:
    """Return the text without its secrets. Doing it twice changes nothing more."""
    if len(text) > TEXT_MAX:
        text = cut_at_word(text, TEXT_MAX)
    text = _PRIVATE_KEY.sub(GONE, text)
    text = _SHAPES.sub(GONE, text)
    text = _COOKIE.sub(_keep_first, text)
    text = _HEADER.sub(_keep_first, text)
    text = _URL_USER.sub(rf"\1{GONE}@", text)
    text = _URL_QUERY.sub(_keep_first, text)
    for pattern in (_ASSIGNED, _SHOUTED, _FLAG):
        text = pattern.sub(_assigned, text)
    for pattern in (_NETRC, _SSHPASS, _WANDB):
        text = pattern.sub(_keep_first, text)
    return text


def redacted_words(words: Sequence[str]) -> list[str]:
    """Return a command line without its secrets.

    A word may be a secret because of the one before it (`--api-key X`).
    """
    out: list[str] = []
    for before, word in zip(["", *words], words):  # noqa: B905 - the last word stands before nothing
        alone = redacted(word)
        named = (
            before.startswith("-")
            and "=" not in before
            and redacted(f"{before}={word}") == f"{before}={GONE}"
        )
        out.append(GONE if named else alone)
    return out


def clean(text: str, *, lines: bool = False) -> str:
    """Return the text without secrets and with its control characters made visible.

    It may go to a terminal, into a mail, or into a page, which has marks of its own to escape.
    """
    return escaped(redacted(text), lines=lines)


def cleaned(value: Value) -> Value:
    """Clean every text in a JSON value, keys included."""
    return _cleaned(value)  # type: ignore[return-value]


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return clean(value, lines=True)
    if isinstance(value, dict):
        return {clean(str(key)): _cleaned(one) for key, one in value.items()}
    return [_cleaned(one) for one in value] if isinstance(value, list | tuple) else value


def _keep_first(match: re.Match[str]) -> str:
    return match[1] + GONE


def _assigned(match: re.Match[str]) -> str:
    name, between, value = match[1], match[2], match[3]
    mark = re.match(r"\\?[\"']", value)
    quote = mark[0] if mark else ""
    bare = value[len(quote) : len(value) - len(quote)] if quote else value
    if (
        not bare
        or bare.startswith(GONE.rstrip("]"))
        or (not _ALWAYS.search(name) and (_HARMLESS.match(bare) or _COUNTED.search(name)))
    ):
        return match[0]
    return f"{name}{between}{quote}{GONE}{quote}"
