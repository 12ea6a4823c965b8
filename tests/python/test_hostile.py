"""Use that is wrong: it must end in an error that says what is wrong, and in nothing else."""

import copy
import os
import pickle
import threading
import unittest

from rig import DRAFT, PROMPT, Case, quern

NOT_TEXTS = [None, 3, 2.5, [], {}, object(), True]
NOT_INTEGERS = [None, "3", 2.5, [], float("nan"), b"1", object()]
HUGE = [2**31, 2**32, 2**63, 2**64, 2**1000, -(2**31) - 1, -(2**63) - 1]


class Closed(Case):
    def test_use_after_close(self):
        model = quern.Model(DRAFT)
        session, chat, batch = model.session(), model.chat(), model.batch()
        tokenizer, grammar = model.tokenizer, model.grammar(json=True)
        decoder, snapshot = tokenizer.decoder(), session.snapshot()
        uses = {
            "model": (
                model,
                lambda: model.info,
                lambda: model.logits("x"),
                lambda: model.session(),
            ),
            "session": (
                session,
                lambda: session.tokens,
                lambda: session.generate("x"),
                lambda: session.stream("x"),
                lambda: session.fork(),
                lambda: session.step(),
                lambda: session.logits,
                lambda: session.save(),
                lambda: session.n_cached,
                lambda: session.read_kv(0, 0, 0, 1),
            ),
            "chat": (
                chat,
                lambda: chat.ask("x"),
                lambda: chat.stream("x"),
                lambda: chat.messages,
                lambda: len(chat),
                lambda: chat.render(),
                lambda: chat.add("user", "x"),
            ),
            "batch": (batch, batch.step, batch.run, lambda: batch.add("x"), lambda: batch.counts),
            "tokenizer": (tokenizer, lambda: tokenizer.encode("x"), lambda: tokenizer.n_tokens),
            "decoder": (decoder, lambda: decoder.next(1)),
            "grammar": (grammar, lambda: model.generate("x", grammar=grammar)),
            "snapshot": (snapshot, lambda: model.session().restore(snapshot)),
        }
        for name, (handle, *calls) in reversed(list(uses.items())):
            self.assertFalse(handle.closed)
            handle.close()
            handle.close()
            self.assertTrue(handle.closed)
            for call in calls:
                with self.check(quern.QuernError):
                    call()
            with self.check(quern.StateError, f"the {name} is closed"):
                with handle:
                    pass

    def test_closed_in_the_midst_of_a_call(self):
        model = quern.Model(DRAFT)
        session = model.session()

        def close(told):
            session.close()
            model.close()

        made = session.generate(PROMPT, max_tokens=4, logits_hook=close)
        self.assertEqual(len(made.tokens), 4)
        self.assertTrue(session.closed)

    def test_what_was_never_opened(self):
        for kind in (quern.Model, quern.Session, quern.Chat, quern.Batch, quern.Tokenizer):
            handle = kind.__new__(kind)
            with self.check(quern.StateError, "is closed"):
                handle._use()
            del handle

    def test_copies_and_pickles(self):
        session = self.model.session()
        session.prefill(PROMPT)
        twin = copy.copy(session)
        session.close()
        self.assertEqual(len(twin.generate(max_tokens=2).tokens), 2)
        for handle in (self.model, twin):
            with self.assertRaises((TypeError, ValueError)):
                pickle.dumps(handle)
        error = pickle.loads(pickle.dumps(quern.LimitError("too long")))
        self.assertEqual((type(error), str(error)), (quern.LimitError, "too long"))


