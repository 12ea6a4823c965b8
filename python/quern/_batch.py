"""Many answers computed together: rows come and go at any time."""

import ctypes
import dataclasses
import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from ._answers import Event, Result, read_event, read_result
from ._errors import ArgumentError, StateError
from ._library import call, callback, constant, lib, new
from ._objects import Guard, Handle, Resource, StopFlag, engine_of, make, run
from ._options import LogitsHook, NextLogits, Options, options_of
from ._tokenizer import Prompt, prompt_ids
from ._values import integer, real, set_fields

if TYPE_CHECKING:
    from ._model import Model

EventHook = Callable[[Event], Any]


class Row:
    """An answer in a batch, or several of one prompt."""

    def __init__(self, n: int, on_event: Optional[EventHook], logprobs: bool) -> None:
        self._first = ctypes.c_uint64()  # as the library numbers them, one for each answer
        self._batch: Optional["weakref.ref[Batch]"] = None
        self._on_event = on_event
        self._logprobs = logprobs
        self._texts: List[List[str]] = [[] for _ in range(n)]
        self._tokens: List[List[int]] = [[] for _ in range(n)]
        self._results: List[Optional[Result]] = [None] * n
        self._borrowed: Any = None  # by the library, while the row lives

    @property
    def done(self) -> bool:
        return None not in self._results

    @property
    def text(self) -> str:
        """What there is of the first answer."""
        return "".join(self._texts[0])

    @property
    def result(self) -> Result:
        """The first answer, once all have ended."""
        return self.results[0]

    @property
    def results(self) -> List[Result]:
        made = [result for result in self._results if result is not None]
        if len(made) < len(self._results):
            raise StateError(f"{len(made)} of {len(self._results)} answers of this row have ended")
        return made

    def remove(self) -> None:
        """Ends the row where it is; one that has ended stays as it is."""
        batch = self._batch() if self._batch else None
        if batch is not None:
            batch._remove(self)

    def _take(self, struct: Any) -> bool:
        event = read_event(struct, self._logprobs)
        i = event.row
        if not event.is_prompt:
            self._texts[i].append(event.text)
            if event.token is not None:
                self._tokens[i].append(event.token)
        if event.reason:
            self._results[i] = read_result(struct.result.contents)
        goes_on = False
        try:
            goes_on = self._on_event is None or self._on_event(event) is not False
        finally:
            if not goes_on:
                self._ends(i)
        return goes_on

    def _ends(self, i: int) -> None:
        """By the caller: the library has nothing more to tell of it."""
        if self._results[i] is None:
            self._results[i] = Result("".join(self._texts[i]), self._tokens[i], "caller")

    def _hook(self, hook: LogitsHook) -> LogitsHook:
        def checked(told: NextLogits) -> bool:
            goes_on = False
            try:
                goes_on = hook(told) is not False
            finally:
                if not goes_on:
                    self._ends(told.row)
            return goes_on

        return checked


class _Rows:
    """The rows of a batch by the numbers that their callbacks are given."""

    def __init__(self) -> None:
        self.rows: Dict[int, Row] = {}
        self.numbers = itertools.count(1)
        self.guard = Guard("batch")
        self.stop = StopFlag()

        @callback("qn_event_fn", failed=False)
        def told(number: int, event: Any) -> bool:
            row = rows.get(number)
            return row is not None and row._take(event.contents)

        rows = self.rows
        self.callback = told

    def add(self, batch: Resource, row: Row, generate: Any) -> int:
        """The number of a new row. What it borrows outlives it, and the batch."""
        number = next(self.numbers)
        row._borrowed = generate
        for need in generate.needs:
            batch.hold(need)
        self.rows[number] = row
        return number

    def remove(self, batch: Resource, number: int) -> None:
        row = self.rows.pop(number, None)
        if row is not None:
            for need in row._borrowed.needs:
                batch.let_go(need)
            row._borrowed = None

    def sweep(self, batch: Resource) -> None:
        """Removes rows that have ended. Not from a callback, which may be theirs."""
        for number, row in list(self.rows.items()):
            if row.done:
                self.remove(batch, number)


