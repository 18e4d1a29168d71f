"""
Users of a stand-in, as a process: each asks, reads its stream to the end, and asks again.

Every tenth of a second it writes down what they have seen. ``python -m tests.soak.users URL TRUTH PLAN``; the plan is
JSON: how many at a time (`concurrency`), how many requests in all (`streams`, 0 without end), what each asks for
(`tokens`, `every`).
"""

import asyncio
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

from .truth import TICK, StreamWatch, write

_AGAIN = 0.3  # seconds after a request that failed


class Users:
    """
    Users with one plan.

    Args:
        url: where they ask.
        plan: see above.
    """

    def __init__(self, url: str, plan: dict[str, Any]) -> None:
        self._url = url + "/v1/chat/completions"
        self._plan = plan
        self._numbers = itertools.count()
        self._watch = StreamWatch()
        self._failed = 0
        self._done = 0

    async def run(self, path: Path) -> None:
        """Ask until the plan is done."""
        limits = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        with path.open("w", encoding="utf-8") as out:
            async with aiohttp.ClientSession(timeout=limits, connector=connector) as session:
                ticking = asyncio.create_task(self._tick(out))
                await asyncio.gather(*(self._user(session) for _ in range(self._plan["concurrency"])))
                ticking.cancel()
            self._write(out)

    async def _user(self, session: aiohttp.ClientSession) -> None:
        asked = {key: self._plan[key] for key in ("tokens", "every")}
        while (number := next(self._numbers)) < self._plan["streams"] or not self._plan["streams"]:
            try:
                async with session.post(self._url, json={**asked, "stream": True}) as response:
                    response.raise_for_status()
                    async for line in response.content:
                        if b'"content": "x"' in line:
                            self._watch.chunk(number, time.monotonic())
                self._done += 1
            except (aiohttp.ClientError, ConnectionError):
                self._failed += 1
                await asyncio.sleep(_AGAIN)
            finally:
                self._watch.end(number, time.monotonic())

    async def _tick(self, out: Any) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._watch.tick(time.monotonic())
            self._write(out)

    def _write(self, out: Any) -> None:
        now = time.monotonic()
        totals = {f"stream/{name}": value for name, value in self._watch.totals(now).items()}
        write(out, now, {**totals, "failed": self._failed, "done": self._done})


if __name__ == "__main__":
    asyncio.run(Users(sys.argv[1], json.loads(sys.argv[3])).run(Path(sys.argv[2])))
