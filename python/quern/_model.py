"""A model that is loaded."""

import ctypes
import json
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from ._answers import Result
from ._batch import Batch
from ._chat import Chat
from ._errors import UnsupportedError
from ._grammar import Grammar, log_callback
from ._library import call, header, lib, new, read_text, take_text
from ._objects import Handle, Resource, StopFlag, make, progress_callback, run
from ._options import Options, Sampling, sampling_defaults
from ._session import Session
from ._tokenizer import Prompt, Tokenizer, prompt_ids
from ._values import (
    Array,
    PathLike,
    Text,
    c_text,
    chars,
    choice,
    integer,
    path_bytes,
    real,
    set_fields,
    view_at,
)

if TYPE_CHECKING:
    import mmap

Progress = Callable[[int, int], Any]
Bytes = Union[bytes, bytearray, memoryview, "mmap.mmap"]
Source = Union[PathLike, Mapping[str, Bytes]]
# An adapter: its path, or its path and scale, or also the number of its set.
Adapter = Union[PathLike, Tuple[PathLike, float], Tuple[PathLike, float, int]]


class Logits:
    """What a model makes of a prompt: arrays that keep the memory they show alive."""

    def __init__(self, rows: Array, hidden: Optional[Array], mtp: Optional[Array]) -> None:
        self.rows = rows  # (n_rows, n_vocab)
        self.hidden = hidden  # (1 + layers, tokens, width), or None
        self.mtp = mtp  # (n, n_vocab) of the prediction head, or None


