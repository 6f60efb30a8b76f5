"""The tier of object storage: S3, Google Cloud Storage and Azure, by the client obstore.

    <prefix>/step-000000000012/rank-0.safetensors      multipart, each part tried again by itself
    <prefix>/step-000000000012/manifest.json           last, and only if there is none

An object is there as a whole or not at all. A checkpoint exists once its manifest does. The
manifest is put with "create only" (If-None-Match), so of two writers one is refused. Lengths are
compared before; bytes are read back only by `why_not`.

Errors     UsageError if the place cannot be reached or refuses: a bucket that is not there, missing
           or wrong credentials, a server that does not answer. It says nothing about checkpoints.
Limits     Credentials come from the environment and from the machine's own role, as obstore finds
           them; profiles of ~/.aws are not read. Parts of an upload that was cut short stay hidden
           in the bucket: a lifecycle rule removes them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import obstore
import xxhash
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import from_url

from outlast.errors import CorruptError, RunFolderError, UsageError
from outlast.model.limits import (
    MANIFEST_MAX_BYTES,
    OBJECT_PART_BYTES,
    OBJECT_PARTS_AT_ONCE_COUNT,
    OBJECT_PARTS_MAX_COUNT,
)
from outlast.model.manifest import SPLIT, FileEntry, Manifest, decode_manifest
from outlast.model.store_url import StoreUrl
from outlast.runtime.objects.patience import RequestPatience
from outlast.runtime.objects.store_errors import explained, is_missing
from outlast.runtime.tiers.image import ImageHeader, read_header
from outlast.runtime.tiers.local import IMAGE_SUFFIX, MANIFEST_NAME, shard_name
from outlast.runtime.tiers.split_state import check_files
from outlast.runtime.tiers.tier import Seen, TierStepFolder, unseen

_REFUSED = "refused-" + MANIFEST_NAME
_TRIED = "outlast-tries-to-write"
_VARIABLES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
_CLIENT_OPTIONS = (
    "allow_http",
    "allow_invalid_certificates",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
)


def open_tier(place: StoreUrl, patience: RequestPatience) -> ObjectTier:
    """Return the tier of a URL. Raises UsageError if obstore cannot read the URL."""
    with _explained(place.text):
        store = from_url(
            place.text,
            client_options={
                **_from_environment(place.scheme),
                "timeout": timedelta(seconds=patience.request_s),
                "connect_timeout": timedelta(seconds=min(10.0, patience.request_s)),
            },
            retry_config={
                "max_retries": patience.retries,
                "retry_timeout": timedelta(seconds=patience.total_s),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=200),
                    "max_backoff": timedelta(seconds=15),
                    "base": 2,
                },
            },
        )
    return ObjectTier(store, place.text)


def _from_environment(scheme: str) -> dict[str, Any]:
    """Return the options of the client that are environment variables, such as AWS_ALLOW_HTTP.

    obstore reads them itself, unless it is given an option such as a time-out.
    """
    found: dict[str, Any] = {}
    for name in _CLIENT_OPTIONS:
        value = os.environ.get(f"{_VARIABLES[scheme]}_{name}".upper())
        if value is not None:
            found[name] = value.lower() in ("1", "true") if name.startswith("allow") else value
    return found


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object, as a listing shows it."""

    size_bytes: int
    written_s: float


