"""One sequence of tokens, its state, and answers that go on from it."""

import ctypes
import threading
from contextlib import nullcontext
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)

from ._answers import Event, Result, read_event, read_result
from ._errors import StateError
from ._library import call, callback, header, lib, new, take_bytes
from ._objects import Guard, Handle, Resource, StopFlag, engine_of, make, progress_callback, run
from ._options import Options, Sampling, as_sampling, options_of
from ._stream import Stream
from ._tokenizer import Prompt, prompt_ids
from ._values import Array, copy_at, integer, list_of, new_floats, set_fields, token_ids, view_at

if TYPE_CHECKING:
    from ._model import Model

T = TypeVar("T")


class _Family:
    """What a session and all that shares its state have in common."""

    def __init__(self, calls_back: bool, progress: Optional[Callable[[int, int], Any]]) -> None:
        self.guard = Guard("session")
        self.stop = StopFlag()
        self.calls_back = calls_back or progress is not None
        self.progress = progress and progress_callback(self.stop, progress)

    def resource(
        self, needs: Sequence[Resource], kind: str, destroy: Any, create: Any, *arguments: Any
    ) -> Resource:
        """A member; the first that it needs is the engine."""
        needs = (*needs, self.stop.resource)
        return make(kind, create, destroy, *arguments, needs=needs, keeps=self, guard=self.guard)

    def run(self, work: Callable[[], T], is_short: bool = False) -> T:
        """A call of one thread at a time. One that may take long can be stopped by Ctrl-C."""
        turn = Turn(self)
        if is_short and not self.calls_back:
            return turn.run(work)
        return run(lambda: turn.run(work), turn.stop)


class Turn:
    """One call with a family. It can be stopped before it begins, while it lasts, and when it is
    over, and stops no other call."""

    def __init__(self, family: _Family) -> None:
        self._family = family
        self._lock = threading.RLock()  # a collector may stop it on the thread that it is on
        self._is_wanted = self._is_inside = False

    def stop(self) -> None:
        with self._lock:
            self._is_wanted = True
            if self._is_inside:
                self._family.stop.set()

    def run(self, work: Callable[[], T]) -> T:
        with self._family.guard.held():
            with self._lock:
                self._is_inside = True
                self._family.stop.clear()
                if self._is_wanted:
                    self._family.stop.set()
            try:
                return work()
            finally:
                with self._lock:
                    self._is_inside = False