class Model(Handle):
    """A model file (GGUF, or a checkpoint folder), loaded and compiled. Threads may share it. In
    place of a path it may be a dict of the files of a model, as bytes by their names, which are not
    copied where they are `bytes` or can be written to.

    Options have the names and meanings of qn_engine_opts in quern.h; choices are texts: numerics
    "exact", "balanced", "fast", "tensor"; cache_type "f32", "f16", "q8_0", "q4_0", "q8_0r", "q4_0r"; numa "auto", "off";
    device as `quern devices` names them. `progress(done, total)` is called while the weights are
    read and may return False to stop; `log(level, message)` is called with what the library has to
    say. Both are called on the thread that computes, which is one of the package's own if the main
    thread waits.
    """

    _what = "model"

    def __init__(
        self,
        path: Source,
        *,
        n_threads: int = 0,
        device: Optional[str] = None,
        numerics: str = "exact",
        cache_type: str = "auto",
        cache_dir: Optional[PathLike] = None,
        mmproj: Optional[PathLike] = None,
        adapters: Sequence[Adapter] = (),
        config: Optional[str] = None,
        profile: Optional[PathLike] = None,
        mtp: bool = False,
        reference: bool = False,
        no_weights: bool = False,
        image_pixels: int = 0,
        expert_budget: int = 0,
        expert_budget_bytes: int = 0,
        gpu_layers: int = 0,
        gpu_context: int = 0,
        rope_scaling: Optional[str] = None,
        rope_factor: float = 0,
        rope_original: int = 0,
        numa: str = "auto",
        progress: Optional[Progress] = None,
        log: Optional[Callable[[str, str], Any]] = None,
    ) -> None:
        opts = new("qn_engine_opts")
        set_fields(
            opts,
            {
                "n_threads": n_threads,
                "device": device,
                "config": config,
                "mtp": mtp,
                "reference": reference,
                "no_weights": no_weights,
                "image_pixels": image_pixels,
                "expert_budget": expert_budget,
                "expert_budget_bytes": expert_budget_bytes,
                "gpu_layers": gpu_layers,
                "gpu_context": gpu_context,
                "rope_scaling": rope_scaling,
                "rope_factor": rope_factor,
                "rope_original": rope_original,
                "numerics": choice("numerics", numerics, "qn_numerics"),
                "cache_type": choice("cache_type", cache_type, "qn_cache_type"),
                "numa": choice("numa", numa, "qn_numa_use"),
            },
        )
        for name, value in (("cache_dir", cache_dir), ("mmproj", mmproj), ("profile", profile)):
            if value is not None:
                setattr(opts, name, chars(path_bytes(name, value)))
        made = _adapters(adapters)
        opts.adapters, opts.n_adapters = made, len(made)
        if log is not None:
            opts.log = log_callback(log)
        self._open(path, opts, progress)

    def _open(self, model: Source, opts: Any, progress: Optional[Progress]) -> None:
        stop = StopFlag()
        opts.progress = progress_callback(stop, progress)
        self._calls_back = bool(opts.log)
        create = lib.qn_engine_open
        arguments: Any = None
        if isinstance(model, Mapping):
            create, files = lib.qn_engine_open_files, _files(model)
            arguments = (files, len(files), ctypes.byref(opts))
        else:
            arguments = (path_bytes("path", model), ctypes.byref(opts))

        def work() -> Resource:
            # The library may log, and read files that are kept here, as long as the engine lives.
            keeps = (opts, arguments)
            return make("qn_engine", create, lib.qn_engine_close, *arguments, keeps=keeps)

        self._resource = run(work, stop.set)

    # --- what it is ---

    def _info(self) -> Any:
        engine = self._use()
        info = new("qn_engine_info")
        call(lib.qn_engine_get_info, ctypes.byref(info), engine.pointer)
        return info

    @property
    def info(self) -> Dict[str, Any]:
        """Sizes, types and devices: the fields of qn_engine_info."""
        engine = self._use()  # whose texts these are
        info = self._info()
        made = {}
        for name, kind in info._fields_[1:]:
            value = getattr(info, name)
            made[name] = read_text(value) if kind is ctypes.POINTER(ctypes.c_char) else value
        del engine
        return made

    @property
    def name(self) -> str:
        return str(self.info["name"])

    @property
    def n_vocab(self) -> int:
        return int(self._info().n_vocab)

    @property
    def width(self) -> int:
        return int(self._info().width)

    @property
    def context(self) -> int:
        """The longest sequence that the model was made for."""
        return int(self._info().context)

    @property
    def config(self) -> Dict[str, Any]:
        """The whole configuration."""
        text = take_text(lib.qn_engine_config, self._use().pointer, sized=False)
        made: Dict[str, Any] = json.loads(text)
        return made

    @property
    def sampling(self) -> Sampling:
        """The settings that its makers recommend; greedy where there are none."""
        return sampling_defaults(self._use())

    def memory(self, context: int = 0, chunk: int = 0) -> Dict[str, int]:
        """Bytes that a session with a context of that many tokens needs."""
        engine = self._use()
        memory = new("qn_memory")
        numbers = (
            integer("context", context, ctypes.c_int64),
            integer("chunk", chunk, ctypes.c_int64),
        )
        call(lib.qn_engine_memory, ctypes.byref(memory), engine.pointer, *numbers)
        return {name: getattr(memory, name) for name, _ in memory._fields_[1:]}

    # --- tokens ---

    def _tokenizer_or_none(self) -> Optional[Tokenizer]:
        engine = self._use()
        pointer = lib.qn_engine_tokenizer(engine.pointer)
        return Tokenizer._borrowed(pointer, engine) if pointer else None

    @property
    def tokenizer(self) -> Tokenizer:
        made = self._tokenizer_or_none()
        if made is None:
            raise UnsupportedError("the model came without a tokenizer")
        return made

    def tokenize(self, text: Text, *, special: bool = False, add_ends: bool = False) -> List[int]:
        return self.tokenizer.encode(text, special=special, add_ends=add_ends)

    def detokenize(self, ids: Iterable[int], *, special: bool = False) -> str:
        return self.tokenizer.decode(ids, special=special)

    # --- numbers ---

    def logits(
        self,
        prompt: Prompt,
        *,
        all_rows: bool = False,
        hidden: bool = False,
        mtp: bool = False,
        adapter: int = 0,
        chunk: int = 0,
        last_rows: int = 0,
        progress: Optional[Progress] = None,
    ) -> Logits:
        """Logits after the last token, the last ones or every one, without a session."""
        engine = self._use()
        ids = self._ids(prompt)
        stop = StopFlag()
        opts = new("qn_logits_opts", progress=progress_callback(stop, progress))
        switches = {"all_rows": all_rows, "hidden": hidden, "mtp": mtp}
        numbers = {"adapter": adapter, "chunk": chunk, "last_rows": last_rows}
        set_fields(opts, {**switches, **numbers})
        kept = Resource(new("qn_logits"), lambda struct: lib.qn_logits_deinit(ctypes.byref(struct)))
        out = kept.pointer

        def work() -> None:
            call(lib.qn_engine_logits, ctypes.byref(out), engine.pointer, ids, len(ids), opts)

        run(work, stop.set)
        return Logits(
            view_at(out.logits, (out.n_rows, out.n_vocab), kept),
            view_at(out.hidden, (out.n_hidden, out.n_tokens, out.width), kept),
            view_at(out.mtp, (out.n_mtp, out.n_vocab), kept),
        )

    def embed(
        self,
        texts: Union[Text, Sequence[Prompt]],
        *,
        pooling: str = "auto",
        normalize: bool = False,
        chunk: int = 0,
        progress: Optional[Progress] = None,
    ) -> Array:
        """Embeddings of texts or lists of token ids: (n, width); of one text: (width)."""
        is_one = isinstance(texts, (str, bytes))
        engine = self._use()
        if not isinstance(texts, Iterable):
            raise TypeError(f"texts must be a text or a list, not {type(texts).__name__}")
        many: Any = [texts] if is_one else texts
        prompts = _prompts([self._ids(prompt) for prompt in many])
        stop = StopFlag()
        opts = new("qn_embed_opts", stop=stop.pointer, progress=progress_callback(stop, progress))
        values = {"pooling": choice("pooling", pooling, "qn_pooling")}
        set_fields(opts, {**values, "normalize": normalize, "chunk": chunk})
        kept = Resource(
            new("qn_embeddings"), lambda made: lib.qn_embeddings_deinit(ctypes.byref(made))
        )
        out = kept.pointer

        def work() -> None:
            call(
                lib.qn_engine_embed, ctypes.byref(out), engine.pointer, prompts, len(prompts), opts
            )

        run(work, stop.set)
        return view_at(out.rows, (out.width,) if is_one else (out.n, out.width), kept)

    def _ids(self, prompt: Prompt) -> Any:
        return prompt_ids(self._tokenizer_or_none(), prompt)

    # --- answers ---

    def session(self, **options: Any) -> Session:
        """A sequence of tokens with its state; options as Session has them."""
        return Session(self, **options)

    def chat(self, system: Optional[str] = None, **options: Any) -> Chat:
        """A conversation; options as Chat has them."""
        return Chat(self, system, **options)

    def batch(self, **options: Any) -> Batch:
        """Many answers computed together; options as Batch has them."""
        return Batch(self, **options)

    def grammar(self, **options: Any) -> Grammar:
        """What an answer may look like: schema=..., regex=..., gbnf=..., or json=True."""
        return Grammar(self.tokenizer, **options)

    def generate(self, prompt: Prompt, options: Optional[Options] = None, **changes: Any) -> Result:
        """The answer to a prompt, in a session of its own."""
        with self.session() as session:
            return session.generate(prompt, options, **changes)


