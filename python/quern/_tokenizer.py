"""Text to token ids and back."""

import ctypes
from typing import Any, Iterable, List, Optional, Union

from ._errors import ArgumentError, UnsupportedError
from ._library import call, lib, new, read_text, take_bytes, take_text
from ._objects import Guard, Handle, Resource, StopFlag, make, run
from ._values import PathLike, Text, integer, list_of, path_bytes, text_bytes, token_ids


class Tokenizer(Handle):
    """The tokenizer of a file: a model, a tokenizer.json or a tokenizer.model. Threads may share
    it. That of an open model is `model.tokenizer`."""

    _what = "tokenizer"

    def __init__(self, path: PathLike) -> None:
        where = path_bytes("path", path)
        self._resource = make("qn_tokenizer", lib.qn_tokenizer_open, lib.qn_tokenizer_close, where)

    @classmethod
    def _borrowed(cls, pointer: Any, owner: Resource) -> "Tokenizer":
        made = cls.__new__(cls)
        made._resource = Resource(pointer, lambda _: None, (owner,))
        return made

    def encode(
        self, text: Text, *, special: bool = False, add_ends: bool = False, max_tokens: int = 0
    ) -> List[int]:
        """Token ids of a text. `special`: special tokens written in it are recognised; `add_ends`:
        the tokens are added that the model expects around a text; a text of more than `max_tokens`
        (0: no limit) is a LimitError."""
        tokenizer = self._use()
        data = text_bytes("text", text)
        stop = StopFlag()
        opts = new(
            "qn_tokenize_opts",
            special=bool(special),
            add_ends=bool(add_ends),
            max_tokens=integer("max_tokens", max_tokens, ctypes.c_size_t),
            stop=stop.pointer,
        )
        ids, n = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()

        def work() -> None:
            call(
                lib.qn_tokenize,
                ctypes.byref(ids),
                ctypes.byref(n),
                tokenizer.pointer,
                data,
                len(data),
                opts,
            )

        # A thread of its own costs more than a short text does.
        run(work, stop.set) if len(data) > 1 << 16 else work()
        try:
            return list_of(ids, n.value)
        finally:
            lib.qn_free(ids)

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of token ids; special tokens are left out unless `special`."""
        tokenizer = self._use()
        made = token_ids(ids)
        return take_text(lib.qn_detokenize, tokenizer.pointer, made, len(made), bool(special))

    def piece(self, token: int) -> str:
        """The vocabulary's own spelling of a token."""
        size = ctypes.c_size_t()
        tokenizer = self._use()
        number = integer("token", token, ctypes.c_int32)
        text = lib.qn_tokenizer_piece(tokenizer.pointer, number, ctypes.byref(size))
        if not text:
            raise ArgumentError(f"token {number} is not one of the {self.n_tokens} tokens")
        return read_text(text, size.value)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for in the middle of a text: part of a character, maybe."""
        number = integer("token", token, ctypes.c_int32)
        return take_bytes(lib.qn_tokenizer_bytes, self._use().pointer, number)

    def find(self, piece: Text) -> Optional[int]:
        """The id of a token spelled exactly so, special tokens included."""
        data = text_bytes("piece", piece)
        token: int = lib.qn_tokenizer_find(self._use().pointer, data, len(data))
        return token if token >= 0 else None

    def is_end(self, token: int) -> bool:
        """Whether a token ends an answer."""
        number = integer("token", token, ctypes.c_int32)
        return bool(lib.qn_tokenizer_is_end(self._use().pointer, number))

    def decoder(self) -> "Decoder":
        return Decoder(self)

    def _info(self) -> Any:
        tokenizer = self._use()
        info = new("qn_tokenizer_info")
        call(lib.qn_tokenizer_get_info, ctypes.byref(info), tokenizer.pointer)
        return info

    def _special(self, name: str) -> Optional[int]:
        token: int = getattr(self._info(), name)
        return token if token >= 0 else None

    @property
    def n_tokens(self) -> int:
        return int(self._info().n_tokens)

    @property
    def kind(self) -> str:
        """One of "BPE", "SentencePiece BPE" and "unigram"."""
        tokenizer = self._use()  # whose text it is
        kind = read_text(self._info().model)
        del tokenizer
        return kind

    @property
    def bos(self) -> Optional[int]:
        return self._special("bos")

    @property
    def eos(self) -> Optional[int]:
        return self._special("eos")

    @property
    def eot(self) -> Optional[int]:
        return self._special("eot")

    @property
    def unk(self) -> Optional[int]:
        return self._special("unk")

    @property
    def pad(self) -> Optional[int]:
        return self._special("pad")


# A text, whose special tokens are text like any other, or token ids.
Prompt = Union[Text, Iterable[int]]


def prompt_ids(tokenizer: Optional[Tokenizer], prompt: Prompt) -> Any:
    """Token ids of a prompt for C, with the tokens around a text that the model expects."""
    if isinstance(prompt, (str, bytes)):
        if tokenizer is None:
            raise UnsupportedError("the model came without a tokenizer: give token ids, not a text")
        prompt = tokenizer.encode(prompt, add_ends=True)
    if not isinstance(prompt, Iterable):
        kind = type(prompt).__name__
        raise TypeError(f"a prompt must be a text or a list of token ids, not {kind}")
    return token_ids(prompt, "prompt")


class Decoder(Handle):
    """Token ids to text, one by one: bytes of an unfinished character wait for the rest of it."""

    _what = "decoder"

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not isinstance(tokenizer, Tokenizer):
            raise TypeError(f"tokenizer must be a Tokenizer, not {type(tokenizer).__name__}")
        owner = tokenizer._use()
        self._resource = make(
            "qn_decoder",
            lib.qn_decoder_create,
            lib.qn_decoder_destroy,
            owner.pointer,
            needs=(owner,),
        )
        self._guard = Guard("decoder")

    def next(self, token: int) -> str:
        """The text that a token completes; may be empty."""
        return self._told(lib.qn_decoder_next, integer("token", token, ctypes.c_int32))

    def finish(self) -> str:
        """What is still held back. The decoder starts again."""
        return self._told(lib.qn_decoder_finish)

    def _told(self, function: Any, *arguments: Any) -> str:
        decoder = self._use()
        text, size = ctypes.POINTER(ctypes.c_char)(), ctypes.c_size_t()
        with self._guard.held():
            call(function, ctypes.byref(text), ctypes.byref(size), decoder.pointer, *arguments)
            return read_text(text, size.value)
