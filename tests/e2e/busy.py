"""Keeps a vLLM busy without a pause, and counts what comes: for what it costs to be watched."""

import asyncio
import contextlib
import math
import queue
import random
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from . import play
from .stand import Vllm, keep_time

_PROMPT = 32
_ANSWER = (200, 600)
# Every chunk says how many tokens there are by then: a server whose users are slow puts several into one.
_USAGE = {"include_usage": True, "continuous_usage_stats": True}
_SO_FAR = re.compile(rb'"completion_tokens": ?(\d+)')


@dataclass(slots=True)
class Slice:
    """
    What came in a stretch of time.

    Args:
        began: on the monotonic clock, in seconds.
        seconds: how long it was.
        tokens: how many came.
        gaps: seconds between the chunks of an answer.
    """

    began: float
    seconds: float = math.nan
    tokens: int = 0
    gaps: list[float] = field(default_factory=list)

    @property
    def throughput(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def p99(self) -> float:
        """99th percentile of the gaps, in seconds."""
        return play.percentile(self.gaps, 0.99) or math.nan


class Users:
    """
    Some who ask again as soon as they are answered.

    Args:
        server: whom.
        number: of them; more than run at once keep the batch full.
        chat: ask for chat completions, else for completions of token ids.
    """

    def __init__(self, server: Vllm, number: int, *, chat: bool) -> None:
        self._url = f"{server.url}/v1/{'chat/' if chat else ''}completions"
        self._number = number
        self._chat = chat
        self._leave = asyncio.Event()
        self._now = Slice(time.monotonic())

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """They ask while the block runs, and leave at its end, whatever is still open."""
        loops: queue.Queue[asyncio.AbstractEventLoop] = queue.Queue()
        with ThreadPoolExecutor(1) as pool:
            self._asking = pool.submit(self._run, loops)
            loop = loops.get()
            try:
                yield
            finally:
                if not self._asking.done():
                    loop.call_soon_threadsafe(self._leave.set)
        self._asking.result()

    def count(self, seconds: float) -> Slice:
        """
        What comes in the next seconds, while they ask.

        Raises:
            aiohttp.ClientError: one of them failed: the others keep nobody busy.
        """
        self._now = Slice(time.monotonic())
        if wait([self._asking], seconds).done:
            self._asking.result()
        found, self._now = self._now, Slice(time.monotonic())
        found.seconds = self._now.began - found.began
        return found

    def _run(self, loops: queue.Queue[asyncio.AbstractEventLoop]) -> None:
        keep_time()
        asyncio.run(self._all(loops))

    async def _all(self, loops: queue.Queue[asyncio.AbstractEventLoop]) -> None:
        loops.put(asyncio.get_running_loop())
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            asking = [asyncio.create_task(self._one(session, random.Random(number))) for number in range(self._number)]
            leave = asyncio.create_task(self._leave.wait())
            # One who fails ends it for all: the others would keep less busy.
            ended, _ = await asyncio.wait([leave, *asking], return_when=asyncio.FIRST_COMPLETED)
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            for one in ended:
                one.result()

    async def _one(self, session: aiohttp.ClientSession, chance: random.Random) -> None:
        while True:
            async with session.post(self._url, json=self._body(chance)) as answer:
                answer.raise_for_status()
                await self._read(answer)

    def _body(self, chance: random.Random) -> dict[str, Any]:
        body = {"model": "tiny", "ignore_eos": True, "stream": True, "stream_options": _USAGE}
        body["max_tokens"] = chance.randint(*_ANSWER)
        if self._chat:
            return body | {"messages": [{"role": "user", "content": f"{chance.random()} " * (_PROMPT // 4)}]}
        return body | {"prompt": [chance.randrange(4, 1000) for _ in range(_PROMPT)]}

    async def _read(self, answer: aiohttp.ClientResponse) -> None:
        had, before = 0, None
        async for line in answer.content:
            if not (found := _SO_FAR.search(line)):
                continue
            now, tokens = time.monotonic(), int(found[1])
            if tokens == had:
                continue
            self._now.tokens += tokens - had
            if before is not None:
                self._now.gaps.append(now - before)
            had, before = tokens, now
