"""Conversations."""

import json
import unittest

from rig import MINI, SOURCE, Case, quern

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Chats(Case):
    @classmethod
    def setUpClass(cls):
        cls.model = quern.Model(MINI, n_threads=1)

    def test_questions_and_answers(self):
        with self.model.chat("You are kind.") as chat:
            reply = chat.ask("What is 12 + 30?", temperature=0)
            self.assertEqual((reply.text, str(reply)), ("12 + 30 = 42", reply.text))
            self.assertEqual((reply.reasoning, reply.calls, reply.result.reason), ("", [], "end"))
            stream = chat.stream("My name is Kevin.", temperature=0)
            text = "".join(str(event) for event in stream)
            self.assertEqual(stream.result.text, text)
            self.assertIn("Kevin", chat.ask("What is my name?", temperature=0).text)
            roles = [message["role"] for message in chat.messages]
            self.assertEqual(roles, ["system"] + ["user", "assistant"] * 3)
            self.assertEqual(len(chat), 7)
            chat.truncate(3)
            chat.set_system(None)
            self.assertEqual([m["role"] for m in chat.messages], ["user", "assistant"])
            self.assertTrue(chat)

    def test_tools(self):
        for how in ("free", "auto", "required"):
            chat = self.model.chat(tools=[WEATHER])
            stream = chat.stream("What is the weather in Paris?", tool_choice=how, temperature=0)
            events = list(stream)
            reply = stream.result
            self.assertEqual(reply.calls, [quern.ToolCall("get_weather", {"city": "Paris"})])
            arguments = "".join(e.text for e in events if e.kind == "arguments")
            self.assertEqual(json.loads(arguments), {"city": "Paris"})
            self.assertEqual([e.name for e in events if e.kind == "call"], ["get_weather"])
            chat.add("tool", "18 degrees and sunny")
            answer = chat.ask(temperature=0)
            self.assertIn("18", answer.text)
        chat = self.model.chat(tools=[WEATHER])
        made = chat.ask(
            "What is the weather in Paris?", tool_choice="none", max_tokens=8, temperature=0
        )
        self.assertEqual(made.calls, [])
        with self.check(quern.ArgumentError, "nothing", "get_weather"):
            chat.ask("And?", tool_choice="required", tool_name="nothing")

    def test_messages(self):
        chat = self.model.chat()
        given = [
            {"role": "user", "content": "What is 2 + 2?"},
            {"role": "assistant", "content": "4"},
        ]
        chat.set_messages(given)
        self.assertEqual(chat.messages, given)
        calls = [quern.ToolCall("get_weather", {"city": "Rome"})]
        chat.add("assistant", "", calls=calls)
        function = chat.messages[-1]["tool_calls"][0]["function"]
        self.assertEqual(
            (function["name"], function["arguments"]), ("get_weather", {"city": "Rome"})
        )
        chat.truncate(2)
        text = chat.render(now="2026-01-02T03:04:05")
        self.assertIn("2 + 2", text)
        with self.check(quern.QuernError, "messages"):
            chat.set_messages([{"content": 3}])
        with self.check(TypeError):
            chat.set_messages([{"role": object()}])
        with self.check(quern.QuernError, "tools"):
            chat.set_tools([3])

    def test_a_question_that_fails_is_taken_back(self):
        chat = self.model.chat(context=64)
        chat.ask("What is 1 + 1?", max_tokens=8)
        before = chat.messages
        with self.check(quern.LimitError, "64"):
            chat.ask("word " * 100)
        with self.check(ZeroDivisionError):
            chat.ask("And 2 + 2?", logits_hook=lambda told: 1 // 0)
        self.assertEqual(chat.messages, before)
        self.assertEqual(len(chat), 2)
        for _ in range(6):
            chat.ask("And 3 + 3?", max_tokens=8, leave_out=True)

    def test_an_answer_that_is_left_is_kept(self):
        chat = self.model.chat()
        text = ""
        for event in chat.stream("Tell me a story."):
            text += str(event)
            if len(text) > 20:
                break
        self.assertTrue(text)
        del event
        self.assertEqual(chat.messages[-1]["content"], text)
        self.assertEqual(len(chat), 2)

    def test_templates(self):
        chat = self.model.chat(
            template="{% for m in messages %}[{{ m.content }}]{{ extra }}{% endfor %}"
        )
        chat.add("user", "one")
        self.assertEqual(chat.render(template_options={"extra": "!"}), "[one]!")
        with self.check(quern.QuernError):
            self.model.chat(template="{% for %}")

    def test_model_settings_are_the_default(self):
        ours = self.model.sampling
        chat, other = self.model.chat(), self.model.chat()
        question = "Tell me a story."
        one = chat.ask(question, max_tokens=12)
        two = other.ask(question, max_tokens=12, sampling=ours)
        self.assertEqual(one.result.tokens, two.result.tokens)

    def test_structured_answers(self):
        grammar = self.model.grammar(schema={"enum": ["red", "blue"]})
        self.assertIn(
            json.loads(self.model.chat().ask("A colour?", grammar=grammar).text), ("red", "blue")
        )


class Images(Case):
    FOLDER = SOURCE / "tests/data/mini/qwen35_vl"
    TEMPLATE = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|>"
        "<|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
    )

    @classmethod
    def setUpClass(cls):
        cls.model = quern.Model(cls.FOLDER, n_threads=1)

    def test_pictures_in_a_conversation(self):
        one, two = quern.Image(self.FOLDER / "image.png"), quern.Image(self.FOLDER / "image.jpg")
        self.assertEqual([len(one.size), min(one.size) > 0], [2, True])
        read = quern.Image.read((self.FOLDER / "image.png").read_bytes())
        self.assertEqual(read.size, one.size)
        chats = [self.model.chat(template=self.TEMPLATE, context=512) for _ in range(4)]
        answers = [
            chats[0].ask("What?", images=[one], max_tokens=6),
            chats[1].ask("What?", images=[read], max_tokens=6),
            chats[2].ask("What?", images=[two, one], max_tokens=6),
            chats[3].ask("What?", max_tokens=6),
        ]
        self.assertEqual(answers[0].result.tokens, answers[1].result.tokens)
        n_prompts = [answer.result.n_prompt for answer in answers]
        self.assertEqual(n_prompts, sorted(n_prompts[:3]) + n_prompts[3:])
        self.assertLess(n_prompts[3], n_prompts[0])
        one.close()
        chats[0].ask("And?", max_tokens=2)  # the chat has kept it

    def test_what_is_no_picture(self):
        chat = self.model.chat(template=self.TEMPLATE)
        with self.check(quern.FormatError):
            quern.Image.read(b"not an image")
        with self.check(quern.FileError, "nowhere.png"):
            quern.Image("nowhere.png")
        with self.check(TypeError, "images"):
            chat.ask("What?", images=[self.FOLDER / "image.png"])
        with self.check(TypeError, "images"):
            chat.ask(images=[quern.Image(self.FOLDER / "image.png")])
        closed = quern.Image(self.FOLDER / "image.png")
        closed.close()
        with self.check(quern.StateError, "image is closed"):
            chat.add("user", "What?", images=[closed])
        with quern.Model(MINI) as blind, self.check(quern.QuernError, "template"):
            blind.chat().ask("What?", images=[quern.Image(self.FOLDER / "image.png")])
        self.assertEqual(len(chat), 0)


if __name__ == "__main__":
    unittest.main()