class Types(Case):
    def all_refused(self, values, calls, errors=(TypeError, quern.QuernError)):
        for call in calls:
            for value in values:
                with self.assertRaises(errors, msg=f"{value!r}"):
                    call(value)

    def test_texts(self):
        model, session = self.model, self.model.session()
        chat = model.chat()
        calls = [
            model.tokenize,
            lambda x: chat.add("user", x),
            lambda x: chat.add(x, "x"),
            lambda x: chat.ask(x) if x is not None else chat.add("user", x),
            lambda x: model.grammar(regex=x) if x is not None else model.grammar(),
            lambda x: model.tokenizer.find(x),
            lambda x: session.generate(PROMPT, stops=[x]),
            lambda x: session.generate(PROMPT, bans=[x]),
            lambda x: session.load(x),
            lambda x: quern.Model(x),
            lambda x: quern.Model(DRAFT, numerics=x),
            lambda x: model.embed(PROMPT, pooling=x),
            lambda x: chat.ask("x", tool_choice=x),
        ]
        self.all_refused(NOT_TEXTS, calls)
        self.assertEqual(chat.messages, [])

    def test_integers(self):
        model, session = self.model, self.model.session()
        session.prefill(PROMPT)
        calls = [
            lambda x: session.feed(x),
            lambda x: session.truncate(x),
            lambda x: session.mark(x),
            lambda x: model.tokenizer.piece(x),
            lambda x: model.tokenizer.is_end(x),
            lambda x: model.detokenize([x]),
            lambda x: session.feed_all([1, x]),
            lambda x: session.layer_info(x),
            lambda x: session.read_kv(0, 0, 0, x),
            lambda x: model.memory(x),
            lambda x: session.generate(PROMPT, stop_tokens=[x]),
            lambda x: session.generate(PROMPT, biases={x: 1}),
            lambda x: model.batch().add(PROMPT, completions=x),
        ]
        self.all_refused(NOT_INTEGERS, calls)
        named = [
            lambda x: session.generate(PROMPT, max_tokens=x),
            lambda x: session.generate(PROMPT, top_k=x),
            lambda x: model.session(context=x),
            lambda x: model.batch(rows=x),
            lambda x: quern.Model(DRAFT, n_threads=x),
        ]
        self.all_refused(NOT_INTEGERS[1:], named)  # None is the default

    def test_numbers_that_are_too_large_are_never_cut(self):
        model, session = self.model, self.model.session()
        session.prefill(PROMPT)
        calls = [
            lambda x: session.feed(x),
            lambda x: model.tokenizer.piece(x),
            lambda x: model.detokenize([x]),
            lambda x: session.generate(PROMPT, top_k=x),
            lambda x: session.generate(PROMPT, stop_tokens=[x]),
            lambda x: quern.Model(DRAFT, n_threads=x),
            lambda x: model.batch().add(PROMPT, completions=x),
        ]
        self.all_refused(HUGE, calls, quern.QuernError)
        wide = [2**63, 2**64, 2**1000, -(2**63) - 1, -(2**1000)]
        calls = [
            lambda x: session.truncate(x) if x > 0 else session.generate(PROMPT, max_tokens=x),
            lambda x: model.session(context=x),
            lambda x: model.memory(x),
            lambda x: model.batch(bytes=x),
            lambda x: session.generate(PROMPT, max_tokens=x),
        ]
        self.all_refused(wide, calls, quern.QuernError)
        with self.check(quern.ArgumentError, "temperature", "1e+300"):
            session.generate(PROMPT, temperature=1e300)
        with self.check(quern.ArgumentError, "temperature"):
            session.generate(PROMPT, temperature=float("nan"))
        with self.check(quern.ArgumentError, "n_threads is 4294967296"):
            quern.Model(DRAFT, n_threads=2**32)
        with self.check(quern.LimitError, str(2**62)):
            model.session(context=2**62)

    def test_prompts(self):
        model, session = self.model, self.model.session()
        wrong = [3, 2.5, object(), [None], ["a"], [[1]], [1.5], {"a": 1}, [2**31], [-1], [4096]]
        calls = [
            session.set_prompt,
            session.prefill,
            session.generate,
            model.logits,
            model.batch().add,
        ]
        for call in calls[1:]:
            self.all_refused(wrong, [lambda x: call(x)])
        self.all_refused(wrong, [lambda x: model.embed([x])])
        for empty in ([], ""):
            with self.check(quern.QuernError):
                model.logits(empty)
            with self.check(quern.QuernError):
                session.generate(empty)
        for wrong in (3, None, object()):
            with self.check(TypeError, "texts must be a text or a list"):
                model.embed(wrong)
            if wrong is not None:
                with self.check(TypeError, "a text or a list of token ids"):
                    session.generate(wrong)
            with self.check(TypeError, "text must be str or bytes"):
                model.tokenize(wrong)
        for name in ("logits_hook", "draft_hook"):
            with self.check(TypeError, f"{name} must be a function, not int"):
                session.generate(PROMPT, **{name: 3})
        self.assertEqual(tuple(model.embed(["x"]).shape), (1, model.width))

    def test_options(self):
        session = self.model.session()
        for wrong in ("a string", 3, None):
            with self.check(TypeError, "stops"):
                session.generate(PROMPT, stops=wrong)
        for name in ("grammar", "draft"):
            with self.check(TypeError, name):
                session.generate(PROMPT, **{name: "x"})
        with self.check(TypeError, "options"):
            session.generate(PROMPT, {"max_tokens": 3})
        with self.check(TypeError, "sampling"):
            session.generate(PROMPT, sampling=3)
        with self.check(TypeError, "there is no option"):
            session.generate(PROMPT, sampling={"heat": 3})
        with self.check(TypeError, "biases"):
            session.generate(PROMPT, biases=[1])
        with self.check(TypeError, "True or False"):
            session.generate(PROMPT, ignore_end="yes")
        with self.check(TypeError, "tokenizer"):
            quern.Grammar(self.model, json=True)
        with self.check(TypeError, "snapshot"):
            session.restore(session)
        with self.check(quern.StateError, "another session"):
            session.restore(self.model.session().snapshot())
        for adapters in ([3], [(None, 1)], [("x", "y")], [("x", 1, 2, 3)], 3):
            with self.assertRaises((TypeError, quern.QuernError)):
                quern.Model(DRAFT, adapters=adapters)

    def test_models(self):
        for make in (quern.Session, quern.Chat, quern.Batch):
            for wrong in (None, 3, "model.gguf", self.model.tokenizer, self.model._use()):
                with self.check(TypeError, "model must be a Model"):
                    make(wrong)

    def test_nul_bytes(self):
        for call in (
            lambda: quern.Model("a\0b"),
            lambda: self.model.chat("a\0b"),
            lambda: self.model.generate(PROMPT, stops=["a\0b"]),
        ):
            with self.check(quern.ArgumentError, "NUL at byte 1 of 3"):
                call()
        with self.check(quern.QuernError):
            self.model.chat().add("user", "a\0b")

    def test_surrogates(self):
        with self.assertRaises(UnicodeEncodeError):
            self.model.tokenize("\ud800")


