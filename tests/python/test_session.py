"""Sessions, answers, sampling, grammars, hooks, batches."""

import dataclasses
import json
import math
import unittest
from unittest import mock

from rig import DRAFT, HYBRID, MINI, PROMPT, Case, quern
from quern._library import lib


class Answers(Case):
    def test_generate_and_stream_give_the_same(self):
        options = quern.Options(max_tokens=24, sampling=quern.Sampling(temperature=0.8, seed=7))
        session = self.model.session()
        whole = session.generate(PROMPT, options)
        self.assertEqual((whole.reason, len(whole.tokens), str(whole)), ("length", 24, whole.text))
        stream = session.stream(PROMPT, options)
        events = list(stream)
        self.assertEqual("".join(map(str, events)), whole.text)
        self.assertEqual([e.token for e in events[:-1]], whole.tokens)
        self.assertEqual((events[-1].token, events[-1].reason), (None, "length"))
        self.assertEqual(stream.result, dataclasses.replace(whole, n_reused=stream.result.n_reused))
        self.assertEqual(self.model.generate(PROMPT, options).tokens, whole.tokens)
        self.assertEqual(session.tokens, self.model.tokenize(PROMPT, add_ends=True) + whole.tokens)

    def test_an_answer_goes_on(self):
        session = self.model.session(context=128)
        whole = session.generate(PROMPT, max_tokens=20).tokens
        first = session.generate(PROMPT, max_tokens=8).tokens
        self.assertEqual(first + session.generate(max_tokens=12).tokens, whole)
        self.assertEqual(session.context, 128)
        self.assertGreater(session.counts["reused"], 0)

    def test_stops_and_probabilities(self):
        session = self.model.session()
        plain = session.generate(PROMPT, max_tokens=30)
        word = plain.text.split()[5]
        cut = session.generate(PROMPT, max_tokens=30, stops=["xyz", word])
        self.assertEqual((cut.reason, cut.stop), ("stop", 1))
        self.assertEqual(cut.text, plain.text[: plain.text.index(word)])
        ended = session.generate(PROMPT, stop_tokens=[plain.tokens[4]])
        self.assertEqual((ended.stop_token, ended.tokens), (plain.tokens[4], plain.tokens[:4]))
        events = list(session.stream(PROMPT, max_tokens=5, logprobs=True, n_top=3))
        for event in events[:-1]:
            self.assertEqual(event.top[0], (event.token, event.logprob))  # greedy
            self.assertEqual(
                sorted((p for _, p in event.top), reverse=True), [p for _, p in event.top]
            )
        prompt = [
            e for e in session.stream(PROMPT, max_tokens=1, prompt_logprobs=True) if e.is_prompt
        ]
        self.assertEqual([e.token for e in prompt], self.model.tokenize(PROMPT, add_ends=True)[1:])

    def test_sampling_settings(self):
        session = self.model.session()
        plain = session.generate(PROMPT, max_tokens=12)
        never = session.generate(PROMPT, max_tokens=12, biases={plain.tokens[0]: -math.inf})
        self.assertNotEqual(never.tokens[0], plain.tokens[0])
        banned = plain.text.split()[1]
        self.assertNotIn(banned, session.generate(PROMPT, max_tokens=12, bans=[banned]).text)
        as_dict = session.generate(PROMPT, max_tokens=12, sampling={"temperature": 1.5, "seed": 3})
        by_name = session.generate(PROMPT, max_tokens=12, temperature=1.5, seed=3)
        self.assertEqual(as_dict.tokens, by_name.tokens)
        self.assertNotEqual(as_dict.tokens, plain.tokens)
        with self.check(quern.ArgumentError, "top_p"):
            session.generate(PROMPT, top_p=2)
        with self.check(TypeError, "temprature", "temperature"):
            session.generate(PROMPT, temprature=1)

    def test_speculation_changes_nothing(self):
        with quern.Model(MINI, n_threads=1) as mini:
            session, draft = mini.session(), self.model.session()
            plain = session.generate(PROMPT, max_tokens=40)
            drafted = session.generate(PROMPT, max_tokens=40, draft=draft, draft_min=2)
            self.assertEqual(drafted.tokens, plain.tokens)
            self.assertGreater(drafted.n_accepted, 0)
            seen = []

            def follow(tokens, limit):
                seen.append(tokens)
                at = len(tokens) - drafted.n_prompt
                return plain.tokens[at : at + limit]

            hooked = session.generate(PROMPT, max_tokens=40, draft_hook=follow, draft_min=2)
            self.assertEqual(hooked.tokens, plain.tokens)
            self.assertEqual(hooked.n_accepted, hooked.n_drafted)
            self.assertEqual(seen[0][: drafted.n_prompt], mini.tokenize(PROMPT, add_ends=True))
            with self.check(quern.StateError, "draft"):
                session.generate(PROMPT, draft=session.fork())
            with self.check(TypeError, "draft", "Model"):
                session.generate(PROMPT, draft=mini)


