"""The shared library: where it is found, whether it fits, and how it is called."""

import ctypes
import functools
import os
import sysconfig
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple, TypeVar

from ._errors import BY_KIND, QuernError
from ._header import Header

_F = TypeVar("_F", bound=Callable[..., Any])

header = Header(Path(__file__).with_name("quern.h").read_text(encoding="ascii"))
__version__ = ".".join(str(number) for number in header.version)


# --- finding it ---


def _places() -> List[str]:
    """Files to try, in order: beside the package, in its prefix, where the system looks."""
    name = f"libquern.so.{header.version[0]}"
    here = Path(__file__).resolve().parent
    folders = [here]
    if here.parent.name in ("dist-packages", "site-packages"):
        lib = here.parents[2]  # PREFIX/lib, of PREFIX/lib/python3/dist-packages/quern
        folders += [lib, lib / (sysconfig.get_config_var("MULTIARCH") or "")]
    found = [str(folder / name) for folder in folders if (folder / name).exists()]
    return found + [name]  # without a folder, the system's loader looks for it


def _open() -> Tuple[ctypes.CDLL, str]:
    named = os.environ.get("QUERN_LIBRARY")
    failures = []
    for place in [named] if named else _places():
        try:
            return ctypes.CDLL(place), place
        except OSError as error:
            failures.append(str(error))
    what = "which QUERN_LIBRARY names" if named else "set QUERN_LIBRARY to the path of the file"
    raise ImportError(f"quern: the shared library cannot be opened ({what}): {'; '.join(failures)}")


def _check_version(library: ctypes.CDLL, place: str) -> None:
    """Structs carry their sizes, so that any later library of the same major version will do."""
    try:
        library.qn_version.restype = ctypes.c_char_p
        text = library.qn_version().decode("ascii", "replace")
        major, minor = (int(part) for part in text.split(".")[:2])
    except (AttributeError, ValueError) as error:
        raise ImportError(f"quern: {place} does not say its version; is it libquern?") from error
    if major != header.version[0] or minor < header.version[1]:
        raise ImportError(
            f"quern: this package is version {__version__}, and needs a library of version "
            f"{header.version[0]}.{header.version[1]} or later with the same first number; "
            f"{place} is {text}"
        )


class _Library:
    """The functions of the library by their names, with the types of the header."""

    def __init__(self, library: ctypes.CDLL, place: str) -> None:
        self.place = place
        for name, (result, arguments) in header.functions.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise ImportError(f"quern: {place} has no function {name}") from None
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"quern.h has no function {name}")


def _load() -> _Library:
    library, place = _open()
    _check_version(library, place)
    return _Library(library, place)


lib = _load()


# --- calling it ---

_thread = threading.local()  # .error: what a callback raised inside the call of this thread


def raise_status(status: int, message: str) -> None:
    kind = read_text(lib.qn_status_name(status))
    raise BY_KIND.get(kind, QuernError)(message)


def call(function: Any, *arguments: Any) -> None:
    """A function that returns a status, without its last argument. What a callback raised inside
    the call comes out of it, whatever the library made of its end."""
    err = header.types["qn_err"]()
    outer = getattr(_thread, "error", None)  # of a call whose callback calls this
    _thread.error = None
    try:
        status = function(*arguments, ctypes.byref(err))
        raised = _thread.error
    finally:
        _thread.error = outer
    if raised is not None:
        try:
            raise raised
        finally:
            del raised  # or it would hold this frame, and with its traceback all that called it
    if status:
        raise_status(status, err.message.decode("utf-8", "replace"))


def callback(kind: str, failed: Any = None) -> Callable[[Callable[..., Any]], Any]:
    """Makes a function a callback of a type of quern.h. Where it raises, the library is told
    `failed`, which mostly means to stop, and the call that it came from raises the same."""

    def decorate(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def guarded(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except BaseException as error:
                _thread.error = getattr(_thread, "error", None) or error
                return failed

        return header.types[kind](guarded)

    return decorate


def new(name: str, **fields: Any) -> Any:
    """A struct with its size set, where it has one, and all else zero but these fields."""
    made = header.types[name]()
    if hasattr(made, "size") and name != "qn_model_file":
        made.size = ctypes.sizeof(made)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def constant(name: str) -> int:
    return header.constants[name]


# The names of an enum's values as Python programs write them: names("qn_pooling")["mean"] is 1.
def names(enum: str) -> Dict[str, int]:
    known = header.enums[enum]
    start = os.path.commonprefix(known).rindex("_") + 1
    return {name[start:].lower(): header.constants[name] for name in known}


def pointer_to(name: str) -> Any:
    """A place for a pointer to an object of this type, to be filled by a call."""
    return ctypes.POINTER(header.types[name])()


# --- what it hands over ---


def read_text(pointer: Any, size: Optional[int] = None) -> str:
    """The text at a borrowed pointer; without a size, up to its NUL. NULL is an empty text."""
    if not pointer:
        return ""
    data = ctypes.string_at(pointer) if size is None else ctypes.string_at(pointer, size)
    return data.decode("utf-8", "replace")


def take_bytes(function: Any, *arguments: Any, sized: bool = True) -> bytes:
    """The bytes that a call hands over by its first parameters, released here."""
    data = function.argtypes[0]._type_()
    size = ctypes.c_size_t()
    outs = (ctypes.byref(data), ctypes.byref(size)) if sized else (ctypes.byref(data),)
    try:
        call(function, *outs, *arguments)
        return ctypes.string_at(data, size.value) if sized else ctypes.string_at(data)
    finally:
        lib.qn_free(data)


def take_text(function: Any, *arguments: Any, sized: bool = True) -> str:
    return take_bytes(function, *arguments, sized=sized).decode("utf-8", "replace")