class ObjectTier:
    """Keep checkpoints below a prefix of object storage. `store` is obstore's, with the prefix."""

    def __init__(self, store: Any, url: str) -> None:
        self._store = store
        self._url = url
        self._listed: dict[int, dict[str, StoredObject]] = {}

    @property
    def place(self) -> str:
        """Return the URL."""
        return self._url

    def try_writing(self) -> None:
        """Put an empty object, and delete it. It stays if nothing may be deleted there."""
        with _explained(self._url):
            obstore.put(self._store, _TRIED, b"")
        with contextlib.suppress(BaseError):
            obstore.delete(self._store, _TRIED)

    def step_folders(self) -> Sequence[TierStepFolder]:
        """Return the prefixes of steps, from one listing of all objects."""
        self._listed = self._list("")
        return [
            TierStepFolder(step, MANIFEST_NAME in files)
            for step, files in sorted(self._listed.items(), reverse=True)
        ]

    def manifest(self, step: int) -> Manifest:
        """Return the manifest of a step. Raises CorruptError."""
        data = self._whole(_path(step, MANIFEST_NAME))
        try:
            manifest = decode_manifest(data)
        except CorruptError as error:
            raise CorruptError(f"{self._named(step)}: {error.message}") from None
        if manifest.step != step:
            raise CorruptError(f"{self._named(step)}: its manifest is of step {manifest.step}")
        return manifest

    def written_s(self, step: int) -> float:
        """Return when the manifest was written, or the newest object of the step."""
        files = self._listed.get(step) or self._list(_folder(step)).get(step, {})
        if MANIFEST_NAME in files:
            return files[MANIFEST_NAME].written_s
        return max((one.written_s for one in files.values()), default=0.0)

    def put(
        self, step: int, name: str, chunks: Iterable[memoryview], *, length: int = 0
    ) -> FileEntry:
        """Upload a file in parts. The file exists once all parts are uploaded."""
        path = _path(step, name)
        if self._head(_path(step, MANIFEST_NAME)) is not None:
            raise _is_there(self._named(step))
        digest, written = xxhash.xxh3_64(), 0

        def copied() -> Iterator[bytes]:
            nonlocal written
            for chunk in chunks:
                data = bytes(chunk)  # the client keeps it until the part is sent
                digest.update(data)
                written += len(data)
                yield data

        with _explained(self._named(step, name)):
            obstore.put(
                self._store,
                path,
                copied(),
                use_multipart=not 0 < length <= OBJECT_PART_BYTES,
                chunk_size=max(OBJECT_PART_BYTES, -(-length // OBJECT_PARTS_MAX_COUNT)),
                max_concurrency=OBJECT_PARTS_AT_ONCE_COUNT,
            )
        self._listed.pop(step, None)
        return FileEntry(name, written, digest.intdigest())

    def commit(self, manifest: Manifest) -> None:
        """Compare the lengths of the files, then put the manifest if there is none.

        A manifest that is there with the same bytes is this one: then the answer to an earlier try
        was lost.
        """
        step, data = manifest.step, manifest.encode()
        there = self._list(_folder(step)).get(step, {})
        for entry in manifest.files:
            self._check_length(step, entry, there.get(entry.name))
        path = _path(step, MANIFEST_NAME)
        self._listed.pop(step, None)
        with _explained(self._named(step, MANIFEST_NAME)):
            try:
                obstore.put(self._store, path, data, mode="create")
                return
            except (AlreadyExistsError, PreconditionError):
                pass
        if self._whole(path) != data:
            raise _is_there(self._named(step))

    def read(self, step: int, entry: FileEntry, begin: int, target: memoryview) -> None:
        """Fill `target` from a file of a step, by one request."""
        if not len(target):
            listed = self._listed.get(step, {}).get(entry.name)
            self._check_length(step, entry, listed or self._head(_path(step, entry.name)))
            return
        with self._found(step, entry.name):
            found = obstore.get(
                self._store,
                _path(step, entry.name),
                options={"range": (begin, begin + len(target))},
            )
            self._check_length(step, entry, StoredObject(found.meta["size"], 0.0))
            data = memoryview(found.bytes())
        if len(data) != len(target):
            raise CorruptError(f"{self._named(step, entry.name)} ended while it was read")
        target[:] = data

    def chunks(self, step: int, entry: FileEntry) -> Iterator[memoryview]:
        """Yield all bytes of a file as they arrive."""
        with self._found(step, entry.name):
            found = obstore.get(self._store, _path(step, entry.name))
            self._check_length(step, entry, StoredObject(found.meta["size"], 0.0))
            for data in found.stream(min_chunk_size=1 << 20):
                yield memoryview(data)

    def why_not(self, step: int, *, seen: Seen = unseen) -> str:
        """Download every byte, and return what is wrong, or ""."""
        headers = dict[str, ImageHeader]()
        try:
            manifest = self.manifest(step)
            for entry in manifest.files:
                digest = xxhash.xxh3_64()
                for data in self.chunks(step, entry):
                    digest.update(data)
                    seen(len(data))
                if digest.intdigest() != entry.checksum:
                    name = self._named(step, entry.name)
                    raise CorruptError(f"{name} does not match its checksum")
                if entry.name.endswith(IMAGE_SUFFIX):
                    headers[entry.name] = self._header_of(step, entry)
            if manifest.kind == SPLIT:
                check_files(headers, shard_name(0))
        except CorruptError as error:
            return error.message
        return ""

    def remove(self, step: int) -> None:
        """Remove the objects of a step. The manifest goes first."""
        names = self._list(_folder(step)).get(step, {})
        paths = [_path(step, name) for name in names if name != MANIFEST_NAME]
        with _explained(self._named(step)):
            if MANIFEST_NAME in names:
                obstore.delete(self._store, _path(step, MANIFEST_NAME))
            if paths:
                obstore.delete(self._store, paths)
        self._listed.pop(step, None)

    def set_aside(self, step: int) -> str:
        """Rename the manifest to `refused-manifest.json`. The other objects stay where they are."""
        with _explained(self._named(step)):
            obstore.copy(self._store, _path(step, MANIFEST_NAME), _path(step, _REFUSED))
            obstore.delete(self._store, _path(step, MANIFEST_NAME))
        self._listed.pop(step, None)
        return f"{_folder(step)}/{_REFUSED}"

    # --- requests ---------------------------------------------------------------------------------

    def _list(self, prefix: str) -> dict[int, dict[str, StoredObject]]:
        """Return the files of steps by step and name."""
        found: dict[int, dict[str, StoredObject]] = {}
        with _explained(self._url):
            for chunk in obstore.list(self._store, prefix or None):
                for one in chunk:
                    folder, _, name = one["path"].partition("/")
                    number = folder.removeprefix("step-")
                    if number.isdecimal() and folder == _folder(int(number)) and "/" not in name:
                        seen = StoredObject(one["size"], one["last_modified"].timestamp())
                        found.setdefault(int(number), {})[name] = seen
        return found

    def _head(self, path: str) -> StoredObject | None:
        with _explained(f"{self._url}/{path}"):
            try:
                found = obstore.head(self._store, path)
            except FileNotFoundError as error:
                if not is_missing(error):
                    raise
                return None
        return StoredObject(found["size"], found["last_modified"].timestamp())

    def _whole(self, path: str) -> bytes:
        """Return a small object. Raises CorruptError if there is none, or it is not small."""
        with _explained(f"{self._url}/{path}"):
            try:
                found = obstore.get(self._store, path)
                if found.meta["size"] > MANIFEST_MAX_BYTES:
                    size = found.meta["size"]
                    raise CorruptError(f"{self._url}/{path} has {size:,} bytes: it is no manifest")
                return bytes(found.bytes())
            except FileNotFoundError as error:
                if not is_missing(error):
                    raise
                raise CorruptError(f"{self._url}/{path} is missing") from None

    @contextlib.contextmanager
    def _found(self, step: int, name: str) -> Iterator[None]:
        """Turn "there is no such object" into CorruptError, and other errors into UsageError."""
        with _explained(self._named(step, name)):
            try:
                yield
            except FileNotFoundError as error:
                if not is_missing(error):
                    raise
                raise CorruptError(f"{self._named(step, name)} is missing") from None

    def _check_length(self, step: int, entry: FileEntry, found: StoredObject | None) -> None:
        name = self._named(step, entry.name)
        if found is None:
            raise CorruptError(f"{name} is missing")
        if found.size_bytes != entry.length:
            raise CorruptError(
                f"{name} should have {entry.length:,} bytes and has {found.size_bytes:,}"
            )

    def _header_of(self, step: int, entry: FileEntry) -> ImageHeader:
        def read(begin: int, size: int) -> bytes:
            data = bytearray(size)
            self.read(step, entry, begin, memoryview(data))
            return bytes(data)

        try:
            return read_header(read, entry.length)
        except CorruptError as error:
            raise CorruptError(f"{self._named(step, entry.name)}: {error.message}") from None

    def _named(self, step: int, name: str = "") -> str:
        return f"{self._url}/{_path(step, name)}" if name else f"{self._url}/{_folder(step)}"


def _folder(step: int) -> str:
    return f"step-{step:012d}"


def _path(step: int, name: str) -> str:
    return f"{_folder(step)}/{name}"


def _is_there(named: str) -> RunFolderError:
    return RunFolderError(
        f"{named} holds a checkpoint already, which is not written over",
        hint="give each run a URL of its own",
    )


@contextlib.contextmanager
def _explained(where: str) -> Iterator[None]:
    """Turn the client's errors into UsageError with the reason in a few words."""
    try:
        yield
    except (BaseError, FileNotFoundError, ValueError) as error:
        message, hint = explained(error)
        raise UsageError(f"{where}: {message}", hint=hint) from error
