"""What there is: capacity, what fits into it, and what came at peak. Arithmetic only, each number with its formula."""

from collections.abc import Mapping, Sequence

from kvpressure.advise import memory
from kvpressure.advise.advice import Line
from kvpressure.advise.lengths import behind_mean, quantile, ranked, together
from kvpressure.advise.report_words import moment
from kvpressure.advise.seen import Counted, Figure, Seen, Server, Slot
from kvpressure.derive import capacity
from kvpressure.lab.leap import Job

_P95 = 0.95


def have(seen: Seen, chosen: Sequence[Slot]) -> tuple[Line, ...]:
    """
    What there was.

    Args:
        seen: the engine.
        chosen: the busiest stretch; lengths are its.
    """
    prompts = together(slot.prompts for slot in chosen if slot.prompts)
    answers = together(slot.answers for slot in chosen if slot.answers)
    means, p95s = _lengths(seen.sources, _stretch(chosen), prompts, answers)
    peak = max((slot.peak for slot in seen.slots if slot.peak is not None), default=None)
    top = Figure(peak, "requests", seen.sources.get("peak", "not recorded"))
    return (*_cache(seen.server), *means, *p95s, *_fits(seen.server, means, p95s), *_at_peak(seen, p95s, top))


def have_of(server: Server, jobs: Sequence[Job], seconds: float) -> tuple[Line, ...]:
    """
    What a workload that was only described comes to.

    Args:
        server: how it is set up.
        jobs: its requests.
        seconds: in which they come.
    """
    prompts, answers = [job.prompt for job in jobs], [min(job.answer, job.max_tokens) for job in jobs]
    means = tuple(
        Line(f"Mean {name}", Figure(sum(values) / len(values) if values else None, "tokens", "drawn from the workload"))
        for name, values in (("prompt", prompts), ("answer", answers))
    )
    p95s = tuple(
        Line(
            f"95th percentile of {name}",
            Figure(float(ranked(values, _P95)) if values else None, "tokens", "drawn from the workload"),
        )
        for name, values in (("prompts", prompts), ("answers", answers))
    )
    over = f"drawn from the workload, over {seconds:g} s"
    rates = (
        Line("Requests per second", Figure(len(jobs) / seconds, "requests", over)),
        Line("Answer tokens asked for per second", Figure(sum(answers) / seconds, "tokens", over)),
    )
    return (*_cache(server), *rates, *means, *p95s, *_fits(server, means, p95s))


def _cache(server: Server) -> tuple[Line, ...]:
    tokens, size = server.capacity.value, server.block_size.value
    blocks = tokens // size if tokens is not None and size else None
    formula = (
        f"{tokens:,.0f} tokens / {size:,.0f} per block" if blocks is not None else "capacity or block size unknown"
    )
    return (
        Line("KV capacity", server.capacity),
        Line("Block size", server.block_size),
        Line("Blocks", Figure(blocks, "blocks", formula)),
    )


def _stretch(chosen: Sequence[Slot]) -> str:
    """Over which time the lengths are counted."""
    return f"in the busiest stretch, {moment(chosen[0].end - chosen[0].seconds)} to {moment(chosen[-1].end)}"


def _lengths(
    sources: Mapping[str, str], when: str, prompts: Counted | None, answers: Counted | None
) -> tuple[tuple[Line, ...], tuple[Line, ...]]:
    both = (("prompt", "prompts", prompts), ("answer", "answers", answers))
    means = tuple(
        Line(
            f"Mean {name}",
            Figure(
                counted.sum / counted.count if counted else None, "tokens", f"{behind_mean(sources, field)}; {when}"
            ),
        )
        for name, field, counted in both
    )
    p95s = tuple(
        Line(
            f"95th percentile of {field}",
            Figure(
                quantile(counted, _P95) if counted else None,
                "tokens",
                f"interpolated in the buckets of: {sources.get(field, 'not recorded')}; {when}",
                estimate=True,
            ),
        )
        for _, field, counted in both
    )
    return means, p95s


def _fits(server: Server, means: Sequence[Line], p95s: Sequence[Line]) -> tuple[Line, ...]:
    return tuple(
        Line(
            f"Requests that fit, {name} prompt and answer",
            memory.fits(server.capacity, prompt.figure, answer.figure),
        )
        for name, (prompt, answer) in (("mean", means), ("95th percentile", p95s))
    )


def _at_peak(seen: Seen, p95s: Sequence[Line], top: Figure) -> tuple[Line, ...]:
    prompt, answer = (line.figure.value for line in p95s)
    fit = capacity.seats(seen.server.capacity.value, prompt, answer)
    room = capacity.headroom(fit, top.value, 0.0)
    formula = (
        f"{fit:,.1f} that fit - {top.value:,.0f} at peak" if room is not None else "unknown, as one of its parts is"
    )
    return (
        Line("Requests running and waiting at peak", top),
        Line("Headroom at peak", Figure(room, "requests", formula, estimate=True)),
    )
