"""
What could be changed, in the order of the runbooks: cheapest first. Each is tried on the model, on the same users.

The order and the prices are those of alerts/runbooks/KVPressurePreemptionStorm.md. What is done to ``--max-num-seqs``
is in ``seqs.py``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from kvpressure.advise.advice import Band, Change, Need
from kvpressure.advise.seen import Figure
from kvpressure.advise.sweep import SURE, Setting, Sweep

_MOST_GROWTH = 8.0
"""Times the cache: beyond it, memory is not what is missing."""
_FINENESS = 0.01
"""Of the cache that there is: how exactly the least memory is found."""
_HEADROOM = 0.1
"""Share of the blocks kept free by the admission reserve that is tried."""
_MORE = (0.10, 0.25, 0.50)
_NUMBERS = {1: "One", 2: "Two", 3: "Three"}
MORE_REPLICAS = tuple(_NUMBERS)
"""How many more are tried, until both targets are kept."""
_SMALL_DTYPES = ("fp8", "int8", "nvfp4")


@dataclass(frozen=True, slots=True)
class Targets:
    """
    What must hold.

    Args:
        per_thousand: preemptions per thousand requests stay below it.
        ttft: p95 seconds until the first token stay at or below it.
    """

    per_thousand: float = 5.0
    ttft: float = 2.0

    def __str__(self) -> str:
        """As a sentence."""
        return (
            f"Preemption counts as ended where fewer than {self.per_thousand:g} per thousand requests are left in "
            f"more than {_percent(SURE)} of the runs. The time to first token is good where 95 % of a run's users wait "
            f"at most {self.ttft:g} s, in more than {_percent(SURE)} of the runs."
        )

    def ended(self, sweep: Sweep, setting: Setting) -> bool:
        """Whether preemption is, under a setting."""
        return sweep.holds(setting, lambda run: run.per_thousand < self.per_thousand)

    def prompt(self, sweep: Sweep, setting: Setting) -> bool:
        """Whether users wait short enough for their first token, under a setting."""
        return sweep.holds(setting, lambda run: run.ttft_p95 is not None and run.ttft_p95 <= self.ttft)


@dataclass(frozen=True, slots=True)
class Present:
    """
    What the changes start from.

    Args:
        p99: answer tokens that one request in a hundred exceeds; None where no answer is longer than that.
        p99_is_estimate: whether it was found in buckets.
        replicas: engines that share the traffic.
        dtype: of the cache, as vLLM calls it.
        token_bytes: bytes of KV cache per token.
    """

    p99: int | None
    p99_is_estimate: bool
    replicas: int
    dtype: str
    token_bytes: Figure


def need(sweep: Sweep, targets: Targets, present: Present) -> Need | None:
    """The least KV memory that ends preemption; None where eight times as much does not."""
    now = sweep.config.num_gpu_blocks

    def ended(blocks: int) -> bool:
        return targets.ended(sweep, Setting(blocks=blocks))

    high = _first(now, ended)
    if high is None:
        return None
    # Where twice as much was needed, half of it was too little; of less than there is nothing is asked.
    low = high // 2 if high > now else high
    while high - low > max(1, _FINENESS * now):
        middle = (low + high) // 2
        low, high = (low, middle) if ended(middle) else (middle, high)
    growth = high / now - 1.0
    size = sweep.config.block_size
    tokens = high * size
    more = _bytes(present.token_bytes, (high - now) * size)
    return Need(tokens, high, growth, more, sweep.outcome(Setting(blocks=high)), _need_says(growth, tokens, high))


def _first(now: int, ended: Callable[[int], bool]) -> int | None:
    """The first of one, two, four and eight times as many blocks that is enough."""
    blocks = now
    while blocks <= _MOST_GROWTH * now:
        if ended(blocks):
            return blocks
        blocks *= 2
    return None


def _bytes(each: Figure, tokens: int) -> Figure:
    if each.value is None:
        return Figure(None, "bytes", each.source)
    return Figure(each.value * tokens, "bytes", f"{tokens:,} tokens x {each.value:,.0f} bytes per token", estimate=True)


def _need_says(growth: float, tokens: float, blocks: int) -> str:
    if growth <= 0.0:
        return (
            "Preemption stays below its target with the KV cache as it is. How much less would do was not looked for."
        )
    size = f"{tokens:,.0f} tokens in {blocks:,} blocks"
    return f"The least KV cache that ends preemption is {_percent(growth)} larger: {size}."


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change to try: as in ``Change``, and what it is to the model."""

    key: str
    title: str
    how: str
    price: str
    setting: Setting


