"""What can be done to ``--max-num-seqs``: the band that keeps both targets, fewer at once, and more."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kvpressure.advise.advice import Point, Settings
from kvpressure.advise.changes import NOTHING, Candidate, Targets
from kvpressure.advise.sweep import Setting, Sweep

_CURVE = 7
"""Settings on the curve, beside the edges of the band."""
_MORE = (2, 4)
"""Times as many that are tried, until both targets are kept."""


def fewer(seqs: int) -> Candidate:
    """Fewer requests at once."""
    return Candidate(
        "max_num_seqs",
        f"At most {seqs} requests at once",
        f"--max-num-seqs {seqs}",
        "requests wait in the queue instead of being torn: answers that run hardly stop, others start later",
        Setting(seqs=seqs),
    )


def more(sweep: Sweep, targets: Targets, beside: Candidate = NOTHING) -> Iterator[Candidate]:
    """
    More at once, where the batch is full and nothing is preempted: else it is not what requests wait for.

    Args:
        sweep: the model.
        targets: what must hold.
        beside: what else is changed at the same time.
    """
    now = sweep.config.max_num_seqs
    if _top(sweep, beside.setting) < now or not targets.ended(sweep, beside.setting):
        return
    for times in _MORE:
        seqs = times * now
        if seqs > sweep.config.max_num_batched_tokens:
            return  # vLLM does not start
        tried = _more(times, seqs, now) if beside is NOTHING else _both(beside, _more(times, seqs, now))
        yield tried
        if targets.prompt(sweep, tried.setting) or not targets.ended(sweep, tried.setting):
            return


def _more(times: int, seqs: int, now: int) -> Candidate:
    return Candidate(
        f"more_seqs_{times}",
        f"Up to {seqs} requests at once instead of {now}",
        f"--max-num-seqs {seqs}",
        "each token takes a little longer, and more requests must fit into the KV cache",
        Setting(seqs=seqs),
    )


def _both(one: Candidate, other: Candidate) -> Candidate:
    return Candidate(
        f"{one.key}_{other.key}",
        f"{other.title}, and {one.title[:1].lower()}{one.title[1:]}",
        f"{other.how}; {one.how}",
        f"{one.price}; {other.price}",
        replace(one.setting, seqs=other.setting.seqs),
    )


def most(sweep: Sweep, tried: Sequence[Candidate]) -> int:
    """The highest setting that is looked at: one that is higher changes nothing, or preempts."""
    setting = tried[-1].setting if tried else NOTHING.setting
    return max(2, _top(sweep, setting))


def _top(sweep: Sweep, setting: Setting) -> int:
    """Most requests that ran at once."""
    return max(run.top_running for run in sweep.runs(setting))


def settings(sweep: Sweep, targets: Targets, most: int) -> Settings:
    """
    The band that keeps both targets.

    Args:
        sweep: the model.
        targets: what must hold.
        most: the highest setting that is looked at.
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
        return Settings(points, None, None, _no_band(targets, high, most))
    return Settings(
        points, least_prompt, high, _band(least_prompt, high, idle=high == most < sweep.config.max_num_seqs)
    )


def _band(low: int, high: int, *, idle: bool) -> str:
    if idle:
        return f"From {low} on neither target is broken. More than {high} never ran at once: all above it is like it."
    if low < high:
        return f"Between {low} and {high} neither target is broken."
    return f"Only at {high} neither target is broken."


def _no_band(targets: Targets, high: int | None, most: int) -> str:
    if high == most:
        return (
            f"No setting of --max-num-seqs up to {most} keeps both targets: none preempts, and first tokens take over "
            f"{targets.ttft:g} s at each."
        )
    slow = (
        "" if high is None else f", and at {high} or less, where it does not, first tokens take over {targets.ttft:g} s"
    )
    return f"No setting of --max-num-seqs keeps both targets: it goes on preempting{slow}. Add capacity."


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
