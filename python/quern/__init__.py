"""Quern: language models, compiled for this machine. docs/python.md is the guide.

    import quern

    with quern.Model("model.gguf") as model:
        for event in model.chat().stream("Why is the sky blue?"):
            print(event, end="", flush=True)
"""

from ._answers import Event, Result
from ._batch import Batch, Row
from ._chat import Chat, ChatEvent, Reply, ToolCall
from ._errors import (
    ArgumentError,
    FileError,
    FormatError,
    LimitError,
    NoMemoryError,
    NumericError,
    QuernError,
    StateError,
    StoppedError,
    UnsupportedError,
)
from ._grammar import Grammar
from ._image import Image
from ._library import __version__, lib as _lib, read_text as _read_text
from ._model import Logits, Model
from ._options import ChatOptions, NextLogits, Options, Sampling
from ._sampler import Sampler
from ._session import Session, Snapshot
from ._stream import Stream
from ._tokenizer import Decoder, Tokenizer

library_path: str = _lib.place
library_version: str = _read_text(_lib.qn_version())

__all__ = [
    "ArgumentError",
    "Batch",
    "Chat",
    "ChatEvent",
    "ChatOptions",
    "Decoder",
    "Event",
    "FileError",
    "FormatError",
    "Grammar",
    "Image",
    "LimitError",
    "Logits",
    "Model",
    "NextLogits",
    "NoMemoryError",
    "NumericError",
    "Options",
    "QuernError",
    "Reply",
    "Result",
    "Row",
    "Sampler",
    "Sampling",
    "Session",
    "Snapshot",
    "StateError",
    "StoppedError",
    "Stream",
    "Tokenizer",
    "ToolCall",
    "UnsupportedError",
    "__version__",
    "library_path",
    "library_version",
]

for _name in __all__:  # errors and helps say where programs find a class
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = "quern"
