"""What is told of an answer while it comes, and when it is there."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

from ._errors import BY_KIND, QuernError
from ._library import lib, read_text
from ._values import list_of


@dataclass(frozen=True)
class Event:
    """One token of an answer, or its end. The texts of all events together are its text."""

    text: str  # what can be shown now; may lag behind the tokens
    token: Optional[int] = None  # None: the answer has ended, for `reason`
    position: int = 0
    row: int = 0
    logprob: Optional[float] = None
    top: List[Tuple[int, float]] = field(default_factory=list)
    is_prompt: bool = False
    is_drafted: bool = False
    reason: Optional[str] = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Result:
    """An answer."""

    text: str
    tokens: List[int]
    reason: str  # "end", "stop", "length", "caller", "stopped", "deadline" or "failed"
    stop_token: Optional[int] = None
    stop: Optional[int] = None  # number of the stop string that ended it
    n_prompt: int = 0
    n_reused: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_steps: int = 0
    n_shifts: int = 0
    n_preemptions: int = 0
    error: Optional[QuernError] = None  # of a row that failed

    def __str__(self) -> str:
        return self.text


_COUNTS = (
    "n_prompt",
    "n_reused",
    "n_drafted",
    "n_accepted",
    "n_steps",
    "n_shifts",
    "n_preemptions",
)


def reason_name(reason: int) -> str:
    return read_text(lib.qn_reason_name(reason))


def read_event(struct: Any, logprobs: bool = False) -> Event:
    return Event(
        text=read_text(struct.text, struct.text_size),
        token=struct.token if struct.token >= 0 else None,
        position=struct.position,
        row=struct.row,
        logprob=struct.logprob if logprobs and struct.token >= 0 else None,
        top=[(item.token, item.logprob) for item in list_of(struct.top, struct.n_top)],
        is_prompt=struct.is_prompt,
        is_drafted=struct.is_drafted,
        reason=reason_name(struct.reason) if struct.reason else None,
    )


def read_result(struct: Any) -> Result:
    counts: Dict[str, int] = {name: getattr(struct, name) for name in _COUNTS}
    error = None
    if struct.status:
        kind = read_text(lib.qn_status_name(struct.status))
        error = BY_KIND.get(kind, QuernError)(read_text(struct.message))
    return Result(
        text=read_text(struct.text, struct.text_size),
        tokens=list_of(struct.tokens, struct.n_tokens),
        reason=reason_name(struct.reason),
        stop_token=struct.stop_token if struct.stop_token >= 0 else None,
        stop=struct.stop if struct.stop >= 0 else None,
        error=error,
        **counts,
    )
