"""Models, tokenizers, numbers: what goes in and what comes out."""

import math
import mmap
import struct
import unittest
import weakref

from rig import DRAFT, HYBRID, MINI, PROMPT, SOURCE, Case, has_numpy, is_alive, quern


class Tokens(Case):
    def test_there_and_back(self):
        for text in ("Hello, world", "", "\xe4\xf6\xfc \u20ac\U0001f600", "a\0b", "<|im_end|>"):
            ids = self.model.tokenize(text)
            self.assertEqual(self.model.detokenize(ids), text)
            self.assertEqual(self.model.tokenize(text.encode()), ids)

    def test_special_tokens(self):
        tokenizer = self.model.tokenizer
        end = tokenizer.find("<|im_end|>")
        self.assertEqual(tokenizer.encode("<|im_end|>", special=True), [end])
        self.assertGreater(len(tokenizer.encode("<|im_end|>")), 1)
        self.assertEqual(tokenizer.decode([end]), "")
        self.assertEqual(tokenizer.decode([end], special=True), "<|im_end|>")
        self.assertTrue(tokenizer.is_end(end))
        self.assertIsNone(tokenizer.find("no such token"))
        self.assertEqual(tokenizer.piece(end), "<|im_end|>")
        self.assertEqual((tokenizer.n_tokens, tokenizer.kind), (4096, "BPE"))
        self.assertEqual(tokenizer.eot, end)
        self.assertIsNone(tokenizer.unk)

    def test_bytes_of_characters_are_held_back(self):
        tokenizer = self.model.tokenizer
        ids = tokenizer.encode("\U0001f600 smile")
        self.assertEqual(b"".join(map(tokenizer.token_bytes, ids)).decode(), "\U0001f600 smile")
        decoder = tokenizer.decoder()
        self.assertEqual(decoder.next(ids[0]), "")
        self.assertEqual(decoder.finish(), "\ufffd")
        self.assertEqual("".join(map(decoder.next, ids)) + decoder.finish(), "\U0001f600 smile")

    def test_limits_and_errors(self):
        tokenizer = quern.Tokenizer(DRAFT)
        with self.check(quern.LimitError, "3"):
            tokenizer.encode("one two three four five six", max_tokens=3)
        for token in (-1, 4096):
            with self.check(quern.ArgumentError, str(token)):
                tokenizer.piece(token)
        with self.check(quern.ArgumentError, "4096"):
            tokenizer.decode([4096])
        with self.check(quern.FileError, "nowhere"):
            quern.Tokenizer("nowhere.json")

    def test_a_long_text(self):
        ids = self.model.tokenize("a cat " * 20000)
        self.assertEqual(self.model.detokenize(ids), "a cat " * 20000)


class Models(Case):
    def test_what_it_is(self):
        info = self.model.info
        self.assertEqual((info["architecture"], info["n_layers"]), ("qwen3", 2))
        self.assertEqual(self.model.n_vocab, 4096)
        self.assertEqual(self.model.config["model"]["architecture"], "qwen3")
        self.assertEqual(self.model.memory(256)["weights"], self.model.memory(512)["weights"])
        self.assertIsInstance(self.model.sampling, quern.Sampling)

    def test_options(self):
        lines, done = [], []
        opened = quern.Model(
            DRAFT,
            numerics="fast",
            cache_type="q8_0",
            device="cpu:portable",
            log=lambda level, message: lines.append((level, message)),
            progress=lambda n, total: done.append((n, total)),
        )
        self.assertEqual(
            (opened.info["device"], opened.info["cache_type"]), ("cpu:portable", "q8_0")
        )
        self.assertEqual(done[-1][0], done[-1][1])
        self.assertTrue(all(level in ("info", "warning", "debug") for level, _ in lines))
        with self.check(quern.StoppedError):
            quern.Model(DRAFT, progress=lambda n, total: False)

    def test_rope_scaling_and_errors_of_the_library(self):
        longer = quern.Model(DRAFT, rope_scaling="yarn", rope_factor=2)
        self.assertEqual(longer.context, 2 * self.model.context)
        with self.check(quern.FileError, "nowhere.gguf"):
            quern.Model("nowhere.gguf")
        with self.check(quern.FormatError, "CMakeLists.txt"):
            quern.Model(SOURCE / "CMakeLists.txt")
        with self.check(quern.QuernError, "turbo"):
            quern.Model(DRAFT, device="turbo")
        with self.check(quern.ArgumentError, "wrong", "exact, balanced, fast, tensor"):
            quern.Model(DRAFT, numerics="wrong")
        with self.check(quern.ArgumentError, "one of: auto, f32, f16, q8_0, q4_0, q8_0r, q4_0r"):
            quern.Model(DRAFT, cache_type="dir_keep")

    def test_errors_are_those_of_python_too(self):
        with self.assertRaises(MemoryError) as caught:
            self.model.batch(bytes=1)
        self.assertIsInstance(caught.exception, quern.NoMemoryError)
        with self.assertRaises(OSError):
            quern.Model("nowhere.gguf")
        with self.assertRaises(ValueError):
            self.model.tokenizer.decode([-1])
        for error in (quern.FileError, quern.LimitError, quern.StoppedError):
            self.assertTrue(issubclass(error, quern.QuernError))
        with self.assertRaises(quern.QuernError) as caught:
            self.model.tokenizer.decode([-1])
        self.assertEqual(caught.exception.kind, "ARGUMENT")