class Threads(Case):
    def test_two_threads_with_one_session(self):
        session = self.model.session()
        fork = session.fork()
        inside, go_on = threading.Event(), threading.Event()

        def hook(told):
            inside.set()
            go_on.wait()

        def hold():
            session.generate(PROMPT, max_tokens=2, logits_hook=hook)

        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait()
        for call in (
            lambda: session.generate("x"),
            lambda: session.tokens,
            lambda: session.truncate(0),
            lambda: fork.prefill("x"),
            lambda: list(fork.stream("x")),
            lambda: session.save(),
            lambda: session.logits,
        ):
            with self.check(quern.StateError, "in use"):
                call()
        fork.close()  # is destroyed when the other thread is done
        dead = session._family.guard._waiting
        self.assertEqual(len(dead), 1)
        go_on.set()
        thread.join()
        self.assertEqual(len(dead), 0)
        self.assertEqual(len(session.generate(PROMPT, max_tokens=2).tokens), 2)

    def test_a_callback_cannot_use_its_own_session(self):
        session = self.model.session()
        with self.check(quern.StateError, "in use"):
            session.generate(PROMPT, logits_hook=lambda told: session.step())

    def test_many_threads_share_a_model(self):
        want = self.model.generate(PROMPT, max_tokens=8).tokens
        got, errors = [], []

        def work():
            try:
                for _ in range(3):
                    got.append(self.model.generate(PROMPT, max_tokens=8).tokens)
                    self.model.embed(PROMPT)
                    self.model.grammar(regex="[ab]+")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        self.assertEqual(got, [want] * 18)

    def test_threads_that_fight_for_a_session(self):
        session = self.model.session()
        results, refused, errors = [], [], []

        def work():
            for _ in range(40):
                try:
                    results.append(session.generate(PROMPT, max_tokens=2).tokens)
                    session.fork().close()
                except quern.StateError as error:
                    refused.append(error)
                except BaseException as error:
                    errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        self.assertEqual({tuple(tokens) for tokens in results}, {tuple(results[0])})
        session.generate(PROMPT, max_tokens=1)

    def test_a_batch_is_stepped_by_one_thread_and_filled_by_many(self):
        batch = self.model.batch()
        rows, errors = [], []

        def add():
            try:
                for _ in range(5):
                    rows.append(batch.add(PROMPT, max_tokens=4))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            batch.step()
        batch.run()
        self.assertEqual(errors, [])
        self.assertEqual({row.text for row in rows}, {rows[0].text})
        self.assertEqual(len(rows), 20)
        with self.check(quern.StateError, "in use"):
            batch.add(PROMPT, on_event=lambda event: batch.step())
            batch.run()

    def test_rows_can_be_removed_by_callbacks_and_other_threads(self):
        batch = self.model.batch()
        rows = []
        rows.append(batch.add(PROMPT, on_event=lambda event: rows[1].remove()))
        rows.append(batch.add(PROMPT))
        rows.append(batch.add(PROMPT, on_event=lambda event: rows[2].remove()))
        other = threading.Thread(target=lambda: rows[0].remove())
        batch.step()
        batch.step()
        other.start()
        other.join()
        batch.run()
        self.assertEqual([row.result.reason for row in rows], ["caller"] * 3)

    def test_waiting_is_ended_by_others(self):
        batch = self.model.batch()
        waker = threading.Thread(target=batch.wake)
        waker.start()
        self.assertFalse(batch.wait())
        waker.join()
        batch.wake()
        self.assertFalse(batch.wait(float("inf")))
        with self.assertRaises(ValueError):
            batch.wait(float("nan"))
        with self.check(TypeError, "timeout"):
            batch.wait("1")
        adder = threading.Thread(target=lambda: batch.add(PROMPT, max_tokens=1))
        adder.start()
        self.assertTrue(batch.wait())
        adder.join()


class Forks(Case):
    def test_a_forked_process_is_told_so(self):
        session = self.model.session()
        stream = session.stream(PROMPT)
        next(stream)
        chat, view = self.model.chat(), self.model.logits(PROMPT).rows
        want = bytes(view)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                calls = (
                    lambda: self.model.tokenize("x"),
                    lambda: session.tokens,
                    lambda: chat.ask("x"),
                    lambda: next(stream),
                    lambda: self.model.session(),
                )
                for call in calls:
                    try:
                        call()
                    except quern.StateError as error:
                        assert str(os.getpid()) in str(error) and "process" in str(error), error
                    else:
                        raise AssertionError("no error")
                assert bytes(view) == want
                stream.close()
                session.close()
                del chat, view
                own = quern.Model(DRAFT)  # a model of its own works
                assert len(own.generate(PROMPT, max_tokens=3).tokens) == 3
                assert len(list(own.session().stream(PROMPT, max_tokens=3))) == 4
                status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(len(list(stream)) > 0, True)
        self.assertEqual(len(self.model.generate(PROMPT, max_tokens=3).tokens), 3)


if __name__ == "__main__":
    unittest.main()
