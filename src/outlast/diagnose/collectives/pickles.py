"""Read an untrusted pickle: numbers, strings, lists, tuples and dicts, and nothing else.

Flight recorder dumps are pickles, and a pickle is a program. A recorder's dump is made of 24
opcodes, and asks for no name and no object. So a pickle that asks for one is refused: `find_class`
and `persistent_load` always raise. With no callable on the stack, REDUCE, OBJ, NEWOBJ and BUILD
have nothing to work on.

Not promised: little memory and time. A few bytes can ask for gigabytes (an index into the memo,
the length of a bytes object). To look at every opcode first would take longer than to unpickle.
A process under a limit of memory refuses such a dump; another one may be given the gigabytes.
Tuples nested a million deep overflow the stack of C when they are hashed. So pickles of strangers
are read in a process of their own, under limits (`runtime/evidence/unpickling.py`).

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import pickle  # tidy: read through a subclass that refuses every name
from typing import NoReturn

from outlast.errors import CorruptError
from outlast.model.texts import cut_at_word


class UnreadableDump(CorruptError, ValueError):
    """The file is not a dump, or not a whole one; the message says why.

    `refused` is set if it is a pickle that asked for a name or an object, as an attack does.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class OversizedDump(UnreadableDump):
    """Reading the file takes more memory than this process can have.

    Few dumps are that long. Most often the bytes are damaged, or no dump's, and a few of them say
    that gigabytes follow.
    """


class _Whole:
    """A file that gives all of its bytes at the first read.

    From BytesIO the unpickler would read them one by one, and through a buffer it would copy them
    twice.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0

    def peek(self, size: int) -> bytes:
        return self._raw[self._at :]  # the same object, while nothing is read

    def read(self, size: int) -> bytes:
        self._at += size
        return self._raw[self._at - size : self._at]

    def readline(self) -> bytes:
        end = self._raw.find(b"\n", self._at) + 1 or len(self._raw)
        return self.read(end - self._at)


class _Refusing(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> NoReturn:
        asked = cut_at_word(f"{module}.{name}", 100)
        why = f"refused: the pickle asks for {asked!r}; a dump names nothing"
        raise UnreadableDump(why, refused=True)

    def persistent_load(self, pid: object, /) -> NoReturn:
        raise UnreadableDump(
            "refused: the pickle asks for an object by its id; a dump names nothing", refused=True
        )


def unpickled(raw: bytes) -> object:
    """Return the object that `raw` holds.

    Raises UnreadableDump, and MemoryError if it takes more memory than there is.
    """
    try:
        return _Refusing(_Whole(raw)).load()
    except (UnreadableDump, MemoryError):
        raise
    except EOFError:
        raise UnreadableDump(
            f"cut short: the pickle ends in its middle, after {len(raw)} bytes" if raw else "empty"
        ) from None
    except Exception as error:  # boundary: bytes of strangers
        # The unpickler answers with a dozen types of error
        why = f"not a pickle: {cut_at_word(str(error), 120)!r}"
        if "truncated" in str(error):
            why = f"cut short: the pickle ends in its middle, after {len(raw)} bytes"
        raise UnreadableDump(why) from None