class Hooks(Case):
    def test_logits_can_be_changed(self):
        session = self.model.session()
        word = self.model.tokenize(" cat")[0]
        seen = []

        def only(told):
            seen.append((len(told.tokens), told.n_prompt))
            for i in range(len(told.logits)):
                told.logits[i] = -math.inf
            told.logits[word] = 0

        made = session.generate(PROMPT, max_tokens=3, logits_hook=only)
        self.assertEqual(made.tokens, [word] * 3)
        n = made.n_prompt
        self.assertEqual(seen, [(n, n), (n + 1, n), (n + 2, n)])

    def test_what_a_hook_keeps_is_safe(self):
        kept = []
        self.model.session().generate(PROMPT, max_tokens=2, logits_hook=kept.append)
        self.assertEqual(len(bytes(kept[0].logits)), 4 * 4096)
        with self.check(quern.StateError, "while it is made"):
            kept[0].tokens

    def test_false_ends_the_answer(self):
        session = self.model.session()
        made = session.generate(
            PROMPT, logits_hook=lambda told: len(told.tokens) < told.n_prompt + 4
        )
        self.assertEqual((made.reason, len(made.tokens)), ("caller", 4))

    def test_what_a_hook_raises_comes_out(self):
        class Mine(Exception):
            pass

        def fail(*_):
            raise Mine("here")

        session = self.model.session()
        for hook in ("logits_hook", "draft_hook"):
            with self.check(Mine, "here"):
                session.generate(PROMPT, max_tokens=9, draft_min=2, **{hook: fail})
        with self.check(Mine):
            quern.Model(DRAFT, progress=fail)
        with self.check(Mine):
            self.model.embed(["a cat sleeps"] * 3, chunk=4, progress=fail)
        with self.check(Mine):  # of a function whose result counts for nothing
            odd = {"type": "string", "format": "unheard-of"}
            self.model.grammar(schema=odd, lenient=True, log=fail)
        with self.check(TypeError):
            session.generate(PROMPT, draft_min=2, draft_hook=lambda tokens, limit: "cat")
        # and the session is as good as before
        want = self.model.generate(PROMPT, max_tokens=4)
        self.assertEqual(session.generate(PROMPT, max_tokens=4).tokens, want.tokens)

    def test_what_was_made_is_released_when_a_hook_raises(self):
        def fail(*_):
            raise KeyError("here")

        calls = {
            "qn_result_deinit": lambda: self.model.session().generate(PROMPT, logits_hook=fail),
            "qn_grammar_destroy": lambda: self.model.grammar(
                schema={"type": "string", "format": "unheard-of"}, lenient=True, log=fail
            ),
        }
        for name, use in calls.items():
            release = getattr(lib, name)
            with mock.patch.object(lib, name, side_effect=release) as released:
                with self.check(KeyError, "here"):
                    use()
            self.assertEqual(released.call_count, 1, name)

    def test_progress_of_a_prompt(self):
        told = []
        session = self.model.session(
            chunk=8, progress=lambda done, total: told.append((done, total))
        )
        session.generate("word " * 40, max_tokens=1)
        self.assertGreater(len(told), 3)
        self.assertEqual(told[-1][0], told[-1][1])

    def test_a_hook_may_call_the_library(self):
        def hook(told):
            self.model.detokenize(told.tokens)
            with self.check(quern.ArgumentError):
                self.model.detokenize([-1])

        made = self.model.session().generate(PROMPT, max_tokens=3, logits_hook=hook)
        self.assertEqual(len(made.tokens), 3)