class Batch(Handle):
    """Continuous batching, made by `model.batch()`: each row gets exactly what it would get alone.
    One thread steps; any thread adds and removes rows."""

    _what = "batch"

    def __init__(
        self,
        model: "Model",
        *,
        context: int = 0,
        chunk: int = 0,
        prompt_rows: int = 0,
        rows: int = 0,
        bytes: int = 0,
        kept: int = 0,
    ) -> None:
        engine = engine_of(model)
        made = _Rows()
        opts = new("qn_batch_opts", stop=made.stop.pointer)
        numbers = {"context": context, "chunk": chunk, "prompt_rows": prompt_rows, "rows": rows}
        set_fields(opts, {**numbers, "bytes": bytes, "kept": kept})
        self._tokenizer = model._tokenizer_or_none()
        self._rows = made
        arguments = (engine.pointer, opts)
        self._resource = make(
            "qn_batch",
            lib.qn_batch_create,
            lib.qn_batch_destroy,
            *arguments,
            needs=(engine, made.stop.resource),
            keeps=made,
        )

    def close(self) -> None:
        super().close()
        self._tokenizer = None  # which holds the model

    def add(
        self,
        prompt: Prompt,
        options: Optional[Options] = None,
        *,
        completions: int = 1,
        deadline_ms: int = 0,
        mark: int = 0,
        adapter: int = 0,
        uncached: bool = False,
        on_event: Optional[EventHook] = None,
        **changes: Any,
    ) -> Row:
        """A row for a prompt. `on_event` is called on the thread that steps; where it returns False
        or raises, its row ends, and step() raises what it raised."""
        batch, rows = self._use(), self._rows
        n = integer("completions", completions, ctypes.c_uint32)
        if not 1 <= n <= constant("QN_MAX_COMPLETIONS"):
            limit = constant("QN_MAX_COMPLETIONS")
            raise ArgumentError(f"completions is {n}, and must be 1 to {limit}")
        if on_event is not None and not callable(on_event):
            raise TypeError(f"on_event must be a function, not {type(on_event).__name__}")
        made = options_of(Options, options, changes)
        if made.draft is not None:
            raise ArgumentError(
                "a session cannot draft for a batch, whose rows come and go: use lookup or mtp"
            )
        row = Row(n, on_event, made.logprobs or made.prompt_logprobs)
        if made.logits_hook is not None:
            made = dataclasses.replace(made, logits_hook=row._hook(made.logits_hook))
        generate = made._struct(rows.stop)
        opts = new("qn_row_opts", generate=ctypes.pointer(generate))
        numbers = {"completions": n, "deadline_ms": deadline_ms, "mark": mark, "adapter": adapter}
        set_fields(opts, numbers)
        opts.flags = constant("QN_ROW_UNCACHED") if uncached else 0
        ids = prompt_ids(self._tokenizer, prompt)
        row._batch = weakref.ref(self)
        number = rows.add(batch, row, generate)
        try:
            arguments = (batch.pointer, ids, len(ids), opts, rows.callback, number)
            call(lib.qn_batch_add, ctypes.byref(row._first), *arguments)
        except BaseException:
            rows.remove(batch, number)
            raise
        return row

    def _remove(self, row: Row) -> None:
        batch = self._use()
        for i in range(len(row._results)):
            lib.qn_batch_remove(batch.pointer, row._first.value + i)
            row._ends(i)

    def step(self) -> int:
        """Computes the next token of all rows, and how many are left."""
        return run(self._step, lambda: None)

    def _step(self) -> int:
        batch, left = self._use(), ctypes.c_size_t()
        with self._rows.guard.held():
            try:
                call(lib.qn_batch_step, ctypes.byref(left), batch.pointer)
            finally:
                self._rows.sweep(batch)
        return left.value

    def run(self) -> None:
        """Steps until no row is left."""
        is_over = threading.Event()

        def work() -> None:
            while not is_over.is_set() and self._step():
                pass

        run(work, is_over.set)

    def wait(self, timeout: Optional[float] = None) -> bool:
        """For the thread that steps: until there is a row, for at most that many seconds."""
        batch = self._use()
        seconds = -1.0 if timeout is None else real("timeout", timeout, ctypes.c_double)
        ms = -1 if seconds < 0 else int(min(seconds * 1000, 2.0**40))  # that is 30 years
        return run(lambda: bool(lib.qn_batch_wait(batch.pointer, ms)), self.wake)

    def wake(self) -> None:
        """Ends a wait of another thread, or the next one."""
        lib.qn_batch_wake(self._use().pointer)

    @property
    def counts(self) -> Dict[str, int]:
        """The state after the last step, and what it did so far."""
        batch = self._use()
        counts = new("qn_batch_counts")
        call(lib.qn_batch_get_counts, ctypes.byref(counts), batch.pointer)
        return {name: getattr(counts, name) for name, _ in counts._fields_[1:]}
