"""Threads for what asyncio cannot wait for by itself, such as names; they never keep the process from ending."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")

_Call = tuple["Future[Any]", Callable[[], Any]]


class Threads(ThreadPoolExecutor):
    """
    An event loop's default executor whose calls are given up when the process ends.

    The C library looks for a name for half a minute where no name server answers, and cannot be told to stop. With
    executors of the standard library, both the end of the event loop and that of the interpreter wait for it. asyncio
    takes no other base class.

    Args:
        most: calls at a time; others wait for their turn.
    """

    def __init__(self, most: int = 8) -> None:
        super().__init__(max_workers=1)  # never used: it starts no thread before its own first call
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._free = most

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":  # noqa: ANN401
        """Call it in a thread; its result or its exception is the future's."""
        future: Future[T] = Future()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        if self._free:
            self._free -= 1
            Thread(target=_work, args=(self._calls,), name="lookup", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002  # as it is there
        """Wait for nothing."""


def _work(calls: "SimpleQueue[_Call]") -> None:
    """Do one call after the other, until the process ends."""
    while True:
        future, call = calls.get()
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(call())
        except BaseException as fault:  # noqa: BLE001  # whoever waits for it decides
            future.set_exception(fault)
