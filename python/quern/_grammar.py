"""What an answer may look like."""

import json
from typing import Any, Callable, Mapping, Optional, Union

from ._library import callback, constant, lib, new
from ._objects import Handle, StopFlag, make, run
from ._tokenizer import Tokenizer
from ._values import Text, set_fields, text_bytes

# A JSON Schema, as a dict, True, False, or the text of one.
Schema = Union[Mapping[str, Any], bool, Text]


class Grammar(Handle):
    """Exactly one of `schema` (JSON Schema), `regex`, `gbnf`, and `json=True` (any JSON object).
    Threads and answers may share it. What it does not support is refused with its place, or left
    out with `lenient`, which tells `log` of it (docs/structure.md)."""

    _what = "grammar"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        schema: Optional[Schema] = None,
        regex: Optional[Text] = None,
        gbnf: Optional[Text] = None,
        json: bool = False,
        lenient: bool = False,
        closed: bool = False,
        max_steps: int = 0,
        max_token_steps: int = 0,
        log: Optional[Callable[[str], Any]] = None,
    ) -> None:
        if not isinstance(tokenizer, Tokenizer):
            raise TypeError(f"tokenizer must be a Tokenizer, not {type(tokenizer).__name__}")
        kinds = {"SCHEMA": schema, "REGEX": regex, "GBNF": gbnf, "JSON": "" if json else None}
        given = [(kind, text) for kind, text in kinds.items() if text is not None]
        if len(given) != 1:
            raise TypeError(
                f"a grammar is one of schema, regex, gbnf and json, not {len(given)} of them"
            )
        kind, text = given[0]
        data = _schema_bytes(text) if kind == "SCHEMA" else text_bytes(kind.lower(), text)
        owner = tokenizer._use()
        stop = StopFlag()
        opts = new("qn_grammar_opts", stop=stop.pointer)
        numbers = {"max_steps": max_steps, "max_token_steps": max_token_steps}
        set_fields(opts, {"lenient": lenient, "closed": closed, **numbers})
        if log is not None:
            tell = log
            opts.log = log_callback(lambda level, message: tell(message))

        def work() -> Any:
            number = constant(f"QN_GRAMMAR_{kind}")
            arguments = (owner.pointer, number, data, len(data), opts)
            return make(
                "qn_grammar",
                lib.qn_grammar_create,
                lib.qn_grammar_destroy,
                *arguments,
                needs=(owner,),
            )

        self._resource = run(work, stop.set)


def _schema_bytes(schema: Any) -> bytes:
    return (
        schema_text(schema) if isinstance(schema, (Mapping, bool)) else text_bytes("schema", schema)
    )


def schema_text(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode("utf-8")


def log_callback(log: Callable[[str, str], Any]) -> Any:
    levels = ("error", "warning", "info", "debug")

    @callback("qn_log_fn")
    def told(_: Any, level: int, message: bytes) -> None:
        log(levels[level], message.decode("utf-8", "replace"))

    return told
