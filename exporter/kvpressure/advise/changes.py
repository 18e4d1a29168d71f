"""
What could be changed, in the order of the runbooks: cheapest first. Each is tried on the model, on the same users.

The order and the prices are those of alerts/runbooks/KVPressurePreemptionStorm.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvpressure.advise.advice import Change, Need, Outcome, Point, Settings
from kvpressure.advise.seen import Figure
from kvpressure.advise.sweep import SURE, Setting, Sweep

_MOST_GROWTH = 8.0
"""Times the cache: beyond it, memory is not what is missing."""
_FINENESS = 0.01
"""Of the cache that there is: how exactly the least memory is found."""
_HEADROOM = 0.1
"""Share of the blocks kept free by the admission reserve that is tried."""
_MORE = (0.10, 0.25, 0.50)
_CURVE = 7
"""Settings of ``--max-num-seqs`` on the curve, beside the edges of the band."""
_NUMBERS = {1: "One", 2: "Two", 3: "Three"}
MORE_REPLICAS = tuple(_NUMBERS)
"""How many more are tried, until preemption ends."""
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
            f"{_percent(SURE)} of the runs. The time to first token is good where 95 % of a run's users wait at most "
            f"{self.ttft:g} s, in {_percent(SURE)} of the runs."
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
        p99: answer tokens that one request in a hundred exceeds.
        replicas: engines that share the traffic.
        dtype: of the cache, as vLLM calls it.
        token_bytes: bytes of KV cache per token.
    """

    p99: int
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
        return "The KV cache is large enough for this traffic: none of its size is missing."
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
    found = [
        Candidate(
            "max_tokens",
            f"Cap answers at {present.p99:,} tokens, their 99th percentile",
            "max_tokens in the gateway or the clients; for the whole server --override-generation-config "
            f"'{{\"max_new_tokens\": {present.p99}}}'",
            "one answer in a hundred is cut off",
            Setting(cap=present.p99),
        )
    ]
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


def outside() -> list[Candidate]:
    """What vLLM has no flag for, and a gateway in front of it can do: after all the others."""
    return [
        Candidate(
            "headroom",
            f"Admit a request only where {_percent(_HEADROOM)} of the cache stays free",
            "no flag of vLLM: a gateway that watches the KV usage, and holds requests back",
            "requests wait in the gateway instead",
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


def fewer(seqs: int) -> Candidate:
    """Fewer requests at once: the last of what vLLM has a flag for."""
    return Candidate(
        "max_num_seqs",
        f"At most {seqs} requests at once",
        f"--max-num-seqs {seqs}",
        "requests wait in the queue instead of being torn: answers that run hardly stop, others start later",
        Setting(seqs=seqs),
    )


def change(of: Candidate, sweep: Sweep, targets: Targets, now: Outcome) -> Change:
    """What the model says of one."""
    then = sweep.outcome(of.setting)
    ends = targets.ended(sweep, of.setting)
    text = says(now, then, targets.ttft, ends=ends, prompt=targets.prompt(sweep, of.setting))
    return Change(of.key, of.title, of.how, of.price, then, ends, text)


def says(now: Outcome, then: Outcome, target: float, *, ends: bool, prompt: bool) -> str:
    """The trade-off, as a sentence."""
    less = f"preemptions per thousand {now.per_thousand.middle:,.0f} -> {then.per_thousand.middle:,.0f}"
    wait = f"TTFT p95 {_seconds(now.ttft_p95.middle)} -> {_seconds(then.ttft_p95.middle)}"
    done = "Ends it" if ends else "Does not end it"
    slow = "" if prompt else f", and first tokens come later than the target of {target:g} s"
    return f"{done}: {less}, {wait}{slow}."


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value >= 1.0 else f"{1000 * value:,.0f} ms"


def settings(sweep: Sweep, targets: Targets, most: int) -> Settings:
    """
    The band of ``--max-num-seqs``.

    Args:
        sweep: the model.
        targets: what must hold.
        most: the highest setting that makes a difference: requests that can run at once.
    """

    def ended(seqs: int) -> bool:
        return targets.ended(sweep, Setting(seqs=seqs))

    def prompt(seqs: int) -> bool:
        return targets.prompt(sweep, Setting(seqs=seqs))

    # More at once preempt more, and let nobody wait longer for a place in the batch.
    high = _edge(1, most, ended)
    low = _edge(1, most, lambda seqs: not prompt(seqs))
    least_prompt = 1 if low is None else low + 1
    tried = {
        max(1, round(most ** (step / _CURVE) * max(1, most / 16) ** (1 - step / _CURVE)))
        for step in range(1, _CURVE + 1)
    }
    tried |= {edge for edge in (high, least_prompt if least_prompt <= most else None) if edge}
    points = tuple(
        Point(seqs, sweep.outcome(Setting(seqs=seqs)), ended(seqs) and prompt(seqs)) for seqs in sorted(tried)
    )
    if high is None or least_prompt > high:
        return Settings(points, None, None, _no_band(targets, high))
    return Settings(
        points,
        least_prompt,
        high,
        f"Between {least_prompt} and {high} neither target is broken."
        if least_prompt < high
        else f"Only at {high} neither target is broken.",
    )


def _no_band(targets: Targets, high: int | None) -> str:
    more = (
        "" if high is None else f", and at {high} or less, where it does not, first tokens take over {targets.ttft:g} s"
    )
    return f"No setting of --max-num-seqs keeps both targets: it goes on preempting{more}. Add capacity."


def _edge(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The greatest for which it holds, where it holds below an edge and not above; None where it never does."""
    if not holds(low):
        return None
    if holds(high):
        return high
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
