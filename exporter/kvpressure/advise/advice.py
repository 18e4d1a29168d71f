"""The advice as data: what the reports in the terminal, in HTML and in JSON are made of."""

from dataclasses import dataclass
from typing import Literal

from kvpressure.advise.seen import Figure

Limit = Literal["kv_memory", "concurrency_cap", "neither", "unknown"]


@dataclass(frozen=True, slots=True)
class Line:
    """
    A number with its name, and where it comes from.

    Args:
        name: in words, as ``KV capacity``.
        figure: the number.
    """

    name: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Shift:
    """
    Lengths that are not what they were.

    Args:
        what: ``prompts`` or ``answers``.
        before: mean tokens before.
        after: mean tokens since.
        since: seconds since 1970.
        source: the query or the rule that gave them.
    """

    what: str
    before: float
    after: float
    since: float
    source: str = ""


@dataclass(frozen=True, slots=True)
class Band:
    """
    A figure over several simulated runs.

    Args:
        low: its 10th percentile.
        middle: its median.
        high: its 90th percentile.
    """

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What the model says of one setting, each over several seeds.

    Args:
        per_thousand: preemptions per thousand requests served.
        paused: share of requests with a gap of over a second, 0 to 1.
        ttft_p50: seconds until the first token, the median of requests.
        ttft_p95: the same, 95th percentile.
        throughput: answer tokens per second.
    """

    per_thousand: Band
    paused: Band
    ttft_p50: Band
    ttft_p95: Band
    throughput: Band


@dataclass(frozen=True, slots=True)
class Change:
    """
    One thing that could be changed, and what the model says of it.

    Args:
        key: its short name, for JSON.
        title: what is done, in words.
        how: the flag or the place where it is set.
        price: what it costs, in words.
        outcome: what the model says; None where the model was not used.
        ends: whether preemption ends by it (stays under the target); None where not known.
        prompt: whether first tokens come within their target; None where not known.
        says: the trade-off, one sentence with the numbers.
    """

    key: str
    title: str
    how: str
    price: str
    outcome: Outcome | None
    ends: bool | None
    prompt: bool | None
    says: str


@dataclass(frozen=True, slots=True)
class Point:
    """One setting of ``--max-num-seqs`` on the trade-off curve."""

    seqs: int
    outcome: Outcome
    good: bool
    """Whether neither target is broken."""


@dataclass(frozen=True, slots=True)
class Settings:
    """
    The band of ``--max-num-seqs`` within which neither target is broken.

    Args:
        points: the curve, ascending.
        low: the least good setting; None where none is.
        high: the greatest good setting; None where none is.
        says: the band, or that there is none, as a sentence.
    """

    points: tuple[Point, ...]
    low: int | None
    high: int | None
    says: str


@dataclass(frozen=True, slots=True)
class Need:
    """
    The least KV memory that ends preemption.

    Args:
        tokens: capacity.
        blocks: the same, in blocks.
        growth: relative to what there is now, 0.25 is a quarter more; 0 where it is enough already.
        bytes: how much more memory, where the bytes per token are known.
        outcome: what the model says of it.
        says: it as a sentence.
    """

    tokens: float
    blocks: int
    growth: float
    bytes: Figure
    outcome: Outcome
    says: str


@dataclass(frozen=True, slots=True)
class Compared:
    """
    One figure as it was observed, and as the model gives it.

    Args:
        name: in words.
        unit: in words.
        observed: None where it was not.
        modelled: over several seeds.
        bound: how far they may be apart, in words.
        holds: whether they are within it; None where nothing was observed.
        source: of the observed one.
    """

    name: str
    unit: str
    observed: float | None
    modelled: Band
    bound: str
    holds: bool | None
    source: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """
    Whether the model reproduces what was observed.

    Args:
        rows: each figure.
        holds: whether it does; None where nothing was observed, as with a workload.
        step: the step time that was fitted, as a sentence with the formula and its numbers.
        says: it as a sentence.
    """

    rows: tuple[Compared, ...]
    holds: bool | None
    step: str
    says: str


@dataclass(frozen=True, slots=True)
class Advice:
    """
    Everything that is known and advised of one engine.

    Args:
        model: its name.
        engine: its rank.
        source: where it was observed, in words.
        begin: of the range, seconds since 1970; None where nothing was observed.
        end: of the range.
        conclusion: what to do first, in one to three sentences.
        have: what there is.
        limit: what limits it.
        limit_says: the same as a sentence.
        evidence: the numbers behind it.
        shifts: of lengths.
        calibration: how sure the model is; None where it could not be run.
        need: the least memory that ends preemption; None where not known or where no memory does.
        changes: cheapest first.
        settings: the band of ``--max-num-seqs``; None where not simulated.
        notes: what was assumed, what is missing, what is out of scope, in whole sentences.
        period: which part of the range was simulated, as a sentence.
        targets: what counts as ended, as a sentence.
        target_per_thousand: the preemptions per thousand requests that it allows; None where there is no such target.
        target_ttft: the TTFT p95 that it allows, in seconds; None where there is no such target.
        seeds: runs of the model behind each band; None where it was not run.
    """

    model: str
    engine: str
    source: str
    begin: float | None
    end: float | None
    conclusion: str
    have: tuple[Line, ...]
    limit: Limit
    limit_says: str
    evidence: tuple[Line, ...]
    shifts: tuple[Shift, ...]
    calibration: Calibration | None
    need: Need | None
    changes: tuple[Change, ...]
    settings: Settings | None
    notes: tuple[str, ...]
    period: str
    targets: str
    target_per_thousand: float | None = None
    target_ttft: float | None = None
    seeds: int | None = None
