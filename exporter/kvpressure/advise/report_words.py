"""Numbers, shares and times of the advice in words, and the terms that a reader may not know."""

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from kvpressure.advise.advice import Band, Limit
from kvpressure.advise.seen import Figure
from kvpressure.expose.page.words import percent, seconds, span

UNKNOWN = "unknown"
"""What stands where a value is not known."""

LIMITS: dict[Limit, str] = {
    "kv_memory": "KV memory",
    "concurrency_cap": "The concurrency cap",
    "neither": "Neither KV memory nor the concurrency cap",
    "unknown": "Not known",
}
"""What limits an engine, in a few words."""

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_KIBI = 1024.0
_GROUPED = 1000.0  # from here on a number has no digits after the point
_LONG = 600.0  # seconds from which a time is told in minutes and hours

_TERMS: tuple[tuple[str, str, str], ...] = (
    ("token", r"\btokens?\b", "a piece of text that a language model reads or writes at once, about 3/4 of a word"),
    (
        "KV cache",
        r"\bKV\b",
        "the GPU memory in which vLLM keeps what it computed for every token of each running prompt and answer",
    ),
    ("block", r"\b[Bb]locks?\b", "the KV cache is given out in pieces of a few tokens, often 16; each is a block"),
    (
        "preemption",
        r"\b[Pp]reempt",
        "the cache is full: vLLM takes all room from a running request and computes it again later; its answer stops",
    ),
    ("storm", r"\b[Ss]torm", "preemption that goes on at a rate that users feel"),
    ("onset", r"\b[Oo]nset\b", "a burst of preemptions when load arrives, which settles by itself"),
    ("churn", r"\b[Cc]hurn\b", "preemption that goes on"),
    ("paused", r"\bpaused\b", "the answer stood still for over a second between two tokens"),
    (
        "blocked",
        r"\b([Bb]locked|wait\w* for KV blocks)\b",
        "requests wait, and too few blocks are free for one of them",
    ),
    ("TTFT", r"\bTTFT\b", "time to first token: how long a user waits until the answer begins"),
    ("p50, p95, p99", r"\bp(50|95|99)\b", "half, 95 % or 99 % of all are at or below this"),
    (
        "the model",
        r"\b([Tt]he|[Aa]) model\b(?! name)",
        "the simulation of this server and its users; not the language model",
    ),
    ("--max-num-seqs", r"--max-num-seqs\b|[Cc]oncurrency cap", "the most requests that vLLM runs at the same time"),
    (
        "--max-model-len",
        r"--max-model-len\b",
        "the most tokens that prompt and answer of one request may have together",
    ),
    (
        "--max-num-batched-tokens",
        r"--max-num-batched-tokens\b",
        "the most tokens that vLLM computes in one step, over all running requests",
    ),
    (
        "--gpu-memory-utilization",
        r"--gpu-memory-utilization\b",
        "the share of the GPU's memory that vLLM may use; what the weights leave of it is for the KV cache",
    ),
    ("--tensor-parallel-size", r"--tensor-parallel-size\b", "the GPUs over which one server is spread"),
    (
        "--override-generation-config",
        r"--override-generation-config\b",
        "what holds for requests that ask for nothing else",
    ),
    ("max_tokens", r"\bmax_tokens\b", "the longest answer that a request asks for; the client or a gateway sets it"),
    (
        "FP8 KV cache",
        r"\bFP8\b|--kv-cache-dtype\b|\b8 bits?\b",
        "each number that is kept takes 8 bits instead of 16, so about twice as much fits; answers may lose precision",
    ),
    (
        "replica",
        r"\b[Rr]eplicas?\b",
        "one more server with the same language model, which takes a share of the requests",
    ),
    ("headroom", r"\b[Hh]eadroom\b", "room for more requests than come now"),
    ("seed", r"\bseeds?\b", "one simulation, with arrivals and lengths drawn anew from those of the traffic"),
)
"""Terms, the pattern that finds each, and what it means."""


def quantity(value: float | None, unit: str) -> str:
    """A number with its unit; a plain ratio from 0 to 1 as a share. What is not known, or not finite, says so."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    first, _, rest = unit.partition(" ")
    if not unit:
        return percent(value) if 0.0 <= value <= 1.0 else number(value)
    if first == "bytes":
        return f"{_size(value)} {rest}".rstrip()
    if first in ("seconds", "s"):
        return f"{span(value) if value >= _LONG else seconds(value)} {rest}".rstrip()
    if value == 1.0 and first.isalpha():
        first = first.removesuffix("s")
    return f"{number(value)} {first} {rest}".rstrip()


def figure(of: Figure) -> str:
    """The figure in words; an estimate is labelled as one."""
    text = quantity(of.value, of.unit)
    return f"{text} (estimate)" if of.estimate and text != UNKNOWN else text


def number(value: float) -> str:
    """A finite number: four digits where it is small, thousands grouped, no zeros at the end of a fraction."""
    if float(value).is_integer() or abs(value) >= _GROUPED:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def band(of: Band, words: Callable[[float | None], str]) -> tuple[str, str]:
    """The middle, and from where to where it goes over the seeds; the latter empty where all say the same."""
    low, middle, high = (words(value) if math.isfinite(value) else UNKNOWN for value in (of.low, of.middle, of.high))
    if low == middle == high:
        return middle, ""
    least, *unit = low.rsplit(maxsplit=1)
    # A unit that both share is told once.
    return middle, f"{least if unit == high.rsplit(maxsplit=1)[1:] else low} to {high}"


def growth(value: float) -> str:
    """A relative growth, as ``25 % more than now``; what shrinks needs no more."""
    return f"{percent(value)} more than now" if value > 0.0 else "no more than now"


def moment(t: float) -> str:
    """A time of the day, in UTC."""
    return f"{datetime.fromtimestamp(t, UTC):%Y-%m-%d %H:%M} UTC"


def times(before: float, after: float) -> str:
    """How lengths have changed, as ``2.4 times longer``."""
    if before <= 0.0 or after <= 0.0:
        return "different"
    return f"{after / before:.2g} times longer" if after >= before else f"{before / after:.2g} times shorter"


def terms(texts: Sequence[str], known: set[str]) -> tuple[tuple[str, str], ...]:
    """The terms that stand in these texts and are not known yet, with what they mean; they are known from now on."""
    found = tuple(
        (name, meaning)
        for name, pattern, meaning in _TERMS
        if name not in known and any(re.search(pattern, text) for text in texts)
    )
    known.update(name for name, _ in found)
    return found


def _size(value: float) -> str:
    power = 0
    while abs(value) >= _KIBI and power < len(_UNITS) - 1:
        value /= _KIBI
        power += 1
    return f"{number(value)} {_UNITS[power]}"
