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
from contextlib import contextmanager
from typing import Any, Callable, Deque, Generic, Iterator, List, Optional, Sequence, Set, TypeVar

from ._errors import StateError
from ._library import call, callback, lib, pointer_to

T = TypeVar("T")
R = TypeVar("R", bound="Handle")


class Resource:
    """An object of the library, and the function that destroys it. What it needs is destroyed
    later. References alone do not say so: what the garbage collector finds to be unreachable is
    finalized in any order. So needs are counted, by operations that no thread can interrupt."""

    def __init__(
        self,
        pointer: Any,
        destroy: Callable[[Any], Any],
        needs: Sequence["Resource"] = (),
        keeps: Any = None,  # what else must be there, such as its callbacks
        guard: "Optional[Guard]" = None,  # under which it is destroyed
    ) -> None:
        self.pointer = pointer
        self.pid = os.getpid()
        self.needs: List[Resource] = []
        self._destroy = destroy
        self._keeps = keeps
        self._guard = guard
        self._users: List[None] = []  # one for each that needs it
        self._is_forgotten = False
        self._once = [None]  # whoever takes it destroys
        self._getpid = os.getpid  # at the end of a program modules may be gone
        for need in needs:
            self.hold(need)

    def hold(self, need: "Resource") -> None:
        need._users.append(None)
        self.needs.append(need)

    def let_go(self, need: "Resource") -> None:
        self.needs.remove(need)
        need._users.pop()
        need._end_if_unused()

    def __del__(self) -> None:
        if self._getpid() == self.pid:
            self._is_forgotten = True
            self._end_if_unused()

    def _end_if_unused(self) -> None:
        if not self._is_forgotten or self._users:
            return
        try:
            self._once.pop()
        except IndexError:
            return  # another thread was here between both lines
        if self._guard:
            self._guard.run_when_free(self._end)
        else:
            self._end()

    def _end(self) -> None:
        self._destroy(self.pointer)
        for need in list(self.needs):
            self.let_go(need)


def make(
    kind: str,
    create: Any,
    destroy: Any,
    *arguments: Any,
    needs: Sequence[Resource] = (),
    keeps: Any = None,
    guard: "Optional[Guard]" = None,
) -> Resource:
    """What a function of the library creates: its first parameter is the place for it."""
    place = pointer_to(kind)
    try:
        call(create, ctypes.byref(place), *arguments)
    except BaseException:
        if place:  # it is there, but one of its callbacks has raised
            destroy(place)
        raise
    return Resource(place, destroy, needs, keeps, guard)


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


def engine_of(model: Any) -> Resource:
    """What a session, chat or batch is made for, which must be a model."""
    if not isinstance(model, Handle) or model._what != "model":
        raise TypeError(f"model must be a Model, not {type(model).__name__}")
    return model._use()


# --- stopping ---


class StopFlag:
    """A flag that ends calls which were given it, from any thread."""

    def __init__(self) -> None:
        self.resource = make("qn_stop_flag", lib.qn_stop_flag_create, lib.qn_stop_flag_destroy)
        self.pointer = self.resource.pointer

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

    _running: "Set[Task[Any]]" = set()

    def __init__(self, work: Callable[[], T], stop: Callable[[], None]) -> None:
        self._stop = stop
        self._context = contextvars.copy_context()
        self._function = [work]  # whoever takes it runs it, or sees to it that it never runs
        self._has_begun = False
        self._ended = threading.Event()
        self._result: Optional[T] = None
        self._error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, name="quern", daemon=True)

    def start(self) -> None:
        Task._running.add(self)
        self._thread.start()

    def _run(self) -> None:
        self._has_begun = True
        try:
            self._result = self._context.run(self._function.pop())
        except BaseException as error:
            self._error = error
        finally:
            Task._running.discard(self)
            self._ended.set()

    def is_mine(self) -> bool:
        return threading.current_thread() is self._thread

    def stop(self) -> bool:
        """Whether there is anything to wait for: Ctrl-C may have come before the thread began."""
        try:
            self._function.pop()
        except IndexError:
            self._stop()
            return True
        Task._running.discard(self)
        self._ended.set()
        return False

    def wait(self) -> None:
        self._ended.wait()
        if self._has_begun:
            self._thread.join()  # it is over in a moment, and then nothing of it is left

    def result(self) -> T:
        self.wait()
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
            if task.stop():
                task.wait()


atexit.register(Task.stop_all)
os.register_at_fork(after_in_child=Task._running.clear)


def run(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """Runs a call that may take long. Signals are Python's own only on the main thread, between
    two of its instructions; so there the call gets another thread, and Ctrl-C stops it."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    task = Task(work, stop)
    try:
        task.start()
        task.wait()
    except BaseException:
        if task.stop():
            task.wait()
        task.forget()
        raise
    return task.result()


class Guard:
    """Lets one thread at a time use a session and all that shares its state. Whoever comes second
    is told so; what is destroyed meanwhile is destroyed when the first one is done."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._waiting: Deque[Callable[[], None]] = collections.deque()

    def enter(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise StateError(
                f"the {self._what} is in use by another call: of another thread, of a stream that "
                "has not ended, or the one that this callback belongs to"
            )

    def leave(self) -> None:
        while True:
            while self._waiting:
                self._waiting.popleft()()
            self._lock.release()
            # Something may have come between the last look and the release.
            if not self._waiting or not self._lock.acquire(blocking=False):
                return

    @contextmanager
    def held(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def run_when_free(self, function: Callable[[], None]) -> None:
        """Now, or when whoever is inside leaves."""
        self._waiting.append(function)
        if self._lock.acquire(blocking=False):
            self.leave()