class State(Case):
    def test_steps_forks_snapshots(self):
        session = self.model.session(logits=True)
        session.set_prompt(PROMPT)
        self.assertEqual(session.n_cached, 0)
        first = [session.step() for _ in range(4)]
        self.assertEqual(len(bytes(session.logits)), 4 * 4096)
        snapshot, fork = session.snapshot(), session.fork()
        rest = [session.step() for _ in range(4)]
        self.assertEqual([fork.step() for _ in range(4)], rest)
        session.restore(snapshot)
        self.assertEqual([session.step() for _ in range(4)], rest)
        session.truncate(len(session.tokens) - 8)
        self.assertEqual([session.step() for _ in range(8)], first + rest)
        fork.close()
        snapshot.close()

    def test_saved_and_loaded(self):
        session, other = self.model.session(), self.model.session()
        session.generate(PROMPT, max_tokens=6)
        other.load(session.save())
        self.assertEqual(other.tokens, session.tokens)
        self.assertEqual(other.generate(max_tokens=6).tokens, session.generate(max_tokens=6).tokens)
        with self.check(quern.FormatError):
            other.load(b"not a session")
        with self.check(quern.LimitError, "4"):
            self.model.session(context=4).load(session.save())

    def test_looking_into_it(self):
        session = self.model.session(hidden=True)
        session.prefill("Once upon a time there was")
        info = session.layer_info(0)
        keys, values = session.read_kv(0, 1, 2, 3)
        self.assertEqual(tuple(keys.shape), (3, info["key_size"]))
        self.assertEqual(tuple(values.shape), (3, info["value_size"]))
        self.assertNotEqual(bytes(keys), bytes(len(bytes(keys))))
        n = session.n_cached
        self.assertEqual(tuple(session.read_hidden(2).shape), (n, self.model.width))
        want = self.model.logits(session.tokens, hidden=True, all_rows=True).hidden
        data, size = bytes(want), n * self.model.width * 4
        self.assertEqual(bytes(session.read_hidden(1)), data[size : 2 * size])
        for wrong in (
            (9, 0, 0, 1),
            (0, 99, 0, 1),
            (0, 0, -1, 1),
            (0, 0, 0, 10**6),
            (0, 0, 0, -1),
        ):
            with self.check(quern.QuernError):
                session.read_kv(*wrong)

    def test_recurrent_state(self):
        with quern.Model(HYBRID, n_threads=1) as hybrid:
            session = hybrid.session()
            whole = session.generate(PROMPT, max_tokens=10).tokens
            session.truncate(len(hybrid.tokenize(PROMPT, add_ends=True)))
            self.assertEqual(session.generate(max_tokens=10).tokens, whole)


class Samplers(Case):
    def test_it_chooses_what_a_session_chooses(self):
        how = {"temperature": 0.9, "seed": 5, "top_k": 20, "repeat_penalty": 1.2}
        session = self.model.session()
        want = session.generate(PROMPT, max_tokens=8, **how)
        ids = self.model.tokenize(PROMPT, add_ends=True)
        sampler = quern.Sampler(self.model.tokenizer, sampling=how)
        sampler.accept_prompt(ids)
        row, got = session.prefill(ids), []
        for i in range(8):
            token = sampler.choose(row)
            self.assertEqual(sampler.choose(list(row)), token)  # copied, and nothing is remembered
            got.append(token)
            sampler.accept(token)
            if i == 3:
                other = quern.Sampler(self.model.tokenizer, sampling=quern.Sampling(**how))
                other.load(sampler.save())
                sampler.close()
                sampler = other
            row = session.feed(token)
        self.assertEqual(got, want.tokens)
        sampler.reset()
        sampler.set({"biases": {7: -math.inf}})
        self.assertEqual(sampler.choose([float(i == 7) for i in range(4096)]), 0)

    def test_what_is_refused(self):
        sampler = quern.Sampler(n_vocab=3)
        self.assertEqual(sampler.choose([0.0, 2.0, 1.0]), 1)
        with self.check(quern.ArgumentError, "3", "2"):
            sampler.choose([0.0, 2.0])
        with self.check(quern.QuernError):
            sampler.choose([0.0, math.nan, 1.0])
        for wrong in (None, 3, "abc", ["a", "b", "c"], object()):
            with self.check(TypeError, "logits"):
                sampler.choose(wrong)
        with self.check(quern.FormatError):
            sampler.load(b"nothing")
        with self.check(quern.ArgumentError, "banned"):
            quern.Sampler(n_vocab=3, sampling={"bans": ["a"]})
        with self.check(quern.ArgumentError):
            sampler.accept(3)


