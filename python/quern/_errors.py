"""What can go wrong, by the kinds of the library, and with its own messages."""

from typing import Dict, Type


class QuernError(Exception):
    """A call failed: the text names the object and both values, `kind` the status."""

    kind = "FAILED"


class FileError(QuernError, OSError):
    """A file could not be read or written."""

    kind = "IO"


class FormatError(QuernError, ValueError):
    """The input is damaged, or not what it claims to be."""

    kind = "FORMAT"


class UnsupportedError(QuernError):
    """Valid, but not supported."""

    kind = "UNSUPPORTED"


class ArgumentError(QuernError, ValueError):
    """An argument that is not valid."""

    kind = "ARGUMENT"


class LimitError(QuernError):
    """A limit was exceeded: of the context, of a grammar, of a template."""

    kind = "LIMIT"


class NoMemoryError(QuernError, MemoryError):
    """There is not enough memory."""

    kind = "MEMORY"


class StateError(QuernError, RuntimeError):
    """Called in the wrong order: something is closed, in use, or of another process."""

    kind = "STATE"


class NumericError(QuernError, ArithmeticError):
    """The computation broke down."""

    kind = "NUMERIC"


class StoppedError(QuernError):
    """Stopped by the caller."""

    kind = "STOPPED"


BY_KIND: Dict[str, Type[QuernError]] = {
    error.kind: error
    for error in (
        FileError,
        FormatError,
        UnsupportedError,
        ArgumentError,
        LimitError,
        NoMemoryError,
        StateError,
        NumericError,
        StoppedError,
    )
}
