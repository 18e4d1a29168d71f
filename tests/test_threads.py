"""Threads that wait for what cannot be given up."""

import asyncio
import threading
import time

import pytest

from kvpressure.threads import Threads


def test_results_and_faults():
    """Both come back to whoever waits, as from any executor."""

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(Threads())
        assert await asyncio.to_thread(int, "7", base=8) == 7
        with pytest.raises(ValueError, match="invalid literal"):
            await asyncio.to_thread(int, "x")

    asyncio.run(main())


def test_at_most_so_many_at_a_time():
    """Others wait for their turn, and one that is given up before it is never made."""
    release, made = threading.Event(), []

    def hang(number):
        made.append(number)
        release.wait(30)

    threads = Threads(2)
    calls = [threads.submit(hang, number) for number in range(4)]
    while len(made) < 2:
        time.sleep(0.001)
    assert calls[3].cancel()
    assert not calls[2].running()
    release.set()
    for call in calls[:3]:
        call.result(30)
    assert sorted(made) == [0, 1, 2]


def test_nobody_waits_for_a_call_that_hangs():
    """Not the end of the event loop; tests/test_serve.py shows that of the process."""
    release = threading.Event()

    async def main():
        asyncio.get_running_loop().set_default_executor(Threads())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(release.wait), 0.05)

    began = time.monotonic()
    try:
        asyncio.run(main())
    finally:
        release.set()
    assert time.monotonic() - began < 10
