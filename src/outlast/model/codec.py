"""The JSON form of frozen dataclasses: `{"type": NAME, field: value, ...}`, read strictly.

A field is an int, float, str, bool, a dataclass of the same codec, a union of these with each other or with None, or a tuple of any of them. What is to be done
for each is found out once, when the codec is made: a coordinator says and takes in hundreds of thousands of messages for one regroup.

This module is pure.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass

from outlast.errors import CorruptError

_JSON = json.JSONEncoder(separators=(",", ":"))
_MISSING = object()
_Read = typing.Callable[[object], object]  # a JSON value to the field's; raises CorruptError


@dataclass(frozen=True, slots=True)
class _Form:
    """`plain`: fields whose value is its own JSON. `read`: for each field its name, the type that may pass as it is, and what is to be done with others."""

    kind: type
    plain: tuple[str, ...]
    nested: tuple[str, ...]
    read: tuple[tuple[str, type, _Read], ...]


class Codec:
    """Of these types and no others."""

    def __init__(self, kinds: Iterable[type]) -> None:
        self._forms: dict[str, _Form] = {}
        for kind in kinds:
            self._forms[kind.__name__] = self._form(kind)

    def encode(self, message: object) -> bytes:
        return _JSON.encode(self._plain(message)).encode()

    def decode(self, body: bytes | bytearray | memoryview) -> object:
        """Raises CorruptError, and nothing else."""
        try:
            return self._message(json.loads(str(body, "utf-8")))
        except ValueError as error:
            raise CorruptError(f"a message that is not JSON: {error}") from None
        except (RecursionError, OverflowError) as error:  # nested too deep; a whole number that no float can hold
            raise CorruptError(f"a message out of bounds: {error}") from None

    def _plain(self, message: typing.Any) -> dict[str, typing.Any]:
        form = self._forms[type(message).__name__]
        out: dict[str, typing.Any] = {"type": form.kind.__name__}
        for name in form.plain:
            out[name] = getattr(message, name)
        for name in form.nested:
            value = getattr(message, name)
            out[name] = [self._plain(one) for one in value] if isinstance(value, tuple) else None if value is None else self._plain(value)
        return out

    def _message(self, value: object) -> object:
        name = value.get("type") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(name, str) or name not in self._forms:
            raise CorruptError(f"not a message: {str(value)[:80]}")
        form = self._forms[name]
        if len(value) != len(form.read) + 1:
            raise _wrong_fields(form, value)
        given = []
        for field, exact, read in form.read:
            one = value.get(field, _MISSING)
            if type(one) is not exact:
                if one is _MISSING:
                    raise _wrong_fields(form, value)
                one = read(one)
            given.append(one)
        return form.kind(*given)

    def _form(self, kind: type) -> _Form:
        hints = typing.get_type_hints(kind)
        nested = tuple(name for name, hint in hints.items() if _holds_messages(hint))
        read = tuple((name, typing.cast(type, hint), self._reader(hint, f"{kind.__name__}.{name}")) for name, hint in hints.items())
        return _Form(kind, tuple(name for name in hints if name not in nested), nested, read)

    def _reader(self, hint: typing.Any, where: str) -> _Read:
        """Of a field of this type."""
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is tuple:
            return _tuple_reader(self._reader(args[0], where), where)
        if dataclasses.is_dataclass(hint):
            return self._inner_reader((typing.cast(type, hint),), where)
        if origin in (typing.Union, types.UnionType):
            kinds = tuple(arg for arg in args if arg is not type(None))
            inner = self._inner_reader(kinds, where) if dataclasses.is_dataclass(kinds[0]) else self._reader(kinds[0], where)
            return inner if len(kinds) == len(args) else lambda value: None if value is None else inner(value)
        return _simple_reader(hint, where)

    def _inner_reader(self, kinds: tuple[type, ...], where: str) -> _Read:
        def read(value: object) -> object:
            inner = self._message(value)
            if not isinstance(inner, kinds):
                raise _unfit(where, value)
            return inner

        return read


def _wrong_fields(form: _Form, value: dict[str, object]) -> CorruptError:
    return CorruptError(f"{form.kind.__name__} has the wrong fields: {sorted(set(value) ^ {field for field, _, _ in form.read} ^ {'type'})}")


def _tuple_reader(item: _Read, where: str) -> _Read:
    def read(value: object) -> object:
        if not isinstance(value, list):
            raise _unfit(where, value)
        return tuple(map(item, value))

    return read


def _simple_reader(hint: type, where: str) -> _Read:
    def read(value: object) -> object:
        if type(value) is hint:
            return value
        if hint is float and type(value) is int:
            return float(value)
        raise _unfit(where, value)

    return read


def _unfit(where: str, value: object) -> CorruptError:
    return CorruptError(f"{where} cannot be {str(value)[:80]!r}")


def _holds_messages(hint: typing.Any) -> bool:
    return dataclasses.is_dataclass(hint) or any(_holds_messages(arg) for arg in typing.get_args(hint))
