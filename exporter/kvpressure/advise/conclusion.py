"""What to do first, in a few sentences: the limit, what grew, and the cheapest change that keeps both targets."""

from collections.abc import Sequence

from kvpressure.advise.advice import Advice, Change, Need, Shift
from kvpressure.advise.changes import seconds
from kvpressure.advise.report_words import moment, times

_GROWS = 0.1
"""The share of all requests from which a queue that grew by them is not one of chance."""


def conclusion(known: Advice, least: Need | None, tried: Sequence[Change], *, enough: bool, queued: float = 0.0) -> str:
    """
    What to do first.

    Args:
        known: what was seen, and the targets.
        least: the least memory that ends preemption; None where none does.
        tried: the changes with their outcomes, cheapest first. The first one is nothing.
        enough: whether first tokens come within their target with that memory.
        queued: the share of all requests that the queue grew by, as things are.
    """
    now = tried[0]
    grown = "".join(f" {_grown(shift)}" for shift in known.shifts if shift.after > shift.before)
    first = next((change for change in tried[1:] if change.ends and change.prompt), None)
    if now.ends and now.prompt:
        grown, says = "", _healthy(known, now)
    elif now.ends:
        says = _late(known, now, first)
    else:
        says = _preempting(least, first, enough=enough)
    if queued > _GROWS:
        says += (
            f" As things are, more is asked than this server can serve: of every 100 requests {100 * queued:.0f} were "
            "added to the queue, which grows for as long as such traffic lasts, and waiting times with it."
        )
    if known.begin is None:
        # Nothing was seen that limits: what is assumed can wait until it is said what to do.
        return f"{says} {known.limit_says}"
    return f"{known.limit_says}{grown} {says}"


def _healthy(known: Advice, now: Change) -> str:
    limited = known.limit in ("kv_memory", "concurrency_cap")
    lead = "Both targets are kept all the same" if limited else "Nothing needs to change"
    if now.outcome is None:
        return f"{lead}."
    return (
        f"{lead}: the model gives {now.outcome.per_thousand.middle:.1f} preemptions per thousand requests and a TTFT "
        f"p95 of {seconds(now.outcome.ttft_p95.middle)} as things are."
    )


def _late(known: Advice, now: Change, first: Change | None) -> str:
    """Nothing is torn, and everybody waits."""
    preempts = now.outcome is not None and now.outcome.per_thousand.high > 0.0
    wait = "unknown" if now.outcome is None else seconds(now.outcome.ttft_p95.middle)
    text = (
        f"{'Hardly anything' if preempts else 'Nothing'} is preempted, but first tokens come late: TTFT p95 is {wait}, "
        f"and {known.target_ttft:g} s is the target."
    )
    if first is None:
        return (
            f"{text} None of the changes that were tried alone brings them in time: send this server less traffic, or "
            "add replicas."
        )
    return f"{text} The cheapest change that brings them in time: {_lower(first.title)} ({first.how}). {first.says}"


def _preempting(least: Need | None, first: Change | None, *, enough: bool) -> str:
    if least is None and first is None:
        return (
            "No KV cache up to eight times as large ends preemption: this server is asked for more than it can "
            "compute. Send it less traffic, or add replicas."
        )
    size = least.says if least else "No KV cache up to eight times as large ends preemption."
    if first is not None:
        return f"{size} The cheapest change that ends it: {_lower(first.title)} ({first.how}). {first.says}"
    alone = (
        "Of the changes that were tried alone, none ends preemption and keeps the time to first token within its target"
    )
    if enough:
        return f"{size} {alone}: it takes that much memory, in a larger GPU or in more replicas."
    return f"{size} {alone}, nor does that much memory: send this server less traffic, or add replicas."


def _grown(shift: Shift) -> str:
    return (
        f"The {shift.what} became {times(shift.before, shift.after)} since {moment(shift.since)}: find out why before "
        "you pay for memory."
    )


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