class Memory(Case):
    def test_files_in_memory(self):
        want = self.model.generate(PROMPT, max_tokens=5).tokens
        data = DRAFT.read_bytes()
        with open(DRAFT, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        writable = bytearray(data)
        for kind in (data, mapped, writable, memoryview(data)):
            opened = quern.Model({"model.gguf": kind})
            self.assertEqual(opened.generate(PROMPT, max_tokens=5).tokens, want)
        opened = quern.Model({"model.gguf": writable})
        with self.assertRaises(BufferError):
            writable.clear()  # the model reads it
        opened.close()
        writable.clear()  # and not any more

    def test_what_is_no_file(self):
        for wrong in (None, 3, "text", [1]):
            with self.check(TypeError, "model.gguf must be bytes"):
                quern.Model({"model.gguf": wrong})
        with self.check(TypeError, "name"):
            quern.Model({3: b""})
        for wrong in ({}, {"model.gguf": b""}, {"model.gguf": b"GGUF"}, {"a/b": b"x"}):
            with self.check(quern.QuernError):
                quern.Model(wrong)


class Numbers(Case):
    def rows(self, made, n):
        """Rows of an array, by the bytes that it shows."""
        data = bytes(made)
        return [struct.unpack(f"{n}f", data[i : i + 4 * n]) for i in range(0, len(data), 4 * n)]

    def test_logits_are_those_of_a_session(self):
        ids = self.model.tokenize("Once upon a time there was")
        all_rows = self.model.logits(ids, all_rows=True, hidden=True)
        self.assertEqual(tuple(all_rows.rows.shape), (len(ids), 4096))
        self.assertEqual(tuple(all_rows.hidden.shape), (3, len(ids), self.model.width))
        self.assertIsNone(all_rows.mtp)
        last = self.model.logits(ids)
        self.assertEqual(tuple(last.rows.shape), (1, 4096))
        want = self.rows(all_rows.rows, 4096)
        self.assertEqual(self.rows(last.rows, 4096), want[-1:])
        session = self.model.session()
        self.assertEqual(self.rows(session.prefill(ids[:3]), 4096), want[2:3])
        self.assertEqual(self.rows(session.feed(ids[3]), 4096), want[3:4])
        self.assertEqual(self.rows(session.feed_all(ids[4:]), 4096), want[4:])

    def test_prediction_head(self):
        with quern.Model(HYBRID, mtp=True) as hybrid:
            ids = hybrid.tokenize(PROMPT)
            made = hybrid.logits(ids, mtp=True, all_rows=True)
            self.assertEqual(tuple(made.mtp.shape), (len(ids) - 1, 4096))

    def test_embeddings(self):
        texts = ["a cat sleeps", "the cat is asleep", "12 + 30 = 42"]
        many = self.model.embed(texts, normalize=True, pooling="mean")
        width = self.model.width
        self.assertEqual(tuple(many.shape), (3, width))
        rows = self.rows(many, width)
        for i, text in enumerate(texts):
            one = self.model.embed(text, normalize=True, pooling="mean")
            self.assertEqual(tuple(one.shape), (width,))
            self.assertEqual(self.rows(one, width), rows[i : i + 1])
            self.assertAlmostEqual(sum(x * x for x in rows[i]), 1, places=5)
        ids = self.model.tokenize(texts[0], add_ends=True)
        self.assertEqual(self.rows(self.model.embed([ids], normalize=True), width), rows[:1])
        self.assertNotEqual(self.rows(self.model.embed(texts[0], pooling="last"), width), rows[:1])

    def test_progress_of_embeddings_stops(self):
        told = []

        def progress(done, total):
            told.append((done, total))
            return len(told) < 2

        with self.check(quern.StoppedError):
            self.model.embed(["a cat sleeps"] * 4, chunk=4, progress=progress)
        self.assertEqual(len(told), 2)

    def test_kind_of_array(self):
        made = self.model.logits(PROMPT).rows
        if has_numpy():
            import numpy

            self.assertIsInstance(made, numpy.ndarray)
            self.assertEqual(made.dtype, numpy.float32)
            self.assertFalse(made.flags.owndata)  # it shows the library's memory
            self.assertEqual(
                int(made[0].argmax()), self.model.session().generate(PROMPT, max_tokens=1).tokens[0]
            )
            made[0, 0] = -math.inf  # and it is the caller's now
        else:
            self.assertIsInstance(made, memoryview)
            self.assertEqual((made.format, made.ndim), ("f", 2))
            row = made.tolist()[0]
            self.assertEqual(
                row.index(max(row)), self.model.session().generate(PROMPT, max_tokens=1).tokens[0]
            )
            made[0, 0] = -math.inf

    def test_token_ids_come_in_many_forms(self):
        ids = self.model.tokenize(PROMPT)
        want = self.rows(self.model.logits(ids).rows, 4096)
        forms = [tuple(ids), iter(ids)]
        if has_numpy():
            import numpy

            forms += [numpy.array(ids), numpy.array(ids, dtype=numpy.int32), numpy.array(ids)[::1]]
        for form in forms:
            self.assertEqual(self.rows(self.model.logits(form).rows, 4096), want)
        self.assertEqual(tuple(self.model.logits(range(3), all_rows=True).rows.shape), (3, 4096))


class Lifetimes(unittest.TestCase):
    def test_a_view_outlives_everything(self):
        model = quern.Model(DRAFT)
        made = model.logits(PROMPT)
        want = bytes(made.rows)
        row = made.rows[0:1]
        session = model.session()
        session.prefill(PROMPT)
        fed = session.feed_all([5, 6])
        kept = bytes(fed)
        session.close()
        model.close()
        del made, session, model
        others = [quern.Model(DRAFT).logits([i, i + 1]).rows for i in range(4)]
        self.assertEqual(bytes(row), want)
        self.assertEqual(bytes(fed), kept)
        self.assertEqual(len(others), 4)

    def test_memory_of_a_view_goes_with_the_last_of_it(self):
        model = quern.Model(DRAFT)
        made = model.logits(PROMPT).rows
        owner = made.base if has_numpy() else made.obj
        owner = weakref.ref(getattr(owner, "obj", owner).owner)
        part = made[0:1]
        del made
        self.assertTrue(is_alive(owner))
        del part
        self.assertFalse(is_alive(owner))

    def test_an_engine_lives_as_long_as_what_needs_it(self):
        def opened(what):
            model = quern.Model(MINI)
            made = what(model)
            model.close()
            with self.assertRaises(quern.StateError):
                model.tokenize("x")
            return made, weakref.ref(made._use().needs[0])

        uses = {
            "session": (lambda m: m.session(), lambda s: s.generate(PROMPT, max_tokens=3)),
            "tokenizer": (lambda m: m.tokenizer, lambda t: t.encode("a cat")),
            "batch": (lambda m: m.batch(), lambda b: (b.add(PROMPT, max_tokens=2), b.run())),
        }
        for name, (make, use) in uses.items():
            made, engine = opened(make)
            use(made)
            self.assertTrue(is_alive(engine), name)
            made.close()
            self.assertFalse(is_alive(engine), name)

    def test_cycles_are_finalized_in_any_order(self):
        for turn in range(8):
            model = quern.Model(DRAFT)
            engine = weakref.ref(model._use())
            session, chat, batch = model.session(), model.chat(), model.batch()
            session.prefill(PROMPT)
            grammar = model.grammar(regex="[ab]+")
            batch.add(PROMPT, grammar=grammar)
            batch.step()
            decoder = model.tokenizer.decoder()
            made = [
                model,
                session,
                session.fork(),
                session.snapshot(),
                chat,
                batch,
                grammar,
                decoder,
            ]
            made = made[turn:] + made[:turn]
            for handle in made:
                handle.cycle = made
            del model, session, chat, batch, grammar, decoder, made, handle
            self.assertFalse(is_alive(engine))

    def test_chats_grammars_forks_and_streams_too(self):
        model = quern.Model(DRAFT)
        engine = weakref.ref(model._use())
        chat = model.chat()
        grammar = model.grammar(regex="[a-z]+")
        session = model.session()
        session.prefill(PROMPT)
        fork, snapshot = session.fork(), session.snapshot()
        stream = fork.stream(max_tokens=9)
        next(stream)
        model.close()
        session.close()
        fork.close()
        chat.ask("What is 2 + 2?", grammar=grammar, max_tokens=4)
        chat.close()
        grammar.close()
        snapshot.close()
        self.assertTrue(is_alive(engine))
        self.assertEqual(len(list(stream)), 9)
        del stream
        self.assertFalse(is_alive(engine))


if __name__ == "__main__":
    unittest.main()
