"""Streams: loops that are left, tasks that are cancelled, Ctrl-C, the end of a program."""

import asyncio
import threading
import unittest
import weakref

from rig import PROMPT, Case, is_alive, quern


class Loops(Case):
    def test_a_loop_that_is_left_ends_the_answer_there(self):
        session = self.model.session()
        whole = session.generate(PROMPT, max_tokens=30).tokens
        n = len(session.tokens) - 30
        for count in (1, 2, 7):
            got = []
            for event in session.stream(PROMPT, max_tokens=30):
                got.append(event.token)
                if len(got) == count:
                    break
            self.assertEqual(session.tokens[n:], whole[:count])  # no more, no less
            self.assertEqual(session.generate(max_tokens=3).tokens, whole[count : count + 3])

    def test_nothing_happens_before_it_is_read(self):
        session = self.model.session()
        stream = session.stream(PROMPT, max_tokens=3)
        self.assertEqual(session.tokens, [])
        session.generate("Another", max_tokens=1)  # not in use yet
        self.assertEqual(len([e for e in stream if e.token is not None]), 3)
        self.assertEqual(list(stream), [])
        unread = session.stream(PROMPT)
        unread.close()
        self.assertEqual(list(unread), [])
        with self.check(quern.StateError, "no result"):
            unread.result

    def test_close_and_with(self):
        session = self.model.session()
        with session.stream(PROMPT) as stream:
            next(stream)
            with self.check(quern.StateError, "in use"):
                session.generate(PROMPT)
        stream.close()
        self.assertEqual((stream.result.reason, len(stream.result.tokens)), ("caller", 1))
        session.generate(PROMPT, max_tokens=1)

    def test_errors_come_out_of_the_loop(self):
        session = self.model.session(context=8)
        with self.check(quern.QuernError, "8"):
            list(session.stream("word " * 30))
        with self.check(TypeError, "max_tokens"):
            session.stream(PROMPT, max_tokens="3")  # before it is read

        def fail(told):
            raise KeyError("here")

        stream = session.stream(PROMPT, logits_hook=fail)
        with self.check(KeyError, "here"):
            next(stream)
        with self.check(StopIteration):
            next(stream)

    def test_no_thread_is_left(self):
        stream = self.model.session().stream(PROMPT)

        def fail():
            raise RuntimeError("can't start new thread")

        stream._task._thread.start = fail
        with self.check(RuntimeError, "thread"):
            next(stream)
        self.assertEqual(list(stream), [])
        stream.close()

    def test_two_loops_over_one_stream(self):
        stream = self.model.session().stream(PROMPT)
        first, inside, go_on = threading.Event(), [], threading.Event()

        def hook(told):
            first.set()
            go_on.wait()

        stream = self.model.session().stream(PROMPT, max_tokens=2, logits_hook=hook)
        other = threading.Thread(target=lambda: inside.extend(stream))
        other.start()
        first.wait()
        with self.check(quern.StateError, "two loops"):
            next(stream)
        go_on.set()
        other.join()
        self.assertEqual(len(inside), 3)

    def test_a_hook_may_close_its_own_stream(self):
        session = self.model.session()
        streams = []
        hook = lambda told: streams[0].close() if len(told.tokens) > 6 else None  # noqa: E731
        streams.append(session.stream(PROMPT, logits_hook=hook))
        self.assertLess(len(list(streams[0])), 6)
        while True:  # the call ends by itself, on its own thread
            try:
                session.generate(PROMPT, max_tokens=1)
                break
            except quern.StateError:
                pass

    def test_forgotten_streams_leave_nothing(self):
        session = self.model.session()
        before = threading.active_count()
        for _ in range(20):
            next(session.stream(PROMPT))
        self.assertEqual(threading.active_count(), before)
        resource = weakref.ref(session._use())
        stream = session.stream(PROMPT)
        next(stream)
        del session
        self.assertTrue(is_alive(resource))
        stream = None
        self.assertFalse(is_alive(resource))


