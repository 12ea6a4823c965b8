"""How tokens are chosen and when an answer ends: as programs write it, and as structs."""

import ctypes
import dataclasses
import difflib
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
)

from ._errors import StateError
from ._library import call, callback, constant, lib, new
from ._objects import Resource, StopFlag
from ._values import (
    Array,
    Text,
    char_lists,
    integer,
    list_of,
    new_floats,
    real,
    set_fields,
    token_ids,
)

if TYPE_CHECKING:
    from ._grammar import Grammar
    from ._session import Session


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen (docs/sampling.md). All zero is greedy: the best token; zero of a field
    is its default, mostly "off"."""

    temperature: float = 0
    seed: int = 0
    completion: int = 0
    top_k: int = 0
    top_p: float = 0
    min_p: float = 0
    typical_p: float = 0
    top_n_sigma: float = 0
    xtc_probability: float = 0
    xtc_threshold: float = 0
    dynatemp_range: float = 0
    dynatemp_exponent: float = 0
    repeat_penalty: float = 0
    frequency_penalty: float = 0
    presence_penalty: float = 0
    repeat_last_n: int = 0  # 0: 64; -1: all; -2: none
    dry_multiplier: float = 0
    dry_base: float = 0
    dry_allowed_length: int = 0
    dry_last_n: int = 0  # 0 and -1: all; -2: none
    mirostat: int = 0
    mirostat_tau: float = 0
    mirostat_eta: float = 0
    order: Optional[str] = None
    dry_breakers: Optional[Sequence[Text]] = None
    biases: Optional[Mapping[int, float]] = None
    bans: Optional[Sequence[Text]] = None
    repeat_each: bool = False

    def _struct(self) -> Any:
        made = new("qn_sample_opts")
        set_fields(made, {name: getattr(self, name) for name in _SAMPLING_FIELDS})
        if self.dry_breakers is not None:
            made.dry_breakers = char_lists("dry_breakers", self.dry_breakers)
            made.n_dry_breakers = len(self.dry_breakers)
        if self.bans is not None:
            made.bans = char_lists("bans", self.bans)
            made.n_bans = len(self.bans)
        if self.biases is not None:
            made.biases = _biases(self.biases)
            made.n_biases = len(self.biases)
        made.flags = constant("QN_SAMPLE_REPEAT_EACH") if self.repeat_each else 0
        return made


_SAMPLING_LISTS = ("dry_breakers", "biases", "bans", "repeat_each")
_SAMPLING_FIELDS = [f.name for f in dataclasses.fields(Sampling) if f.name not in _SAMPLING_LISTS]


def _biases(biases: Mapping[int, float]) -> Any:
    if not isinstance(biases, Mapping):
        raise TypeError(f"biases must map token ids to numbers, not {type(biases).__name__}")
    made = [
        new(
            "qn_bias",
            token=integer("a token of biases", token, ctypes.c_int32),
            bias=real(f"biases[{token}]", bias, ctypes.c_float),
        )
        for token, bias in biases.items()
    ]
    return (type(new("qn_bias")) * len(made))(*made)


def sampling_defaults(engine: Resource) -> Sampling:
    """The settings that come with a model."""
    struct = new("qn_sample_opts")
    call(lib.qn_engine_sample_defaults, ctypes.byref(struct), engine.pointer)
    fields: Dict[str, Any] = {name: getattr(struct, name) for name in _SAMPLING_FIELDS}
    order = fields.pop("order")
    return Sampling(
        order=ctypes.string_at(order).decode() if order else None,
        dry_breakers=_texts(struct.dry_breakers, struct.n_dry_breakers),
        bans=_texts(struct.bans, struct.n_bans),
        biases={b.token: b.bias for b in list_of(struct.biases, struct.n_biases)} or None,
        repeat_each=bool(struct.flags & constant("QN_SAMPLE_REPEAT_EACH")),
        **fields,
    )


def _texts(pointer: Any, n: int) -> Optional[List[str]]:
    return [ctypes.string_at(p).decode("utf-8", "replace") for p in list_of(pointer, n)] or None


class NextLogits:
    """What the next token will be chosen by. `logits` may be changed: to numbers, or to -inf for
    tokens that must not be chosen."""

    def __init__(self, logits: Array, struct: Any) -> None:
        self.logits = logits
        self.row: int = struct.row  # number of the completion
        self.n_prompt: int = struct.n_prompt
        self._struct: Any = struct

    @property
    def tokens(self) -> List[int]:
        """Prompt and answer so far; there while the hook runs."""
        if self._struct is None:
            raise StateError("the tokens before a choice are there while it is made, not later")
        return list_of(self._struct.tokens, self._struct.n_tokens)

    def _ends(self) -> None:
        self._struct = None


O = TypeVar("O", bound="Options")
LogitsHook = Callable[[NextLogits], Any]
DraftHook = Callable[[List[int], int], Sequence[int]]


@dataclass(frozen=True)
class Options:
    """How an answer is generated (docs/generation.md)."""

    max_tokens: int = 0  # 0: as many as the context holds; -1: none
    min_tokens: int = 0
    ignore_end: bool = False
    stops: Sequence[Text] = ()
    stop_tokens: Sequence[int] = ()
    grammar: "Optional[Grammar]" = None
    sampling: Union[Sampling, Mapping[str, Any], None] = None
    logprobs: bool = False
    n_top: int = 0
    prompt_logprobs: bool = False
    draft: "Optional[Session]" = None
    lookup: bool = False
    mtp: bool = False
    mtp_fast: bool = False
    draft_max: int = 0
    draft_min: int = 0
    shift: bool = False
    keep: int = 0
    show_end: bool = False
    # Called before each choice, with the logits that it may change; False ends the answer.
    logits_hook: Optional[LogitsHook] = None
    # Called with the tokens so far and a number: up to as many tokens that may follow.
    draft_hook: Optional[DraftHook] = None

    def _struct(self, stop: StopFlag) -> Any:
        """It keeps what it points to; `needs` are the grammar and the draft, which it borrows."""
        made = new("qn_generate_opts", stop=stop.pointer)
        set_fields(made, {name: getattr(self, name) for name in _PLAIN_FIELDS})
        stops = char_lists("stops", self.stops)
        tokens = token_ids(self.stop_tokens, "stop_tokens")
        made.stops, made.n_stops = stops, len(stops)
        made.stop_tokens, made.n_stop_tokens = tokens, len(tokens)
        made.flags = constant("QN_GENERATE_SHOW_END") if self.show_end else 0
        if self.sampling is not None:
            made.sample = ctypes.pointer(as_sampling(self.sampling)._struct())
        made.needs, made.keeps = [], [stops, tokens]
        for name, handle in (("grammar", self.grammar), ("draft", self.draft)):
            if handle is not None:
                made.needs.append(_resource(name, handle))
                setattr(made, name, made.needs[-1].pointer)
        hooks: Sequence[Tuple[str, Any, Any]] = (
            ("logits", self.logits_hook, _logits_callback),
            ("draft", self.draft_hook, _draft_callback),
        )
        for name, hook, wrap in hooks:
            if hook is not None:
                made.keeps.append(wrap(_function(f"{name}_hook", hook)))
                setattr(made, f"{name}_fn", made.keeps[-1])
        return made


_SPECIAL_FIELDS = (
    "stops",
    "stop_tokens",
    "grammar",
    "sampling",
    "draft",
    "show_end",
    "logits_hook",
    "draft_hook",
)
_PLAIN_FIELDS = [f.name for f in dataclasses.fields(Options) if f.name not in _SPECIAL_FIELDS]
_OF_SAMPLING = [f.name for f in dataclasses.fields(Sampling)]


@dataclass(frozen=True)
class ChatOptions(Options):
    """How an answer in a conversation is generated (docs/chat.md)."""

    reasoning: str = "auto"  # "on", "off": whether the template shall ask for it
    tool_choice: str = "free"  # "auto", "none", "required": what an answer may do with the tools
    tool_name: Optional[str] = None  # of "required": the one tool
    one_call: bool = False
    lenient_schemas: bool = False
    leave_out: bool = False  # the oldest turns, where the context is full
    template_options: Optional[Mapping[str, Any]] = None  # further names for the template
    now: Optional[str] = None  # "2026-01-02T03:04:05", for the template; None: the local time


def _resource(name: str, handle: Any) -> Any:
    """The resource behind a grammar or a draft, which must be one."""
    from ._grammar import Grammar
    from ._session import Session

    wanted: Any = {"grammar": Grammar, "draft": Session}[name]
    if not isinstance(handle, wanted):
        raise TypeError(f"{name} must be a {wanted.__name__}, not {type(handle).__name__}")
    return handle._use()


def as_sampling(value: Union[Sampling, Mapping[str, Any]]) -> Sampling:
    if isinstance(value, Sampling):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"sampling must be a Sampling or a dict, not {type(value).__name__}")
    _check_names(value, _OF_SAMPLING)
    return Sampling(**value)


def _check_names(given: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"there is no option {name!r}{hint}")


def options_of(
    kind: Type[O],
    options: Optional[Options],
    changes: Mapping[str, Any],
    default: Callable[[], Sampling] = Sampling,
) -> O:
    """Options with changes by keywords, among them those of sampling: temperature=0.7."""
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"options must be Options, not {type(options).__name__}")
    known = [f.name for f in dataclasses.fields(kind)]
    given = (
        {}
        if options is None
        else {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    )
    finer = {name: value for name, value in changes.items() if name in _OF_SAMPLING}
    given.update((name, value) for name, value in changes.items() if name not in finer)
    _check_names(given, known + _OF_SAMPLING)
    made = kind(**given)
    if not finer:
        return made
    base = default() if made.sampling is None else as_sampling(made.sampling)
    return dataclasses.replace(made, sampling=dataclasses.replace(base, **finer))


# --- hooks ---


def _function(name: str, hook: Any) -> Any:
    if not callable(hook):
        raise TypeError(f"{name} must be a function, not {type(hook).__name__}")
    return hook


def _logits_callback(hook: LogitsHook) -> Any:
    """The hook sees a copy, which may live on; what it made of it goes back."""
    rows: List[Any] = []

    @callback("qn_logits_fn", failed=False)
    def choose(_: Any, pointer: Any) -> bool:
        struct = pointer.contents
        if not rows:
            rows.extend(new_floats((struct.n_vocab,)))
        size = ctypes.sizeof(rows[0])
        ctypes.memmove(rows[0], struct.logits, size)
        told = NextLogits(rows[1], struct)
        try:
            goes_on = hook(told) is not False
        finally:
            told._ends()
        ctypes.memmove(struct.logits, rows[0], size)
        return goes_on

    return choose


def _draft_callback(hook: DraftHook) -> Any:
    @callback("qn_draft_fn", failed=0)
    def draft(_: Any, to: Any, limit: int, tokens: Any, n: int) -> int:
        ids = token_ids(hook(list_of(tokens, n), limit), "a draft")
        for i, token in enumerate(ids[:limit]):
            to[i] = token
        return min(len(ids), limit)

    return draft
