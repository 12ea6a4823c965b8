"""Choosing tokens by logits that come from anywhere."""

import ctypes
from typing import Any, Iterable, Mapping, Optional, Union

from ._library import call, lib, take_bytes
from ._objects import Guard, Handle, make
from ._options import Sampling, as_sampling
from ._tokenizer import Tokenizer
from ._values import floats, integer, token_ids


class Sampler(Handle):
    """Remembers the tokens so far and chooses the next one exactly as sessions do, by rows of
    n_vocab logits (0: as many as the tokenizer has tokens). Without a tokenizer bans are refused.
    One thread at a time."""

    _what = "sampler"

    def __init__(
        self,
        tokenizer: Optional[Tokenizer] = None,
        n_vocab: int = 0,
        sampling: Union[Sampling, Mapping[str, Any], None] = None,
    ) -> None:
        if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
            raise TypeError(f"tokenizer must be a Tokenizer, not {type(tokenizer).__name__}")
        owner = None if tokenizer is None else tokenizer._use()
        self._guard = Guard("sampler")
        self._resource = make(
            "qn_sampler",
            lib.qn_sampler_create,
            lib.qn_sampler_destroy,
            owner and owner.pointer,
            integer("n_vocab", n_vocab, ctypes.c_int64),
            None if sampling is None else as_sampling(sampling)._struct(),
            needs=(owner,) if owner else (),
        )

    def _call(self, function: Any, *arguments: Any) -> None:
        sampler = self._use()
        with self._guard.held():
            call(function, sampler.pointer, *arguments)

    def set(self, sampling: Union[Sampling, Mapping[str, Any]]) -> None:
        """Other settings from now on."""
        self._call(lib.qn_sampler_set, as_sampling(sampling)._struct())

    def choose(self, logits: Any) -> int:
        """The next token by a row of numbers; nothing is remembered. A numpy array or memoryview of
        float32 is not copied."""
        sampler, row, token = self._use(), floats("logits", logits), ctypes.c_int32()
        with self._guard.held():
            call(lib.qn_sampler_choose, ctypes.byref(token), sampler.pointer, row, len(row))
        return token.value

    def accept(self, token: int) -> None:
        """Appends a token of the answer."""
        self._call(lib.qn_sampler_accept, integer("token", token, ctypes.c_int32))

    def accept_prompt(self, ids: Iterable[int]) -> None:
        """Appends tokens of the prompt, before any of the answer."""
        made = token_ids(ids)
        self._call(lib.qn_sampler_accept_prompt, made, len(made))

    def reset(self) -> None:
        """Forgets all tokens; the settings stay."""
        self._call(lib.qn_sampler_reset)

    def save(self) -> bytes:
        """The state, settings aside."""
        sampler = self._use()
        with self._guard.held():
            return take_bytes(lib.qn_sampler_save, sampler.pointer)

    def load(self, data: bytes) -> None:
        """A state that was saved, in place of its own."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")
        kept = bytes(data)
        self._call(lib.qn_sampler_load, kept, len(kept))