class Grammars(Case):
    SCHEMA = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }

    def test_all_kinds(self):
        session = self.model.session()
        schema = self.model.grammar(schema=self.SCHEMA)
        made = json.loads(session.generate(PROMPT, grammar=schema, max_tokens=80).text)
        self.assertEqual(sorted(made), ["age", "name"])
        text = self.model.grammar(schema=json.dumps(self.SCHEMA))
        self.assertEqual(
            json.loads(session.generate(PROMPT, grammar=text, max_tokens=80).text), made
        )
        regex = self.model.grammar(regex=r"[0-9]{3}-[0-9]{2}")
        self.assertRegex(session.generate(PROMPT, grammar=regex).text, r"^\d{3}-\d{2}$")
        gbnf = self.model.grammar(gbnf='root ::= "yes" | "no"')
        self.assertIn(session.generate(PROMPT, grammar=gbnf).text, ("yes", "no"))
        self.model.grammar(json=True)

    def test_what_is_not_supported(self):
        odd = {"type": "string", "format": "unheard-of"}
        with self.check(quern.UnsupportedError, "unheard-of"):
            self.model.grammar(schema=odd)
        told = []
        self.model.grammar(schema=odd, lenient=True, log=told.append)
        self.assertIn("unheard-of", told[0])
        for wrong in ({}, {"regex": "a", "gbnf": "b"}):
            with self.check(TypeError, "one of"):
                self.model.grammar(**wrong)
        with self.check(quern.FormatError):
            self.model.grammar(regex="(")
        with self.check(quern.QuernError):
            self.model.grammar(schema="{")


class Batches(Case):
    PROMPTS = [PROMPT, "The cat", "What is 2 + 2?", "In the morning"]

    def test_rows_get_what_they_get_alone(self):
        batch = self.model.batch(context=128)

        def how(i):
            return {"max_tokens": 6 + i, "temperature": 0.7, "seed": i, "ignore_end": True}

        rows = [batch.add(prompt, **how(i)) for i, prompt in enumerate(self.PROMPTS)]
        with self.check(quern.StateError, "0 of 1"):
            rows[0].result
        left = batch.step()
        late = batch.add("Late", max_tokens=3)
        self.assertEqual(left, 4)
        batch.run()
        self.assertTrue(late.done)
        for i, (row, prompt) in enumerate(zip(rows, self.PROMPTS)):
            alone = self.model.generate(prompt, **how(i))
            self.assertEqual((row.result.tokens, row.text), (alone.tokens, alone.text))
        self.assertEqual(batch.step(), 0)
        self.assertEqual(batch.counts["ended"], 5)

    def test_completions_events_removal(self):
        batch = self.model.batch()
        events = []
        many = batch.add(PROMPT, max_tokens=4, completions=3, temperature=1, on_event=events.append)
        gone = batch.add(PROMPT)
        batch.step()
        gone.remove()
        self.assertEqual((gone.result.reason, gone.text), ("caller", gone.result.text))
        batch.run()
        self.assertEqual(len(many.results), 3)
        for i, made in enumerate(many.results):
            self.assertEqual(
                [e.token for e in events if e.row == i and e.token is not None], made.tokens
            )
        gone.remove()
        many.remove()
        self.assertEqual(many.result.reason, "length")

    def test_a_row_that_fails_ends_alone(self):
        class Mine(Exception):
            pass

        def fail(*_):
            raise Mine("here")

        batch = self.model.batch()
        bad = [batch.add(PROMPT, on_event=fail), batch.add(PROMPT, logits_hook=fail)]
        enough = batch.add(PROMPT, on_event=lambda event: event.position < 6)
        good = batch.add(PROMPT, max_tokens=12)
        failures = 0
        while not good.done:
            try:
                batch.run()
            except Mine:
                failures += 1
        self.assertIn(failures, (1, 2))  # both may fail in one step
        self.assertEqual([row.result.reason for row in bad + [enough]], ["caller"] * 3)
        self.assertEqual(good.result.tokens, self.model.generate(PROMPT, max_tokens=12).tokens)
        failed = batch.add(
            PROMPT, max_tokens=4, grammar=self.model.grammar(regex="a+", max_token_steps=1)
        )
        batch.run()
        self.assertIn(failed.result.reason, ("failed", "length"))

    def test_what_is_refused(self):
        batch = self.model.batch()
        with self.check(quern.ArgumentError, "completions", "0"):
            batch.add(PROMPT, completions=0)
        with self.check(quern.ArgumentError, "draft"):
            batch.add(PROMPT, draft=self.model.session())
        with self.check(TypeError, "on_event"):
            batch.add(PROMPT, on_event=3)
        with self.check(quern.QuernError):
            batch.add([])
        self.assertEqual(batch.step(), 0)
        self.assertFalse(batch.wait(0))

    def test_grammars_live_as_long_as_their_rows(self):
        batch = self.model.batch()
        row = batch.add(PROMPT, grammar=self.model.grammar(regex="[0-9]{6}"))
        batch.run()
        self.assertRegex(row.text, r"^\d{6}$")


if __name__ == "__main__":
    unittest.main()
