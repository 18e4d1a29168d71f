"""Users who play a workload over HTTP against any OpenAI-compatible server, and keep what they saw."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import aiohttp

from kvpressure.lab.truth import LEFT, STOPPED, Record
from kvpressure.lab.workload import Arrival, Workload, arrivals

MODEL_SECONDS = 30.0
"""For how long a server may be silent on what it serves."""

_KEEP_ALIVE = 4.0  # seconds; vLLM closes an idle connection after 5, and a request must not meet that
_TEMPLATE_TOKENS = 4  # what a chat template adds to the one message, as lab/openai.py counts
_FIRST_ID, _IDS = 4, 996  # token ids that every model has, and that are no special tokens
_WORDS = ("time", "year", "way", "day", "man", "thing", "life", "child", "world", "school", "state", "group")
_OK = 200
_SHOWN = 200  # characters of an error's body that are kept
_MODEL_TRY_SECONDS = 5.0
_RETRY_SECONDS = 0.2


class NoServerError(Exception):
    """The server does not say what it serves; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Plan:
    """
    What the users do.

    Args:
        url: the server, as ``http://host:port``.
        workload: what they ask, and for how long they wait for a first token.
        seed: decides when and how long, as for the lab's built-in users, and what.
        chat: ask for chat completions, else for completions.
        speed: workload seconds per real second.
        duration: real seconds after which they leave, whatever is still open; None: never.
        requests: how many they ask; they leave when the last one has ended. None: without end.
    """

    url: str
    workload: Workload
    seed: int = 0
    chat: bool = True
    speed: float = 1.0
    duration: float | None = None
    requests: int | None = None


class Users:
    """
    The users of one plan. They come when the plan says, however the server fares.

    Args:
        plan: what they do.
        ended: takes the record of each request when it is over, in that order.
    """

    def __init__(self, plan: Plan, ended: Callable[[Record], None]) -> None:
        self._plan = plan
        self._ended = ended

    async def run(self) -> None:
        """
        Ask until the plan is over or this is cancelled. All requests have ended, and were told, when it returns.

        Raises:
            NoServerError: nobody says within 30 s what model is served; nothing was asked.
        """
        plan = self._plan
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None),
            # A proxy that compressed a stream would gather chunks.
            headers={"Accept-Encoding": "identity"},
        ) as session:
            model = await served_model(session, plan.url, MODEL_SECONDS)
            start = asyncio.get_running_loop().time()
            stream = enumerate(islice(arrivals(plan.workload, plan.seed), plan.requests))
            # Only the duration's own end is expected: a request's user takes everything else.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(plan.duration), asyncio.TaskGroup() as group:
                    for number, arrival in stream:
                        await asyncio.sleep(start + arrival.time / plan.speed - asyncio.get_running_loop().time())
                        group.create_task(self._ask(session, model, number, arrival))

    async def _ask(self, session: aiohttp.ClientSession, model: str, number: int, arrival: Arrival) -> None:
        """One user: asks, reads to the end, or leaves where no first token comes."""
        plan = self._plan
        record = Record(number, time.time(), arrival.prompt_tokens, arrival.answer_tokens)
        try:
            async with asyncio.timeout(plan.workload.patience / plan.speed) as patience:
                path, body = ask_of(plan, model, number, arrival)
                async with session.post(plan.url + path, json=body, headers={"X-Request-Id": f"r{number}"}) as answer:
                    await _read(answer, record, patience)
        except TimeoutError:
            record.end(LEFT, time.time())
        except (aiohttp.ClientError, OSError) as fault:
            record.end(type(fault).__name__, time.time())
        except asyncio.CancelledError:
            record.end(STOPPED, time.time())
            raise
        finally:
            self._ended(record)


async def _read(answer: aiohttp.ClientResponse, record: Record, patience: asyncio.Timeout) -> None:
    """Read a stream to its end and stamp its chunks; once a token is there its user never leaves."""
    if answer.status != _OK:
        record.error = f"{answer.status} {(await answer.text(errors='replace'))[:_SHOWN]}"
        return
    rest = b""
    async for data in answer.content.iter_any():
        now = time.time()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            record.take(line, now)
            if record.error:
                return
        if record.token_ts and patience.when() is not None:
            patience.reschedule(None)
    if not record.done:
        record.end("unfinished", time.time())


async def served_model(session: aiohttp.ClientSession, url: str, seconds: float) -> str:
    """
    The first model that the server names; asked again for up to `seconds`, for it may still be starting.

    Raises:
        NoServerError: it names none in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            async with session.get(
                f"{url}/v1/models", timeout=aiohttp.ClientTimeout(total=_MODEL_TRY_SECONDS)
            ) as answer:
                if answer.status == _OK:
                    return str((await answer.json())["data"][0]["id"])
                why = f"the status is {answer.status}"
        except (aiohttp.ClientError, OSError) as fault:
            why = "it cannot be reached" if isinstance(fault, aiohttp.ClientConnectionError) else "no good answer"
        except (ValueError, LookupError, TypeError):
            why = "the answer is no list of models"
        if time.monotonic() > deadline:
            raise NoServerError(f"{url}/v1/models does not name a model within {seconds:g} s: {why}.")
        await asyncio.sleep(_RETRY_SECONDS)


def ask_of(plan: Plan, model: str, number: int, arrival: Arrival) -> tuple[str, dict[str, Any]]:
    """Path and body of a request whose prompt has as many tokens as were drawn, the shared ones the same for all."""
    shared = min(arrival.shared_prefix, arrival.prompt_tokens)
    chance = random.Random(f"{plan.seed} {number}")  # noqa: S311 - the same seed asks the same, no secrets
    own = chance.choices(range(_IDS), k=arrival.prompt_tokens - shared)
    # Counted up, so that no two blocks of the shared prefix are alike.
    tokens = [token % _IDS for token in range(shared)] + own
    body = {"model": model, "max_tokens": arrival.answer_tokens, "ignore_eos": True, "stream": True}
    if not plan.chat:
        return "/v1/completions", body | {"prompt": [_FIRST_ID + token for token in tokens]}
    text = " ".join(_WORDS[token % len(_WORDS)] for token in tokens[_TEMPLATE_TOKENS:])
    return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": text}]}
