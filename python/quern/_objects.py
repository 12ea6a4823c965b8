"""Lifetimes and threads.

A Resource is an object of the library. It is destroyed when nothing in Python refers to it any
more: not the object that a program has, not a call in progress, not an array that shows its memory,
not a resource that needs it. So closing is letting go, and nothing is ever used after it was
destroyed, whatever is closed first. Only the process that made a resource uses or destroys it:
after a fork the other one has its memory, but not its threads.
"""

import atexit
import collections
import contextvars
import ctypes
import os
import threading
import weakref
from typing import Any, Callable, Deque, Generic, Iterator, Optional, Tuple, TypeVar
from contextlib import contextmanager

from ._errors import StateError
from ._library import call, callback, lib, pointer_to

T = TypeVar("T")
R = TypeVar("R", bound="Handle")


class Resource:
    """An object of the library, the function that destroys it, and what must outlive it."""

    def __init__(self, pointer: Any, destroy: Callable[[Any], Any], *needs: Any) -> None:
        self.pointer = pointer
        self.needs = needs
        self.pid = os.getpid()
        self._destroy = destroy
        self._getpid = os.getpid  # at the end of a program modules may be gone

    def __del__(self) -> None:
        if self._getpid() == self.pid:
            self._destroy(self.pointer)


def make(
    kind: str, create: Any, destroy: Any, *arguments: Any, needs: Tuple[Any, ...] = ()
) -> Resource:
    """What a function of the library creates: its first parameter is the place for it."""
    place = pointer_to(kind)
    call(create, ctypes.byref(place), *arguments)
    return Resource(place, destroy, *needs)


class Handle:
    """The base of what programs hold: closed by close(), by `with`, or by being forgotten."""

    _what = "object"
    _resource: Optional[Resource] = None

    def _use(self) -> Resource:
        """Whoever makes a call holds what this returns until the call is over."""
        resource = self._resource
        if resource is None:
            raise StateError(f"the {self._what} is closed")
        if resource.pid != os.getpid():
            raise StateError(
                f"the {self._what} belongs to process {resource.pid}, and this is {os.getpid()}: "
                "open it after the fork"
            )
        return resource

    def close(self) -> None:
        """Lets go of it. What is still needed by others, such as the model of a session or the
        memory of an array, is released with the last of them."""
        self._resource = None

    @property
    def closed(self) -> bool:
        return self._resource is None

    def __enter__(self: R) -> R:
        self._use()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


# --- stopping ---


class StopFlag:
    """A flag that ends calls which were given it, from any thread."""

    def __init__(self) -> None:
        self._flag = make("qn_stop_flag", lib.qn_stop_flag_create, lib.qn_stop_flag_destroy)
        self.pointer = self._flag.pointer

    def set(self) -> None:
        lib.qn_stop_flag_set(self.pointer)

    def clear(self) -> None:
        lib.qn_stop_flag_clear(self.pointer)

    def is_set(self) -> bool:
        return bool(lib.qn_stop_flag_is_set(self.pointer))


def progress_callback(stop: StopFlag, progress: Optional[Callable[[int, int], Any]]) -> Any:
    """For calls that are stopped by their progress alone. A function that returns False stops."""

    @callback("qn_progress_fn", failed=False)
    def told(_: Any, done: int, total: int) -> bool:
        goes_on = progress is None or progress(done, total) is not False
        return goes_on and not stop.is_set()

    return told


# --- threads ---


class Task(Generic[T]):
    """A function on a thread of its own, which is stopped and waited for when the program ends."""

    _running: "weakref.WeakSet[Task[Any]]" = weakref.WeakSet()

    def __init__(self, work: Callable[[], T], stop: Callable[[], None]) -> None:
        self.stop = stop
        self.ended = threading.Event()
        self._work = contextvars.copy_context().run
        self._function: Optional[Callable[[], T]] = work
        self._result: Optional[T] = None
        self._error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, name="quern", daemon=True)

    def start(self) -> None:
        Task._running.add(self)
        self._thread.start()

    def _run(self) -> None:
        try:
            assert self._function
            self._result = self._work(self._function)
        except BaseException as error:
            self._error = error
        finally:
            self._function = None  # with all that it holds
            self.ended.set()

    def is_mine(self) -> bool:
        return threading.current_thread() is self._thread

    def result(self) -> T:
        self.ended.wait()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self.forget()
        return self._result  # type: ignore[return-value]

    def forget(self) -> None:
        """An error that is kept would keep all that its traceback passes."""
        self._error = None

    @staticmethod
    def stop_all() -> None:
        for task in list(Task._running):
            task.stop()
            task.ended.wait()


atexit.register(Task.stop_all)
os.register_at_fork(after_in_child=Task._running.clear)


def run(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """Runs a call that may take long. Signals are Python's own only on the main thread, between
    two of its instructions; so there the call gets another thread, and Ctrl-C stops it."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    task = Task(work, stop)
    task.start()
    try:
        task.ended.wait()
    except BaseException:
        stop()
        task.ended.wait()
        task.forget()
        raise
    return task.result()


class Guard:
    """Lets one thread at a time use a session and all that shares its state. Whoever comes second
    is told so; what is destroyed meanwhile is destroyed when the first one is done."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._dead: Deque[Tuple[Callable[[Any], Any], Any, Any]] = collections.deque()

    def enter(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise StateError(
                f"the {self._what} is in use by another call: of another thread, of a stream that "
                "has not ended, or the one that this callback belongs to"
            )

    def leave(self) -> None:
        while True:
            while self._dead:
                destroy, pointer, _ = self._dead.popleft()
                destroy(pointer)
            self._lock.release()
            # Something may have come between the last look and the release.
            if not self._dead or not self._lock.acquire(blocking=False):
                return

    @contextmanager
    def held(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def destroys(self, destroy: Callable[[Any], Any], *needs: Any) -> Callable[[Any], None]:
        """`destroy` for a resource of this family; `needs` live until it has been called."""

        def when_free(pointer: Any) -> None:
            self._dead.append((destroy, pointer, needs))
            if self._lock.acquire(blocking=False):
                self.leave()

        return when_free