def _prompts(all_ids: Sequence[Any]) -> Any:
    made = (header.types["qn_prompt"] * len(all_ids))()
    for prompt, ids in zip(made, all_ids):
        prompt.ids, prompt.n = ids, len(ids)
    made.kept = all_ids
    return made


def _files(files: Mapping[str, Bytes]) -> Any:
    made = (header.types["qn_model_file"] * len(files))()
    made.kept = []
    for file, (name, data) in zip(made, files.items()):
        texts = chars(c_text("the name of a file", name))
        try:
            shown = memoryview(data).cast("B")
        except TypeError:
            kind = type(data).__name__
            raise TypeError(f"the file {name} must be bytes, not {kind}") from None
        if shown.readonly:
            kept: Any = ctypes.c_char_p(data if isinstance(data, bytes) else bytes(shown))
            address = ctypes.c_void_p.from_buffer(kept).value
        else:
            kept = (ctypes.c_char * len(shown)).from_buffer(shown)
            address = ctypes.addressof(kept)
        file.name, file.data, file.size = texts, address, len(shown)
        made.kept.append((texts, kept))
    return made


def _adapters(adapters: Sequence[Adapter]) -> Any:
    made = (header.types["qn_adapter"] * len(adapters))()
    kept = []
    for adapter, given in zip(made, adapters):
        path, *rest = given if isinstance(given, tuple) else (given,)
        scale, number = (*rest, *(1, 0)[len(rest) :])[:2]
        kept.append(chars(path_bytes("the path of an adapter", path)))
        adapter.path = kept[-1]
        adapter.scale = real("the scale of an adapter", scale, ctypes.c_float)
        adapter.set = integer("the set of an adapter", number, ctypes.c_int64)
    made.kept = kept
    return made