NOTHING = Candidate("now", "As it is", "nothing is changed", "what users bear now", Setting())
"""What all others stand beside."""


def listed(present: Present) -> list[Candidate]:
    """What can be changed, cheapest first."""
    found = []
    if present.p99 is not None:
        cap = Candidate(
            "max_tokens",
            f"Cap answers at {present.p99:,} tokens, their 99th percentile{' (estimate)' * present.p99_is_estimate}",
            "max_tokens in the gateway or the clients; for the whole server --override-generation-config "
            f"'{{\"max_new_tokens\": {present.p99}}}'",
            "one answer in a hundred is cut off"
            + "; fewer, where the true percentile is lower: it is as coarse as vLLM's buckets"
            * present.p99_is_estimate,
            Setting(cap=present.p99),
        )
        found.append(cap)
    if not present.dtype.startswith(_SMALL_DTYPES):
        found.append(
            Candidate(
                "fp8",
                "Store the KV cache in 8 bits: twice the tokens",
                "--kv-cache-dtype fp8",
                "precision: only after an accuracy check on your own task; some GPUs and backends cannot",
                Setting(growth=1.0),
            )
        )
    found += [
        Candidate(
            f"memory_{round(100 * more)}",
            f"{_percent(more)} more memory for the KV cache",
            "--gpu-memory-utilization higher, --tensor-parallel-size larger, or a larger GPU",
            "less is left for peaks of the GPU's memory, or more GPUs",
            Setting(growth=more),
        )
        for more in _MORE
    ]
    return found


def replicas(present: Present, more: int) -> Candidate:
    """More servers with the same model, each with an equal share of the traffic."""
    now = present.replicas
    many = f"{_NUMBERS[more]} more replica{'s' if more > 1 else ''}"
    return Candidate(
        "replica" if more == 1 else f"replica_{more}",
        f"{many}: {now + more} instead of {now}; figures of one of them",
        "scale the Deployment; the balancer must spread requests evenly",
        f"{'another GPU' if more == 1 else 'as many more GPUs'}, and minutes to load the model",
        Setting(share=now / (now + more)),
    )


def admissions() -> list[Candidate]:
    """Fewer admitted than fit: after all the others, for they take memory from those who could use it."""
    return [
        Candidate(
            "headroom",
            f"Admit a request only where {_percent(_HEADROOM)} of the cache stays free",
            f"--watermark {_HEADROOM:g}, from vLLM 0.24 on; before it a gateway that watches the KV usage",
            "requests wait in the queue instead",
            Setting(headroom=_HEADROOM),
        ),
        Candidate(
            "guaranteed",
            "Admit a request only where its prompt and max_tokens fit to the end",
            "no flag of vLLM: a gateway that counts the tokens it has let in",
            "nothing is ever preempted, and the cache stands emptier than it could",
            Setting(guaranteed=True),
        ),
    ]


def _fewer(now: Band, then: Band) -> str:
    """By how much, where it shows: in most runs nothing may be preempted before and after."""
    if round(now.middle) == round(then.middle) and round(now.high) != round(then.high):
        return f"preemptions per thousand in the worst tenth of the runs {now.high:,.0f} -> {then.high:,.0f}"
    return f"preemptions per thousand {now.middle:,.0f} -> {then.middle:,.0f}"


def change(of: Candidate, sweep: Sweep, targets: Targets) -> Change:
    """What the model says of one."""
    then = sweep.outcome(of.setting)
    ends, prompt = targets.ended(sweep, of.setting), targets.prompt(sweep, of.setting)
    if targets.ended(sweep, NOTHING.setting):
        what = "Preemption stays below its target" if ends else "Brings preemption about"
    else:
        what = "Ends it" if ends else "Does not end it"
    now = sweep.outcome(NOTHING.setting)
    less = _fewer(now.per_thousand, then.per_thousand)
    wait = f"TTFT p95 {seconds(now.ttft_p95.middle)} -> {seconds(then.ttft_p95.middle)}"
    slow = "" if prompt else f", and first tokens come later than the target of {targets.ttft:g} s"
    return Change(of.key, of.title, of.how, of.price, then, ends, prompt, f"{what}: {less}, {wait}{slow}.")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def seconds(value: float) -> str:
    """A time in words, as short as it can be."""
    if not math.isfinite(value):
        return "unknown, as nobody got one"
    return f"{value:,.1f} s" if value >= 1.0 else f"{1000 * value:,.0f} ms"
