"""Values that cross the border: checked on the way in, and shown without copies on the way out."""

import array
import ctypes
import functools
import importlib
import math
import operator
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from ._errors import ArgumentError
from ._library import names

Text = Union[str, bytes]
PathLike = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
# A numpy array of float32 where numpy is installed, else a memoryview of the same shape.
Array = Any


# --- in ---


def integer(what: str, value: Any, kind: Any) -> int:
    """ctypes cuts numbers that are too large; here they are errors."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, not {type(value).__name__}") from None
    if kind(number).value != number:
        bits = 8 * ctypes.sizeof(kind)
        is_signed = kind(-1).value < 0
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
        raise ArgumentError(f"{what} is {number}, and must be {low} to {high}")
    return number


def real(what: str, value: Any, kind: Any) -> float:
    if (
        isinstance(value, (str, bytes))
        or not hasattr(value, "__float__")
        and not hasattr(value, "__index__")
    ):
        raise TypeError(f"{what} must be a number, not {type(value).__name__}")
    number = float(value)
    if math.isinf(kind(number).value) and not math.isinf(number):
        raise ArgumentError(f"{what} is {number}, which is too large")
    return number


def choice(what: str, value: Any, enum: str) -> int:
    """The number of a value of an enum by its name: choice("pooling", "mean", "qn_pooling")."""
    known = names(enum)
    if not isinstance(value, str):
        raise TypeError(f"{what} must be str, not {type(value).__name__}")
    if value.lower() not in known:
        raise ArgumentError(f"{what} is {value!r}, and must be one of: {', '.join(known)}")
    return known[value.lower()]


def text_bytes(what: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{what} must be str or bytes, not {type(value).__name__}")


def c_text(what: str, value: Any) -> bytes:
    """A text for C, which ends at its first NUL."""
    data = text_bytes(what, value)
    if b"\0" in data:
        raise ArgumentError(f"{what} has a NUL at byte {data.index(0)} of {len(data)}")
    return data


def path_bytes(what: str, value: Any) -> bytes:
    try:
        return c_text(what, os.fsencode(value))
    except TypeError:
        raise TypeError(f"{what} must be that of a file, not {type(value).__name__}") from None


def chars(data: bytes) -> Any:
    """Bytes for a field of a struct, which keeps them; a NUL follows."""
    return ctypes.create_string_buffer(data, len(data) + 1)


def char_lists(what: str, values: Any) -> Any:
    """Texts for a field of a struct: a list of pointers."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{what} must be a list of texts, not {type(values).__name__}")
    data = [c_text(f"{what}[{i}]", value) for i, value in enumerate(values)]
    made = (ctypes.POINTER(ctypes.c_char) * len(data))()
    for i, item in enumerate(data):
        made[i] = chars(item)
    return made


def token_ids(value: Any, what: str = "ids") -> Any:
    """Token ids as an array for C; from lists, tuples, numpy arrays and whatever is iterable."""
    if isinstance(value, (str, bytes, bytearray)) or not isinstance(value, Iterable):
        raise TypeError(f"{what} must be a list of token ids, not {type(value).__name__}")
    items = value.tolist() if hasattr(value, "tolist") else value
    try:
        made = array.array("i", items)
    except TypeError:
        raise TypeError(f"{what} must be integers, one after the other") from None
    except OverflowError:
        raise ArgumentError(f"{what} has a number that is no token id") from None
    return (ctypes.c_int32 * len(made)).from_buffer(made)


def set_fields(struct: Any, values: Mapping[str, Any]) -> None:
    """Numbers, switches and texts of a struct by their names; None is the default, which is 0."""
    kinds: Dict[str, Any] = dict(struct._fields_)
    for name, value in values.items():
        if value is None:
            continue
        kind = kinds[name]
        if kind is ctypes.c_bool:
            if not isinstance(value, (bool, int)):
                raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
            value = bool(value)
        elif kind in (ctypes.c_float, ctypes.c_double):
            value = real(name, value, kind)
        elif kind is ctypes.POINTER(ctypes.c_char):
            value = chars(c_text(name, value))
        else:
            value = integer(name, value, kind)
        setattr(struct, name, value)


# --- out ---


@functools.lru_cache(maxsize=None)
def _numpy() -> Any:
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None


def view(buffer: Any, shape: Sequence[int]) -> Array:
    """Floats of a ctypes array with this shape, not copied: the view keeps the array alive."""
    numpy = _numpy()
    if numpy:
        return numpy.ndarray(tuple(shape), dtype=numpy.float32, buffer=buffer)
    if 0 in shape:
        return memoryview(b"").cast("f")
    return memoryview(buffer).cast("B").cast("f", list(shape))


def view_at(pointer: Any, shape: Sequence[int], owner: Any) -> Optional[Array]:
    """The same for floats of the library, which `owner` releases when nobody has a view of them."""
    if not pointer:
        return None
    kind = ctypes.c_float * math.prod(shape)
    buffer: Any = kind.from_address(ctypes.addressof(pointer.contents))
    buffer.owner = owner
    return view(buffer, shape)


def new_floats(shape: Sequence[int]) -> Tuple[Any, Array]:
    """Room for floats that a call writes: for the call, and as it is shown."""
    buffer = (ctypes.c_float * math.prod(shape))()
    return buffer, view(buffer, shape)


def copy_at(pointer: Any, n: int) -> Array:
    """A row of floats that is borrowed for a moment."""
    buffer, shown = new_floats((n,))
    ctypes.memmove(buffer, pointer, ctypes.sizeof(buffer))
    return shown


def floats(what: str, value: Any) -> Any:
    """Floats for C: not copied where they lie side by side as float32 and may be written to."""
    try:
        shown = memoryview(value)
        if shown.format == "f" and shown.c_contiguous and not shown.readonly:
            return (ctypes.c_float * (shown.nbytes // 4)).from_buffer(shown)
    except TypeError:
        pass
    try:
        made = array.array("f", value.tolist() if hasattr(value, "tolist") else value)
    except TypeError:
        raise TypeError(f"{what} must be a row of numbers, not {type(value).__name__}") from None
    return (ctypes.c_float * len(made)).from_buffer(made)


def list_of(pointer: Any, n: int) -> List[Any]:
    return list(pointer[:n]) if n else []
