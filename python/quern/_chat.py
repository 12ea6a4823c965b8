"""Conversations."""

import ctypes
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence

from ._answers import Event, Result, read_event
from ._errors import QuernError
from ._grammar import schema_text
from ._image import Image
from ._library import call, callback, header, lib, new, read_text, take_text
from ._objects import Handle, Resource, StopFlag, engine_of, make
from ._options import ChatOptions, Options, options_of, sampling_defaults
from ._session import Session, Turn, draft_guard, read_answer
from ._stream import Stream
from ._values import Text, c_text, chars, choice, integer, set_fields, text_bytes

if TYPE_CHECKING:
    from ._model import Model

Message = Mapping[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool in an answer."""

    name: str
    arguments: Dict[str, Any]


@dataclass(frozen=True)
class ChatEvent:
    """A chunk of an answer: of its text, its reasoning, or the call of a tool."""

    kind: str  # "text", "reasoning", "call" (of the tool `name`), "arguments" (a chunk of its JSON)
    text: str
    name: Optional[str] = None
    call: int = 0  # number of the call
    token: Optional[Event] = None  # what it came with

    def __str__(self) -> str:
        return self.text if self.kind == "text" else ""


@dataclass(frozen=True)
class Reply:
    """An answer in a conversation."""

    text: str
    reasoning: str
    result: Result
    calls: List[ToolCall] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text


class Chat(Handle):
    """A conversation with a model, made by `model.chat()`. One thread at a time.

    `tools` is a list as servers take it: {"type": "function", "function": {"name", "description",
    "parameters"}}. `template` is the text of a chat template (Jinja2) in place of the model's own.
    Other options are those of its session.
    """

    _what = "chat"

    def __init__(
        self,
        model: "Model",
        system: Optional[str] = None,
        *,
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        template: Optional[Text] = None,
        **session: Any,
    ) -> None:
        self._template: Any = _template(model, template)
        self._tokenizer: Any = model.tokenizer._use()
        self.session = Session(model, **session)
        self._family = self.session._family
        self._resource = make("qn_chat", lib.qn_chat_create, lib.qn_chat_destroy)
        if system is not None:
            self.set_system(system)
        if tools is not None:
            self.set_tools(tools)

    def close(self) -> None:
        super().close()
        self.session.close()
        self._template = self._tokenizer = None

    # --- messages ---

    def _change(self, function: Any, *arguments: Any) -> None:
        chat = self._use()
        with self._family.guard.held():
            call(function, chat.pointer, *arguments)

    @property
    def messages(self) -> List[Dict[str, Any]]:
        """All messages, as requests to servers have them."""
        chat = self._use()
        with self._family.guard.held():
            return _messages(chat)

    def set_messages(self, messages: Sequence[Message]) -> None:
        data = schema_text(list(messages))
        self._change(lib.qn_chat_set_messages, data, len(data), None)

    def add(
        self,
        role: str,
        text: Text,
        *,
        reasoning: Text = "",
        calls: Sequence[ToolCall] = (),
        images: Sequence[Image] = (),
    ) -> None:
        """Appends a message: of the "user", the "assistant", a "tool", ... Images come before the
        text."""
        message = _message(role, text, reasoning, calls, images)
        self._change(lib.qn_chat_add, ctypes.byref(message))

    def truncate(self, n: int) -> None:
        """Forgets the messages from the n-th on."""
        self._change(lib.qn_chat_truncate, integer("n", n, ctypes.c_size_t))

    def set_system(self, text: Optional[str]) -> None:
        """Sets or replaces the leading system message; None removes it."""
        self._change(lib.qn_chat_set_system, None if text is None else c_text("system", text))

    def set_tools(self, tools: Optional[Sequence[Mapping[str, Any]]]) -> None:
        data = None if tools is None else schema_text(list(tools))
        self._change(lib.qn_chat_set_tools, data, len(data) if data else 0, None)

    def __len__(self) -> int:
        chat = self._use()
        with self._family.guard.held():
            return int(lib.qn_chat_n_messages(chat.pointer))

    def __bool__(self) -> bool:
        return True  # also without messages

    def render(self, options: Optional[ChatOptions] = None, **changes: Any) -> str:
        """The text of the prompt that the next answer would have."""
        chat, template, tokenizer = self._use(), self._template, self._tokenizer
        family = self._family
        opts = _prompt_opts(options_of(ChatOptions, options, changes), family.stop)

        def work() -> str:
            arguments = (chat.pointer, template.pointer, tokenizer.pointer, ctypes.byref(opts))
            return take_text(lib.qn_chat_render, *arguments)

        return family.run(work)

    # --- answers ---

    def ask(
        self,
        text: Optional[Text] = None,
        options: Optional[Options] = None,
        *,
        images: Sequence[Image] = (),
        **changes: Any,
    ) -> Reply:
        """The answer to a message of the user, or without one to the messages that are there; both
        are messages then. Fields of ChatOptions and of Sampling can be given by name; without any
        of sampling, the model's own settings are used. After a failure the messages are as they
        were.
        """
        answer = self._answer(text, options, images, changes)
        return self._family.run(lambda: answer(None))

    def stream(
        self,
        text: Optional[Text] = None,
        options: Optional[Options] = None,
        *,
        images: Sequence[Image] = (),
        **changes: Any,
    ) -> "Stream[ChatEvent, Reply]":
        """The same while it comes. Of an answer that is left, what there is of it is kept."""
        answer = self._answer(text, options, images, changes)
        turn = Turn(self._family)
        return Stream(lambda put: turn.run(lambda: answer(put)), turn.stop)

    def _answer(
        self,
        text: Optional[Text],
        options: Optional[Options],
        images: Sequence[Image],
        changes: Mapping[str, Any],
    ) -> Callable[[Optional[Callable[[ChatEvent], bool]]], Reply]:
        """What makes an answer, with everything checked that can be checked before."""
        chat, session, template = self._use(), self.session._use(), self._template
        made = options_of(
            ChatOptions, options, changes, lambda: sampling_defaults(session.needs[0])
        )
        opts = _chat_opts(made, self._family.stop)
        if text is None and images:
            raise TypeError("images belong to a message: give a text, or add() them")
        question = None if text is None else _message("user", text, "", (), images)
        draft = draft_guard(made, self._family)

        def answer(put: Optional[Callable[[ChatEvent], bool]]) -> Reply:
            n = lib.qn_chat_n_messages(chat.pointer)
            fn = _chat_callback(put, made.logprobs)
            arguments = (
                chat.pointer,
                session.pointer,
                template.pointer,
                ctypes.byref(opts),
                fn,
                None,
            )
            try:
                with draft:
                    if question is not None:
                        call(lib.qn_chat_add, chat.pointer, ctypes.byref(question))
                    result = read_answer(lib.qn_chat_answer, *arguments)
                return _reply(_messages(chat)[-1], result)
            except BaseException:
                call(lib.qn_chat_truncate, chat.pointer, n)
                raise

        return answer


# --- what goes in ---


def _template(model: "Model", text: Optional[Text]) -> Resource:
    engine = engine_of(model)
    if text is not None:
        data = text_bytes("template", text)
        return make("qn_template", lib.qn_template_create, lib.qn_template_destroy, data, len(data))
    try:
        arguments = (engine.pointer, None)
        return make("qn_template", lib.qn_engine_template, lib.qn_template_destroy, *arguments)
    except QuernError:  # the model came without one; a built-in one may fit its vocabulary
        name = read_text(lib.qn_template_find_builtin(model.tokenizer._use().pointer))
        if not name:
            raise
    create = lib.qn_template_create_builtin
    return make("qn_template", create, lib.qn_template_destroy, name.encode("ascii"))


def _message(
    role: str, text: Text, reasoning: Text, calls: Sequence[ToolCall], images: Sequence[Image]
) -> Any:
    data, thought = text_bytes("text", text), text_bytes("reasoning", reasoning)
    made = new(
        "qn_message", role=chars(c_text("role", role)), text=chars(data), text_size=len(data)
    )
    made.reasoning, made.reasoning_size = chars(thought), len(thought)
    items = (header.types["qn_tool_call"] * len(calls))()
    items.kept = []
    for item, given in zip(items, calls):
        if not isinstance(given, ToolCall):
            raise TypeError(f"calls must be a list of ToolCall, not of {type(given).__name__}")
        texts = (chars(c_text("name", given.name)), chars(schema_text(given.arguments)))
        item.name, item.arguments = texts
        items.kept.append(texts)
    made.calls, made.n_calls = items, len(items)
    pictures = [_picture(image) for image in images]
    kind = ctypes.POINTER(header.types["qn_image"])
    made.images = (kind * len(pictures))(*(picture.pointer for picture in pictures))
    made.n_images = len(pictures)
    made.kept = (items, pictures)
    return made


def _picture(image: Any) -> Resource:
    if not isinstance(image, Image):
        raise TypeError(f"images must be a list of Image, not of {type(image).__name__}")
    return image._use()


def _prompt_opts(options: ChatOptions, stop: StopFlag) -> Any:
    made = new("qn_chat_prompt_opts", stop=stop.pointer)
    set_fields(made, {"now": options.now})
    made.reasoning = choice("reasoning", options.reasoning, "qn_reasoning")
    if options.template_options is not None:
        made.kwargs = chars(schema_text(dict(options.template_options)))
    return made


def _chat_opts(options: ChatOptions, stop: StopFlag) -> Any:
    made = new("qn_chat_opts", stop=stop.pointer)
    names = ("leave_out", "one_call", "lenient_schemas", "tool_name")
    set_fields(made, {name: getattr(options, name) for name in names})
    made.tool_choice = choice("tool_choice", options.tool_choice, "qn_tool_choice")
    # Both have hooks and texts of their own, which they keep.
    made.kept = (_prompt_opts(options, stop), options._struct(stop))
    made.prompt, made.generate = (ctypes.pointer(part) for part in made.kept)
    return made


# --- what comes out ---

_KINDS = {
    header.constants[f"QN_CHAT_{kind.upper()}"]: kind
    for kind in ("reasoning", "text", "call", "arguments")
}


def _chat_callback(put: Optional[Callable[[ChatEvent], bool]], logprobs: bool) -> Any:
    if put is None:
        return header.types["qn_chat_fn"]()
    tell = put

    @callback("qn_chat_fn", failed=False)
    def told(_: Any, pointer: Any) -> bool:
        event = pointer.contents
        if event.kind not in _KINDS:
            return True  # the prompt is made
        return tell(
            ChatEvent(
                kind=_KINDS[event.kind],
                text=read_text(event.text, event.text_size),
                name=read_text(event.name) or None,
                call=event.call,
                token=read_event(event.token.contents, logprobs) if event.token else None,
            )
        )

    return told


def _messages(chat: Resource) -> List[Dict[str, Any]]:
    made: List[Dict[str, Any]] = json.loads(
        take_text(lib.qn_chat_print_messages, chat.pointer, sized=False)
    )
    return made


def _reply(message: Mapping[str, Any], result: Result) -> Reply:
    calls = []
    for item in message.get("tool_calls") or ():
        function = item.get("function", item)
        arguments = function["arguments"]
        calls.append(
            ToolCall(
                function["name"], json.loads(arguments) if isinstance(arguments, str) else arguments
            )
        )
    return Reply(
        message.get("content") or "", message.get("reasoning_content") or "", result, calls
    )
