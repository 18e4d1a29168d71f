"""
``python -m bench.asker URL``: asks for an exposition once a second through aiohttp's client, and throws it away.

It is the least that a sampler on this library can do, and so the floor under the sidecar.
"""

import asyncio
import gc
import sys

import aiohttp


async def _ask(url: str) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    async with aiohttp.ClientSession() as session:
        gc.collect()
        gc.freeze()  # as serve does
        while True:
            due += 1.0
            await asyncio.sleep(due - loop.time())
            async with session.get(url, raise_for_status=True) as answer:
                await answer.read()


if __name__ == "__main__":
    asyncio.run(_ask(sys.argv[1]))
