"""The worked cases of ``kvpressure advise``: scenarios of the lab, advice on them, and what came of following it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from lab_rows import rows

from kvpressure import tables
from kvpressure.advise.advice import Advice, Band
from kvpressure.advise.build import Options, advise
from kvpressure.advise.recorded import seen_of
from kvpressure.lab.leap import Job, Outcome, leap
from kvpressure.lab.scenarios import SCENARIOS, Scenario
from kvpressure.lab.workload import arrivals

SECONDS = {"storm": 600.0, "bookstore": 1200.0, "long_answers": 900.0, "burst": 600.0}
"""How long each was watched."""
SINCE = {"storm": 0.0, "bookstore": 600.0, "long_answers": 300.0, "burst": 0.0}
"""When its storm begins."""
SEEDS = range(40)
TARGET = 5.0

_TITLES = {
    "storm": "A preemption storm: how much memory ends it?",
    "bookstore": "Answers 2.4 times longer overnight",
    "burst": "A burst of traffic, and no more memory: is there a band?",
}
_HEADER = ("change", "preemptions per 1000", "TTFT p95", "throughput", "ends it")


def scenario(name: str) -> Scenario:
    """One of the lab's, or `calm` with more users on less memory."""
    if name != "burst":
        return SCENARIOS[name]
    calm = SCENARIOS["calm"]
    phase = replace(calm.workload.phases[0], rate=4.0)
    return replace(
        calm,
        name="burst",
        summary="More users than fit at once, on a server that has the time to serve them one after another.",
        server=replace(calm.server, num_gpu_blocks=900),
        workload=replace(calm.workload, phases=(phase,)),
    )


@cache
def advised(name: str) -> Advice:
    """The advice on what a sampler saw of a scenario."""
    return advise(seen_of(rows(scenario(name), SECONDS[name]), source="the lab"), Options())


@cache
def again(name: str, seed: int, *, blocks: int | None = None, seqs: int | None = None) -> Outcome:
    """The same users on another server; `leap` is held equal to the lab's scheduler by its own tests."""
    case = scenario(name)
    jobs = (Job(each.time, each.prompt_tokens, each.answer_tokens) for each in arrivals(case.workload, seed))
    config = replace(
        case.server,
        num_gpu_blocks=blocks or case.server.num_gpu_blocks,
        max_num_seqs=seqs or case.server.max_num_seqs,
    )
    return leap(config, jobs, since=SINCE[name], until=SECONDS[name], patience=case.workload.patience)


def ended(name: str, **changes: int) -> int:
    """In how many of forty seeds the storm is over."""
    return sum(again(name, seed, **changes).per_thousand < TARGET for seed in SEEDS)


def markdown() -> str:
    """The worked cases, for the documentation."""
    return "\n\n".join(part for name in _TITLES for part in _case(name))


def _case(name: str) -> Iterator[str]:
    case, advice = scenario(name), advised(name)
    yield f"### {_TITLES[name]}"
    yield f"`{name}`: {case.summary}"
    yield f"> {advice.conclusion}"
    shown = [
        (
            change.title,
            _band(change.outcome.per_thousand, "{:,.0f}"),
            _band(change.outcome.ttft_p95, "{:,.2f} s"),
            f"{change.outcome.throughput.middle:,.0f} tokens/s",
            "yes" if change.ends else "no",
        )
        for change in advice.changes
        if change.outcome
    ]
    yield tables.markdown(_HEADER, shown)
    if advice.settings:
        yield f"`--max-num-seqs`: {advice.settings.says}"
    if advice.need and advice.need.growth:
        blocks, now = advice.need.blocks, case.server.num_gpu_blocks
        part = round(now + 0.75 * (blocks - now))
        yield (
            f"Followed on the lab, with the same users: with {blocks:,} blocks instead of {now:,} the storm is over "
            f"for {ended(name, blocks=blocks)} of forty seeds; with three quarters of the change, {part:,} blocks, for "
            f"{ended(name, blocks=part)} of them."
        )


def _band(band: Band, form: str) -> str:
    return f"{form.format(band.middle)} ({form.format(band.low)} to {form.format(band.high)})"