class Session(Handle):
    """A sequence of tokens: the prompt and what followed. Made by `model.session()`. One thread at
    a time uses a session and its forks; a second one gets a StateError."""

    _what = "session"

    def __init__(
        self,
        model: "Model",
        *,
        context: int = 0,
        chunk: int = 0,
        kept: int = 0,
        sessions: int = 0,
        adapter: int = 0,
        shrink: bool = False,
        logits: bool = False,
        hidden: bool = False,
        progress: Optional[Callable[[int, int], Any]] = None,
    ) -> None:
        engine = engine_of(model)
        family = _Family(model._calls_back, progress)
        opts = new("qn_session_opts", stop=family.stop.pointer)
        numbers = {"context": context, "chunk": chunk, "kept": kept, "sessions": sessions}
        switches = {"shrink": shrink, "logits": logits, "hidden": bool(hidden), "adapter": adapter}
        set_fields(opts, {**numbers, **switches})
        if family.progress:
            opts.progress = family.progress
        self._family = family
        self._tokenizer = model._tokenizer_or_none()
        self._n_vocab = model.n_vocab
        kind = ("qn_session", lib.qn_session_destroy, lib.qn_session_create)
        self._resource = run(
            lambda: family.resource((engine,), *kind, engine.pointer, opts), family.stop.set
        )

    def close(self) -> None:
        super().close()
        self._tokenizer = None  # which holds the model

    def _sibling(self, resource: Resource) -> "Session":
        made = Session.__new__(Session)
        made._family, made._n_vocab = self._family, self._n_vocab
        made._tokenizer = self._tokenizer
        made._resource = resource
        return made

    def _ids(self, prompt: Prompt) -> Any:
        self._use()
        return prompt_ids(self._tokenizer, prompt)

    def _call(self, function: Any, *arguments: Any, is_short: bool = False) -> None:
        session = self._use()
        self._family.run(lambda: call(function, session.pointer, *arguments), is_short)

    # --- what it holds ---

    @property
    def context(self) -> int:
        """Max tokens that it holds."""
        return int(lib.qn_session_context(self._use().pointer))

    @property
    def tokens(self) -> List[int]:
        """Prompt and generated tokens."""
        session = self._use()
        n = ctypes.c_size_t()
        with self._family.guard.held():
            pointer = lib.qn_session_tokens(session.pointer, ctypes.byref(n))
            return list_of(pointer, n.value)

    @property
    def n_cached(self) -> int:
        """Tokens whose KV cache and state are computed."""
        session = self._use()
        with self._family.guard.held():
            return int(lib.qn_session_cached(session.pointer))

    @property
    def logits(self) -> Optional[Array]:
        """The logits that the last prefill or feed left (after steps: of a session that was made
        with logits=True), or None."""
        session = self._use()
        with self._family.guard.held():
            pointer = lib.qn_session_logits(session.pointer)
            return copy_at(pointer, self._n_vocab) if pointer else None

    @property
    def counts(self) -> Dict[str, int]:
        """What it did so far: steps, rows, reused tokens, plans, evictions."""
        session = self._use()
        counts = new("qn_session_counts")
        with self._family.guard.held():
            call(lib.qn_session_get_counts, ctypes.byref(counts), session.pointer)
        return {name: getattr(counts, name) for name, _ in counts._fields_[1:]}

    # --- tokens in, logits out ---

    def set_prompt(self, prompt: Prompt) -> None:
        """Replaces all tokens; computes nothing."""
        ids = self._ids(prompt)
        self._call(lib.qn_session_set_prompt, ids, len(ids), is_short=True)

    def mark(self, n: int) -> None:
        """A later prompt will probably begin with the first n tokens of this one."""
        self._call(lib.qn_session_mark, integer("n", n, ctypes.c_size_t), is_short=True)

    def set_adapter(self, adapter: int) -> None:
        """Uses another set of adapters from now on: 0 the first, -1 none."""
        number = integer("adapter", adapter, ctypes.c_int64)
        self._call(lib.qn_session_set_adapter, number, is_short=True)

    def prefill(self, prompt: Optional[Prompt] = None) -> Array:
        """Replaces all tokens, computes them, and gives the logits after the last (n_vocab).
        Without a prompt, those of the tokens that are there."""
        ids = None if prompt is None else self._ids(prompt)
        return self._row(lib.qn_session_prefill, ids, len(ids) if ids else 0)

    def feed(self, token: int) -> Array:
        """Appends a token and gives the logits after it. Everything before it must be computed."""
        return self._row(
            lib.qn_session_feed, integer("token", token, ctypes.c_int32), is_short=True
        )

    def predict(self, token: int) -> Array:
        """The logits of the token after `token`, if it came next, by the prediction head."""
        return self._row(
            lib.qn_session_predict, integer("token", token, ctypes.c_int32), is_short=True
        )

    def _row(self, function: Any, *arguments: Any, is_short: bool = False) -> Array:
        session = self._use()
        row = ctypes.POINTER(ctypes.c_float)()

        def work() -> Array:
            call(function, ctypes.byref(row), session.pointer, *arguments)
            return copy_at(row, self._n_vocab)  # it is borrowed until the next call

        return self._family.run(work, is_short)

    def feed_all(self, ids: Iterable[int]) -> Array:
        """Appends tokens and gives the logits after each of them (n, n_vocab)."""
        session = self._use()
        made = token_ids(ids)
        logits = Resource(
            new("qn_logits"), lambda struct: lib.qn_logits_deinit(ctypes.byref(struct))
        )

        def work() -> None:
            out = ctypes.byref(logits.pointer)
            call(lib.qn_session_feed_all, out, session.pointer, made, len(made))

        self._family.run(work)
        out = logits.pointer
        return view_at(out.logits, (out.n_rows, out.n_vocab), logits)

    def commit(self, ids: Iterable[int]) -> None:
        """Appends tokens and computes them, without logits."""
        made = token_ids(ids)
        self._call(lib.qn_session_commit, made, len(made))

    def step(self, sampling: Union[Sampling, Mapping[str, Any], None] = None) -> int:
        """Computes what is not computed yet, chooses a token and appends it."""
        session = self._use()
        token = ctypes.c_int32()
        opts = None if sampling is None else as_sampling(sampling)._struct()

        def work() -> int:
            call(lib.qn_session_step, ctypes.byref(token), session.pointer, opts)
            return token.value

        return self._family.run(work)

    # --- going back ---

    def truncate(self, n: int) -> None:
        """Forgets the tokens from the n-th on."""
        self._call(lib.qn_session_truncate, integer("n", n, ctypes.c_size_t), is_short=True)

    def fork(self) -> "Session":
        """Another session with the same tokens and state, which it shares in memory."""
        session = self._use()
        kind = ("qn_session", lib.qn_session_destroy, lib.qn_session_fork)
        return self._sibling(self._shared(session, session.needs[:1], kind))

    def snapshot(self) -> "Snapshot":
        """Tokens and state at this moment, for restore()."""
        session = self._use()
        kind = ("qn_snapshot", lib.qn_snapshot_destroy, lib.qn_session_checkpoint)
        return Snapshot(self._shared(session, [session.needs[0], session], kind), self._family)

    def _shared(self, session: Resource, needs: Sequence[Resource], kind: Any) -> Resource:
        def work() -> Resource:
            return self._family.resource(needs, *kind, session.pointer)

        return self._family.run(work, is_short=True)

    def restore(self, snapshot: "Snapshot") -> None:
        """Puts a snapshot back, which was taken of it or of a fork. May be done many times."""
        if not isinstance(snapshot, Snapshot):
            raise TypeError(f"snapshot must be a Snapshot, not {type(snapshot).__name__}")
        if snapshot._family is not self._family:
            raise StateError(
                "the snapshot is of another session, which shares no state with this one"
            )
        kept = snapshot._use()
        self._call(lib.qn_session_restore, kept.pointer, is_short=True)

    def save(self) -> bytes:
        """The whole session as bytes, for load() on whatever machine (docs/state.md)."""
        session = self._use()
        return self._family.run(lambda: take_bytes(lib.qn_session_save_bytes, session.pointer))

    def load(self, data: bytes) -> None:
        """Replaces what it has by what was saved. After an error it is as before."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")
        kept = bytes(data)
        self._call(lib.qn_session_load_bytes, kept, len(kept))

    # --- looking into it ---

    def layer_info(self, layer: int) -> Dict[str, int]:
        """What a layer keeps: n_heads, key_size, value_size, first, n_states."""
        session = self._use()
        info = new("qn_layer_info")
        number = integer("layer", layer, ctypes.c_int64)
        with self._family.guard.held():
            call(lib.qn_session_layer_info, ctypes.byref(info), session.pointer, number)
        return {name: getattr(info, name) for name, _ in info._fields_[1:]}

    def read_kv(self, layer: int, head: int, first: int, n: int) -> Tuple[Array, Array]:
        """Keys (n, key_size), after rope, and values (n, value_size) of positions first ... first +
        n - 1, as the KV cache holds them."""
        info = self.layer_info(layer)
        count = _count("n", n, self.n_cached)
        keys, shown_keys = new_floats((count, info["key_size"]))
        values, shown_values = new_floats((count, info["value_size"]))
        session = self._use()
        where = (
            layer,
            integer("head", head, ctypes.c_int64),
            integer("first", first, ctypes.c_int64),
        )

        def work() -> None:
            call(lib.qn_session_read_kv, keys, values, session.pointer, *where, count)

        self._family.run(work)
        return shown_keys, shown_values

    def read_hidden(self, i: int) -> Array:
        """Row i of the residual stream (0 is the embedding, i what layer i gave, the last comes
        after the final norm) at all positions of the last step: (n_rows, width). For sessions that
        were made with hidden=True."""
        session = self._use()
        info = new("qn_hidden_info")
        number = integer("i", i, ctypes.c_int64)

        def work() -> Array:
            call(lib.qn_session_hidden_info, ctypes.byref(info), session.pointer)
            to, shown = new_floats((info.n_rows, info.width))
            where = (number, info.first, info.n_rows)
            call(lib.qn_session_read_hidden, to, session.pointer, *where)
            return shown

        return self._family.run(work)

    # --- answers ---

    def generate(
        self, prompt: Optional[Prompt] = None, options: Optional[Options] = None, **changes: Any
    ) -> Result:
        """The answer to a prompt, or to the tokens that are there. Fields of Options and of
        Sampling can be given by name: generate("Once", max_tokens=20, temperature=0.7)."""
        answer = self._answer(prompt, options, changes)
        return self._family.run(lambda: answer(None))

    def stream(
        self, prompt: Optional[Prompt] = None, options: Optional[Options] = None, **changes: Any
    ) -> "Stream[Event, Result]":
        """The same while it comes."""
        answer = self._answer(prompt, options, changes)
        turn = Turn(self._family)
        return Stream(lambda put: turn.run(lambda: answer(put)), turn.stop)

    def _answer(
        self, prompt: Optional[Prompt], options: Optional[Options], changes: Mapping[str, Any]
    ) -> Callable[[Optional[Callable[[Event], bool]]], Result]:
        """What makes an answer, with everything checked that can be checked before."""
        session = self._use()
        made = options_of(Options, options, changes)
        opts = made._struct(self._family.stop)
        ids = None if prompt is None else self._ids(prompt)
        draft = draft_guard(made, self._family)

        def answer(put: Optional[Callable[[Event], bool]]) -> Result:
            with draft:
                if ids is not None:
                    call(lib.qn_session_set_prompt, session.pointer, ids, len(ids))
                fn = event_callback(put, made.logprobs or made.prompt_logprobs)
                return read_answer(lib.qn_generate, session.pointer, opts, fn, None)

        return answer


def draft_guard(options: Options, family: _Family) -> ContextManager[None]:
    """Nobody else may use the draft of an answer meanwhile."""
    if options.draft is None:
        return nullcontext()
    if options.draft._family is family:
        raise StateError("the draft shares the state of this session, and must be one of its own")
    return options.draft._family.guard.held()


def _count(what: str, value: Any, limit: int) -> int:
    number = integer(what, value, ctypes.c_int64)
    if not 0 <= number <= limit:
        raise StateError(f"{what} is {number}, and {limit} tokens are computed")
    return number


def event_callback(put: Optional[Callable[[Event], bool]], logprobs: bool) -> Any:
    if put is None:
        return header.types["qn_event_fn"]()
    tell = put

    @callback("qn_event_fn", failed=False)
    def told(_: Any, event: Any) -> bool:
        return tell(read_event(event.contents, logprobs))

    return told


def read_answer(function: Any, *arguments: Any) -> Result:
    """A call whose first parameter is the result that it fills."""
    result = new("qn_result")
    try:
        call(function, ctypes.byref(result), *arguments)
        return read_result(result)
    finally:
        lib.qn_result_deinit(ctypes.byref(result))


class Snapshot(Handle):
    """A session at one moment."""

    _what = "snapshot"

    def __init__(self, resource: Resource, family: _Family) -> None:
        self._resource = resource
        self._family = family
