"""Conversations in the dialects of the server: how each asks for the next answer, and what it tells of it."""

SYSTEM = "You are a helpful assistant. Answer in one short sentence, and say so if you do not know."
# Longer than the part of a text that the balancer looks at.
STORY = ("Once upon a time there was an old lighthouse on a small island. " * 17)
FIRST = ["What color is a lemon?", "Name the capital of France.", "What is 12 + 30?"]
NEXT = ["And what about the others?", "Why is that so?", "Thank you. Say it again, please.", "One more time?"]


class Conversation:
    """What was said so far: turns are (question, answer); the last answer is None."""
    path, headers, reuses = None, {}, True

    def __init__(self, number):
        self.number, self.turns = number, []
        self.first = f"Question {number * 7919}. {FIRST[number % len(FIRST)]}"
        self.replica, self.prompt_tokens = None, 0

    def question(self):
        return NEXT[len(self.turns) % len(NEXT)] if self.turns else self.first

    def ask(self):
        """The body of the request whose question is the last turn."""
        raise NotImplementedError

    def body(self, seed=None):
        self.turns.append((self.question(), None))
        body = self.ask()
        body |= {"temperature": 0.8, "seed": seed} if seed is not None else {}
        return body

    def answered(self, text):
        self.turns[-1] = (self.turns[-1][0], text)

    def messages(self):
        out = []
        for question, answer in self.turns:
            out.append({"role": "user", "content": question})
            if answer is not None:
                out.append({"role": "assistant", "content": answer})
        return out

    def read(self, reply):
        """Text, tokens of the prompt, how many of these came from the cache (None: it does not tell)."""
        raise NotImplementedError


class Chat(Conversation):
    path = "/v1/chat/completions"

    def ask(self):
        return {"model": "any", "max_tokens": 24, "messages": [{"role": "system", "content": SYSTEM}, *self.messages()]}

    def read(self, reply):
        usage = reply["usage"]
        text = reply["choices"][0]["message"]["content"]
        return text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


class ChatAlone(Chat):
    """No system message; text that JSON escapes; the messages come last, after a field like theirs."""
    path = "/chat/completions"

    def __init__(self, number):
        super().__init__(number)
        self.first = f'Größe {number}: "\\u4e2d/文 \\"? \U0001f34b\n{self.first}'

    def ask(self):
        return {"metadata": {"messages": str(len(self.turns))}, "max_tokens": 24, "messages": self.messages()}


class ChatParts(Chat):
    """Texts as lists of parts."""

    def ask(self):
        body = super().ask()
        for message in body["messages"]:
            message["content"] = [{"type": "text", "text": message["content"]}]
        return body


class ChatKey(Chat):
    """The client's own key: the beginning changes, so that there is no prefix, and it stays where it was."""
    reuses = False

    def ask(self):
        body = super().ask()
        body["messages"][0]["content"] = f"It is turn {len(self.turns)}. {SYSTEM}"
        return body | {"prompt_cache_key" if self.number % 20 < 10 else "session_id": f"key {self.number}"}


class Messages(Conversation):
    """The mark of what is to be cached wanders with the last message, as it does with real clients."""
    path = "/v1/messages"

    def ask(self):
        messages = self.messages()
        text = messages[-1]["content"]
        messages[-1]["content"] = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
        return {"model": "any", "max_tokens": 24, "messages": messages, "system": SYSTEM}

    def read(self, reply):
        usage = reply["usage"]
        cached = usage["cache_read_input_tokens"]
        return reply["content"][0]["text"], usage["input_tokens"] + cached, cached


class Responses(Conversation):
    """The first request has a string, later ones the items of both sides."""
    path = "/v1/responses"

    def ask(self):
        items = [{"type": "message", "role": m["role"],
                  "content": [{"type": "input_text" if m["role"] == "user" else "output_text", "text": m["content"]}]}
                 for m in self.messages()]
        first = self.first if len(self.turns) == 1 else items
        return {"model": "any", "instructions": SYSTEM, "input": first, "max_output_tokens": 24}

    def read(self, reply):
        usage = reply["usage"]
        text = reply["output"][0]["content"][0]["text"]
        return text, usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


class OllamaChat(Conversation):
    path = "/api/chat"

    def ask(self):
        return {"model": "any", "stream": False, "options": {"num_predict": 24},
                "messages": [{"role": "system", "content": SYSTEM}, *self.messages()]}

    def body(self, seed=None):
        body = super().body()
        body["options"] |= {"temperature": 0.8, "seed": seed} if seed is not None else {}
        return body

    def read(self, reply):
        return reply["message"]["content"], reply["prompt_eval_count"], None


class Text(Conversation):
    """A text that grows: what was written, and what came of it."""
    path, tokens = "/completion", "n_predict"

    def begin(self):
        return f"Story {self.number * 7919}. {STORY}"

    def ask(self):
        text = self.begin() + "".join(f"{q}{a or ''}" for q, a in self.turns)
        return {"prompt": text, self.tokens: 16}

    def read(self, reply):
        return reply["content"], reply["tokens_evaluated"], reply["timings"]["cache_n"]


class TextHeader(Text):
    """A short text, which only the client's header keeps together."""
    path, tokens = "/v1/completions", "max_tokens"

    def __init__(self, number):
        super().__init__(number)
        self.headers = {"X-Session-Id": f"session-{number}"}

    def begin(self):
        return f"{self.number}. "

    def read(self, reply):
        usage = reply["usage"]
        return reply["choices"][0]["text"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


class OllamaText(Text):
    path = "/api/generate"

    def ask(self):
        prompt = super().ask()["prompt"]
        return {"model": "any", "stream": False, "raw": True, "prompt": prompt, "options": {"num_predict": 16}}

    def body(self, seed=None):
        body = super().body()
        body["options"] |= {"temperature": 0.8, "seed": seed} if seed is not None else {}
        return body

    def read(self, reply):
        return reply["response"], reply["prompt_eval_count"], None


DIALECTS = [Chat, ChatAlone, ChatParts, ChatKey, Messages, Responses, OllamaChat, Text, TextHeader, OllamaText]