class Async(Case):
    def test_many_at_a_time_without_blocking(self):
        prompts = ["One", "Two", "Three"]
        # No answer chooses a token before the others can, too: a loop that waited for one of them
        # would wait forever.
        together = threading.Barrier(len(prompts), timeout=300)
        how = {"max_tokens": 10, "ignore_end": True}

        async def answer(prompt):
            session = self.model.session(context=64)
            stream = session.stream(prompt, logits_hook=lambda told: together.wait(), **how)
            return [event.token async for event in stream][:-1]

        async def all_of_them():
            return await asyncio.gather(*(answer(prompt) for prompt in prompts))

        for prompt, tokens in zip(prompts, asyncio.run(all_of_them())):
            self.assertEqual(tokens, self.model.generate(prompt, **how).tokens)

    def test_the_loop_goes_on_while_a_step_computes(self):
        async def work():
            computes, may_go_on = threading.Event(), threading.Event()

            def hook(told):
                computes.set()
                may_go_on.wait()

            stream = self.model.session().stream(PROMPT, max_tokens=1, logits_hook=hook)
            task = asyncio.ensure_future(stream.__anext__())
            await asyncio.get_running_loop().run_in_executor(None, computes.wait)
            await asyncio.sleep(0)  # the step stands still, and this loop does not
            self.assertFalse(task.done())
            may_go_on.set()
            event = await task
            self.assertIsNotNone(event.token)
            await stream.aclose()

        asyncio.run(work())

    def test_cancellation_ends_the_answer(self):
        async def work():
            session = self.model.session()
            reached, calls = asyncio.Event(), []
            loop = asyncio.get_running_loop()

            def hook(told):
                calls.append(len(told.tokens))
                if len(calls) == 3:
                    loop.call_soon_threadsafe(reached.set)
                    session._family.stop_seen.wait()

            async def read():
                async for _ in session.stream(PROMPT, logits_hook=hook):
                    pass

            # The third step stands until the cancellation has come to it.
            session._family.stop_seen = threading.Event()
            set_flag = session._family.stop.set
            session._family.stop.set = lambda: (set_flag(), session._family.stop_seen.set())
            task = asyncio.ensure_future(read())
            await reached.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(len(calls), 3)
            session.generate(PROMPT, max_tokens=1)  # free again, at once

        asyncio.run(work())

    def test_a_loop_that_is_left(self):
        async def work():
            session = self.model.session()
            n = len(self.model.tokenize(PROMPT, add_ends=True))
            async with session.stream(PROMPT) as stream:
                async for _ in stream:
                    break
            self.assertEqual(len(session.tokens), n + 1)
            async for _ in session.stream(PROMPT):
                break
            self.assertEqual(len(session.tokens), n + 1)
            chat = self.model.chat()
            async for event in chat.stream("What is 2 + 2?", max_tokens=9):
                self.assertIsInstance(event, quern.ChatEvent)
            self.assertEqual(len(chat), 2)

        asyncio.run(work())

    def test_errors(self):
        async def work():
            with self.check(quern.QuernError, "8"):
                async for _ in self.model.session(context=8).stream("word " * 30):
                    pass
            stream = self.model.session().stream(PROMPT, max_tokens=1)
            self.assertEqual(len([event async for event in stream]), 2)
            self.assertEqual([event async for event in stream], [])
            self.assertEqual(stream.result.reason, "length")

        asyncio.run(work())


INTERRUPTED = """
    import os, signal, threading, time
    model = quern.Model(DRAFT)
    session = model.session(chunk=4)
    is_sent = threading.Event()
    before = threading.active_count()

    def interrupt(flag):
        # Sends Ctrl-C, and stands still until it has come to the call: so it is in the midst of it.
        if not is_sent.is_set():
            is_sent.set()
            os.kill(os.getpid(), signal.SIGINT)
            while not flag():
                time.sleep(0.001)

    def check(work):
        is_sent.clear()
        try:
            work()
        except KeyboardInterrupt:
            assert is_sent.is_set()
            assert threading.active_count() == before
            print("interrupted")

    stopped = lambda: session._family.stop.is_set()
"""


