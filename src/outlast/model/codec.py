"""The JSON form of frozen dataclasses: `[NAME, value, ...]`, with all fields in their order.

Reading is strict.

A field is an int, float, str, bool, or a dataclass of the same codec. It may also be a union of
these with each other or with None, or a tuple of any of them. The codec works out once how to
handle each field, when it is made. A coordinator sends and receives tens of thousands of messages
for one regroup. Nearly all of them carry the same inner message, such as a plan or an inventory. So
the newest inner message of each kind is kept, and an equal one is neither written nor made again. A
receiver that gets one object from many senders can treat them as one.

All messages are frozen, so what is kept cannot change. This module is pure.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass

from outlast.errors import CorruptError
from outlast.model.texts import cut_at_word

_JSON = json.JSONEncoder(separators=(",", ":"))
_READ = json.JSONDecoder().raw_decode  # `decode` would look for white space, which is never sent
_Read = typing.Callable[[object], object]  # from a JSON value to a field's; raises CorruptError
_Write = typing.Callable[[typing.Any], str]  # from a field's value to its JSON


@dataclass(frozen=True, slots=True)
class _Form:
    """One kind of message.

    values  the usual JSON types of the name and the fields
    inner   the fields that need a reader even if they have the usual type, each with its reader
    read    for each field, the JSON type that needs no reader, and the reader for other types
    take    a function that returns all fields of a message
    text    the JSON of a message, with places for the fields
    write   the fields that need a writer; whole numbers are written as Python writes them
    """

    kind: type
    values: tuple[type, ...]
    inner: tuple[tuple[int, _Read], ...]
    read: tuple[tuple[type, _Read], ...]
    take: typing.Callable[[object], tuple[typing.Any, ...]]
    text: str
    write: tuple[tuple[int, _Write], ...]


class Codec:
    """Read and write dataclasses of these types, and no others."""

    def __init__(self, kinds: Iterable[type]) -> None:
        self._forms: dict[str, _Form] = {}
        # the newest inner message of each kind, and its JSON
        self._written: dict[type, tuple[object, str]] = {}
        # the newest of each kind, by its fields
        self._read: dict[type, tuple[list[object], object]] = {}
        for kind in kinds:
            self._forms[kind.__name__] = self._form(kind)

    def encode(self, message: object) -> bytes:
        return self._text(message).encode()

    def decode(self, body: bytes | bytearray | memoryview) -> object:
        """Read a message. Raises CorruptError, and nothing else."""
        try:
            text = str(body, "utf-8")
            value, end = _READ(text)
            if end != len(text):
                raise CorruptError(
                    f"a message has more text after its end: {text[end : end + 40]!r}"
                )
            form, fields = self._fields(value)
        except ValueError as error:
            raise CorruptError(f"a message that is not JSON: {error}") from None
        except (RecursionError, OverflowError) as error:
            # It is nested too deep, or has a whole number that no float can hold.
            raise CorruptError(f"a message out of bounds: {error}") from None
        return form.kind(*fields)

    def _text(self, message: object) -> str:
        form = self._forms[type(message).__name__]
        if not form.write:
            return form.text % form.take(message)
        values = list(form.take(message))
        for place, write in form.write:
            values[place] = write(values[place])
        return form.text % tuple(values)

    def _inner_text(self, message: object) -> str:
        newest = self._written.get(type(message))
        if newest is not None and newest[0] is message:
            return newest[1]
        text = self._text(message)
        self._written[type(message)] = message, text
        return text

    def _inner(self, value: object) -> object:
        form, fields = self._fields(value)
        newest = self._read.get(form.kind)
        # The types are equal too, because they are those of the form.
        if newest is not None and newest[0] == fields:
            return newest[1]
        message = form.kind(*fields)
        self._read[form.kind] = fields, message
        return message

    def _fields(self, value: object) -> tuple[_Form, list[object]]:
        try:
            # A value that cannot be indexed is not a message either.
            form: _Form = self._forms[value[0]]  # type: ignore[index]
        except (TypeError, LookupError):
            raise CorruptError(f"not a message: {cut_at_word(str(value), 80)}") from None
        assert isinstance(value, list)  # nothing else in JSON begins with a name
        fields = value[1:]
        if tuple(map(type, value)) == form.values:
            for place, read in form.inner:
                fields[place] = read(fields[place])
        elif len(fields) == len(form.read):
            # Whole numbers in place of seconds and null where it is allowed are fine.
            fields = [
                one if type(one) is exact else read(one)
                for one, (exact, read) in zip(fields, form.read, strict=True)
            ]
        else:
            raise CorruptError(
                f"{form.kind.__name__} has {len(form.read)} fields, not {len(fields)}"
            )
        return form, fields

    def _form(self, kind: type) -> _Form:
        hints = typing.get_type_hints(kind)
        read = tuple(
            (typing.cast(type, hint), self._reader(hint, f"{kind.__name__}.{name}"))
            for name, hint in hints.items()
        )
        values = tuple(map(_json_type, hints.values()))
        inner = tuple(
            (place, read[place][1]) for place, value in enumerate(values) if value is list
        )
        places = ",".join("%r" if hint is int else "%s" for hint in hints.values())
        text = f'["{kind.__name__}",{places}]'
        write = tuple(
            (place, self._writer(hint))
            for place, hint in enumerate(hints.values())
            if hint is not int
        )
        return _Form(kind, (str, *values), inner, read, _taker(tuple(hints)), text, write)

    def _writer(self, hint: typing.Any) -> _Write:
        """Return a function that writes a field of this type."""
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is tuple:
            item = self._writer(args[0])
            return lambda values: f"[{','.join(map(item, values))}]"
        if dataclasses.is_dataclass(hint):
            return self._inner_text
        if origin in (typing.Union, types.UnionType):
            kinds = [arg for arg in args if arg is not type(None)]
            some = self._writer(kinds[0])
            return (
                some
                if len(kinds) == len(args)
                else lambda value: "null" if value is None else some(value)
            )
        return _WRITERS[hint]

    def _reader(self, hint: typing.Any, where: str) -> _Read:
        """Return a function that reads a field of this type."""
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is tuple and args[0] in (int, str):
            return _row_reader(args[0], where)
        if origin is tuple:
            return _tuple_reader(self._reader(args[0], where), where)
        if dataclasses.is_dataclass(hint):
            return self._inner_reader((typing.cast(type, hint),), where)
        if origin in (typing.Union, types.UnionType):
            kinds = tuple(arg for arg in args if arg is not type(None))
            inner = (
                self._inner_reader(kinds, where)
                if dataclasses.is_dataclass(kinds[0])
                else self._reader(kinds[0], where)
            )
            return (
                inner
                if len(kinds) == len(args)
                else lambda value: None if value is None else inner(value)
            )
        return _simple_reader(hint, where)

    def _inner_reader(self, kinds: tuple[type, ...], where: str) -> _Read:
        def read(value: object) -> object:
            inner = self._inner(value)
            if not isinstance(inner, kinds):
                raise _unfit(where, value)
            return inner

        return read


def _seconds(value: float) -> str:
    # JSON has other names for numbers that are not finite.
    return repr(value) if value - value == 0.0 else _JSON.encode(value)


_WRITERS: dict[type, _Write] = {
    int: repr,
    float: _seconds,
    str: _JSON.encode,
    bool: lambda value: "true" if value else "false",
}


def _taker(names: tuple[str, ...]) -> typing.Callable[[object], tuple[typing.Any, ...]]:
    take = operator.attrgetter(*names)
    return take if len(names) > 1 else lambda message: (take(message),)


def _tuple_reader(item: _Read, where: str) -> _Read:
    def read(value: object) -> object:
        if not isinstance(value, list):
            raise _unfit(where, value)
        return tuple(map(item, value))

    return read


def _row_reader(kind: type, where: str) -> _Read:
    """Return a reader of rows whose values need no conversion."""
    only = {kind}

    def read(value: object) -> object:
        if not isinstance(value, list) or not only.issuperset(map(type, value)):
            raise _unfit(where, value)
        return tuple(value)

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
    return CorruptError(f"{where} cannot be {cut_at_word(str(value), 80)!r}")


def _json_type(hint: typing.Any) -> type:
    """Return the JSON type of the usual value of such a field."""
    args = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    if typing.get_origin(hint) is tuple:
        return list
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _json_type(args[0])
    return list if dataclasses.is_dataclass(hint) else typing.cast(type, hint)
