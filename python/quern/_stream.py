"""Answers that are read while they come.

The library tells an answer by a callback, and Python reads it by a loop. So the call runs on a
thread of its own, hand in hand with the loop: it goes on when the next event is asked for, and not
before. A loop that is left ends the answer exactly there, and nothing was computed in vain.
"""

import asyncio
import os
import threading
from typing import Any, Callable, Generic, List, Optional, TypeVar

from ._errors import StateError
from ._objects import Task

E = TypeVar("E")  # what is told while it comes
R = TypeVar("R")  # what is there in the end
S = TypeVar("S", bound="Stream[Any, Any]")


class _Channel(Generic[E]):
    """One event at a time from the call to the loop."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._changed = threading.Condition()
        self._stop = stop
        self._events: List[E] = []  # one or none
        self._is_wanted = False
        self._is_cancelled = False
        self.has_ended = False
        self._listener: Optional[Callable[[], None]] = None

    # --- of the call ---

    def put(self, event: E) -> bool:
        """Tells the loop, and waits until it wants the next. False: it wants no more."""
        with self._changed:
            if self._is_cancelled:
                return False
            self._events.append(event)
            self._is_wanted = False
            self._tell()
            while not self._is_wanted and not self._is_cancelled:
                self._changed.wait()
            return not self._is_cancelled

    def end(self) -> None:
        with self._changed:
            self.has_ended = True
            self._tell()

    def _tell(self) -> None:
        self._changed.notify_all()
        listener, self._listener = self._listener, None
        if listener:
            listener()

    # --- of the loop ---

    def ask(self) -> None:
        with self._changed:
            self._is_wanted = True
            self._changed.notify_all()

    def wait(self) -> None:
        """Until there is an event, or the end."""
        with self._changed:
            while not self._events and not self.has_ended:
                self._changed.wait()

    def listen(self, listener: Callable[[], None], only_end: bool = False) -> None:
        """The same for a loop that must not wait: the listener is called once, on any thread."""
        with self._changed:
            if self.has_ended or self._events and not only_end:
                listener()
            else:
                self._listener = listener

    def take(self) -> Optional[E]:
        with self._changed:
            return self._events.pop() if self._events else None

    def cancel(self) -> None:
        with self._changed:
            self._is_cancelled = True
            self._events.clear()
            self._stop()  # for a call that is computing
            self._changed.notify_all()


class Stream(Generic[E, R]):
    """An answer while it comes: `for event in stream`, or `async for`, and then `stream.result`.

    Nothing is computed before the first event is asked for. Leaving the loop, close(), Ctrl-C and
    the cancellation of a task end the answer where it is.
    """

    def __init__(self, work: Callable[[Callable[[E], bool]], R], stop: Callable[[], None]) -> None:
        channel: _Channel[E] = _Channel(stop)

        def worker() -> R:
            try:
                return work(channel.put)
            finally:
                channel.end()

        self._channel = channel
        self._task = Task(worker, channel.cancel)
        self._pid = os.getpid()
        self._is_started = False
        self._is_done = False
        self._result: Optional[R] = None
        self._turn = threading.Lock()

    def _ask(self) -> None:
        if self._pid != os.getpid():
            raise StateError(
                f"the stream belongs to process {self._pid}, and this is {os.getpid()}"
            )
        if not self._is_started:
            self._is_started = True
            self._channel.ask()
            try:
                self._task.start()
            except RuntimeError:  # there cannot be another thread
                self._is_done = True
                raise
        else:
            self._channel.ask()

    def _take(self) -> E:
        """What has come; the end is the end of the loop, or an error."""
        event = self._channel.take()
        if event is not None:
            return event
        self._is_done = True
        self._result = self._task.result()
        raise StopIteration

    def _begin_turn(self) -> None:
        if not self._turn.acquire(blocking=False):
            raise StateError("the stream is read by two loops at a time")

    # --- loops ---

    def __iter__(self: S) -> S:
        return self

    def __next__(self) -> E:
        if self._is_done:
            raise StopIteration
        self._begin_turn()
        try:
            self._ask()
            self._channel.wait()
            return self._take()
        except KeyboardInterrupt:
            self.close()
            raise
        finally:
            self._turn.release()

    def __aiter__(self: S) -> S:
        return self

    async def __anext__(self) -> E:
        if self._is_done:
            raise StopAsyncIteration
        self._begin_turn()
        try:
            self._ask()
            await self._news()
            return self._take()
        except StopIteration:
            raise StopAsyncIteration from None
        except asyncio.CancelledError:
            await self.aclose()
            raise
        finally:
            self._turn.release()

    async def _news(self, only_end: bool = False) -> None:
        loop = asyncio.get_running_loop()
        came: "asyncio.Future[None]" = loop.create_future()

        def arrive() -> None:
            if not came.done():  # it may have been cancelled
                came.set_result(None)

        def tell() -> None:
            try:
                loop.call_soon_threadsafe(arrive)
            except RuntimeError:
                pass  # the loop was closed, and nobody waits

        self._channel.listen(tell, only_end)
        await came

    # --- ends ---

    @property
    def result(self) -> R:
        """The whole answer, once it has ended."""
        if self._result is None:
            raise StateError("the stream has no result before it has ended")
        return self._result

    def close(self) -> None:
        """Ends the answer where it is, and waits until it has ended."""
        if not self._stops():
            return
        self._keep_result()

    async def aclose(self) -> None:
        """The same without holding up the loop."""
        if not self._stops():
            return
        await self._news(only_end=True)
        self._keep_result()

    def _stops(self) -> bool:
        is_running = self._is_started and not self._is_done
        self._is_done = True
        if not is_running or self._pid != os.getpid():
            return False
        # A hook of the call itself cannot wait for it.
        return self._task.stop() and not self._task.is_mine()

    def _keep_result(self) -> None:
        try:
            self._result = self._task.result()
        except Exception:
            pass  # an answer that nobody waits for may have failed

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def __aenter__(self: S) -> S:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_is_done"):
            self.close()