class Interrupts(Case):
    def interrupted(self, script, times=1):
        out = self.run_script(INTERRUPTED + script)
        self.assertEqual(out, "interrupted\n" * times)

    def test_generate(self):
        self.interrupted(
            """
    check(lambda: session.generate(PROMPT, logits_hook=lambda told: interrupt(stopped)))
    assert len(session.tokens) < 12, len(session.tokens)
    assert len(session.generate(PROMPT, max_tokens=5).tokens) == 5
    """
        )

    def test_prefill_and_streams(self):
        self.interrupted(
            """
    def progress(done, total):
        interrupt(stopped)
    session = model.session(chunk=4, progress=progress)
    check(lambda: session.prefill("word " * 100))
    assert 0 < session.n_cached < 50, session.n_cached
    check(lambda: list(session.stream(PROMPT, logits_hook=lambda told: interrupt(stopped))))
    session.generate(PROMPT, max_tokens=1)
    """,
            times=2,
        )

    def test_between_events_of_a_stream(self):
        self.interrupted(
            """
    def read():
        for event in session.stream(PROMPT):
            is_sent.set()
            os.kill(os.getpid(), signal.SIGINT)
    check(read)
    session.generate(PROMPT, max_tokens=1)
    """
        )

    def test_chats_and_batches(self):
        self.interrupted(
            """
    chat = model.chat()
    stopped = lambda: chat._family.stop.is_set()
    check(lambda: chat.ask("Hello", logits_hook=lambda told: interrupt(stopped)))
    chat.ask("Hello", max_tokens=2)
    batch = model.batch()
    handled = threading.Event()
    def handle(*_):
        handled.set()
        raise KeyboardInterrupt
    signal.signal(signal.SIGINT, handle)
    row = batch.add(PROMPT, max_tokens=500, on_event=lambda event: interrupt(handled.is_set))
    check(batch.run)
    batch.run()
    assert row.done
    """,
            times=2,
        )

    def test_opening_and_embedding(self):
        self.interrupted(
            """
    from quern import _model
    flags = []
    made = _model.StopFlag
    _model.StopFlag = lambda: flags.append(made()) or flags[-1]
    tell = lambda done, total: interrupt(lambda: flags[-1].is_set())
    check(lambda: quern.Model(DRAFT, progress=tell))
    check(lambda: model.embed(["word " * 50] * 3, chunk=4, progress=tell))
    check(lambda: model.logits("word " * 50, chunk=4, progress=tell))
    """,
            times=3,
        )


class TheEnd(Case):
    def test_a_program_that_ends_in_the_midst_of_everything(self):
        out = self.run_script(
            """
            model = quern.Model(DRAFT)
            session, chat, batch = model.session(), model.chat(), model.batch()
            row = batch.add(PROMPT)
            batch.step()
            streams = [session.stream(PROMPT), chat.stream("Hello"), model.session().stream(PROMPT)]
            for stream in streams[:2]:
                next(stream)
            arrays = model.logits(PROMPT)
            view = arrays.rows[0:1]
            cycle = [model, session]
            cycle.append(cycle)
            print("done")
            """
        )
        self.assertEqual(out, "done\n")

    def test_sys_exit_in_a_hook_and_in_threads(self):
        out = self.run_script(
            """
            import threading
            model = quern.Model(DRAFT)
            def leave(told):
                sys.exit("left") if len(told.tokens) > 6 else None
            try:
                model.session().generate(PROMPT, logits_hook=leave)
            except SystemExit as error:
                print(error)
            session = model.session()
            started = threading.Event()
            def work():
                for event in session.stream(PROMPT):
                    started.set()
            threading.Thread(target=work, daemon=True).start()
            started.wait()
            """
        )
        self.assertEqual(out, "left\n")


if __name__ == "__main__":
    unittest.main()
