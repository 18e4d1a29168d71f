"""The advice on what was seen: arithmetic first, then the model, which must first give what was observed."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from kvpressure.advise import changes, demand, fit, limits
from kvpressure.advise.advice import Advice, Calibration, Change, Need, Outcome, Shift
from kvpressure.advise.calibrate import calibration
from kvpressure.advise.changes import Present, Targets
from kvpressure.advise.have import have, have_of
from kvpressure.advise.lengths import together
from kvpressure.advise.seen import AdviseError, Counted, Figure, Seen, Server, Slot
from kvpressure.advise.sweep import Run, Setting, Sweep, Traffic, outcome
from kvpressure.advise.workload import Workload
from kvpressure.derive.quantile import histogram_quantile
from kvpressure.lab.model import Config, StepTime

_SEQS = 256
"""vLLM's own default of ``--max-num-seqs`` on most GPUs."""
_BATCH = 2048
"""vLLM's own default of ``--max-num-batched-tokens`` on most GPUs."""
BLOCK = 16
"""vLLM's own default of ``--block-size`` on GPUs."""
_P99 = 0.99
USUAL = StepTime(0.018, 0.0002, 0.00014)
"""An 8B model in 16 bit on a 24 GB card with 0.9 TB/s."""

_INDEPENDENT = (
    "Prompt and answer lengths are drawn independently of each other: two histograms do not say how they go together."
)
_PREFIXES = (
    "The model shares no prompt prefixes. Where vLLM's prefix cache hits often, less memory is needed than it says."
)
_OFFLOADING = (
    "A slow offload or swap link is out of scope: KV offloading is not simulated, and nothing here says if it helps."
)

_NO_BYTES = Figure(None, "bytes", "give --model-config to know it")


@dataclass(frozen=True, slots=True)
class Options:
    """
    How to advise.

    Args:
        targets: what must hold.
        seeds: runs of the model for each setting.
        token_bytes: bytes of KV cache per token, where the model's config.json was given.
        cores: processes at once; None for all.
        done: is called now and then, as runs are over.
    """

    targets: Targets = field(default_factory=Targets)
    seeds: int = 10
    token_bytes: Figure = _NO_BYTES
    cores: int | None = None
    done: Callable[[], None] = lambda: None


RUNS = 250
"""About as often `done` is called: for a progress bar."""


def advise(seen: Seen, options: Options) -> Advice:
    """
    The advice on what was seen of an engine.

    Raises:
        AdviseError: nothing was seen.
    """
    if not seen.slots:
        raise AdviseError(f"{seen.source} has no samples in this range: choose another one")
    word, says, evidence = limits.limit(seen)
    shifts = limits.shifts(seen)
    chosen = demand.busiest(_after(seen.slots, shifts))
    bare = Advice(
        model=seen.model,
        engine=seen.engine,
        source=seen.source,
        begin=seen.slots[0].end - seen.slots[0].seconds,
        end=seen.slots[-1].end,
        conclusion="",
        have=have(seen, chosen),
        limit=word,
        limit_says=says,
        evidence=evidence,
        shifts=shifts,
        calibration=None,
        need=None,
        changes=(),
        settings=None,
        notes=seen.notes,
        period=_period(chosen),
        targets=str(options.targets),
        target_per_thousand=options.targets.per_thousand,
        target_ttft=options.targets.ttft,
        seeds=options.seeds,
    )
    try:
        step = fit.fit(seen.slots)
        config = config_of(seen.server, step.step)
        traffic = demand.demand(seen.slots, chosen, seen.server.max_model_len.value)
    except AdviseError as fault:
        return replace(bare, conclusion=f"{says} Changes were not simulated: {fault}.")
    notes = (*seen.notes, *assumed(seen.server), _INDEPENDENT, _arrivals(traffic), _PREFIXES, _OFFLOADING)
    answers = together(slot.answers for slot in chosen if slot.answers)
    present = _present(seen.server, traffic, options, answers)
    with Sweep(config, traffic, traffic.seconds, options.seeds, done=options.done, cores=options.cores) as sweep:
        compared = calibration(chosen, sweep.runs(Setting()), str(step), seen.sources)
        known = replace(bare, calibration=compared, notes=notes)
        if compared.holds is False:
            untried = tuple(Change(c.key, c.title, c.how, c.price, None, None, "") for c in _all(present))
            return replace(known, changes=untried, conclusion=f"{says} {compared.says}")
        return _simulated(known, sweep, present, options.targets)


def advise_on(workload: Workload, options: Options) -> Advice:
    """
    The advice on a workload that was described, not observed.

    Raises:
        AdviseError: it does not say how large the cache is.
    """
    step = workload.step or USUAL
    says = (
        "as the workload states it" if workload.step else "of an 8B model on a 24 GB card: give step_time to change it"
    )
    config = config_of(workload.server, step)
    bare = Advice(
        model="",
        engine="",
        source=workload.source,
        begin=None,
        end=None,
        conclusion="",
        have=have_of(workload.server, workload.jobs(0)),
        limit="unknown",
        limit_says="Nothing was observed: what limits this server is what the model says of it.",
        evidence=(),
        shifts=(),
        calibration=Calibration(
            (), None, f"{step}, {says}", "Nothing was observed that the model could be held against."
        ),
        need=None,
        changes=(),
        settings=None,
        notes=(*workload.notes, *assumed(workload.server), _PREFIXES, _OFFLOADING),
        period=f"The workload, {workload.seconds / 60:g} minutes of it, was simulated with {options.seeds} seeds.",
        targets=str(options.targets),
        target_per_thousand=options.targets.per_thousand,
        target_ttft=options.targets.ttft,
        seeds=options.seeds,
    )
    with Sweep(config, workload, workload.seconds, options.seeds, done=options.done, cores=options.cores) as sweep:
        return _simulated(bare, sweep, _present(workload.server, workload, options), options.targets)


def config_of(server: Server, step: StepTime) -> Config:
    """
    The server as the model takes it.

    Raises:
        AdviseError: its capacity is not known.
    """
    capacity, size = server.capacity.value, server.block_size.value
    if capacity is None:
        raise AdviseError(f"the capacity of the KV cache is not known ({server.capacity.source})")
    blocks = round(capacity / (size or BLOCK))
    return Config(
        num_gpu_blocks=max(2, blocks),
        block_size=round(size or BLOCK),
        max_model_len=round(server.max_model_len.value or capacity),
        max_num_seqs=round(server.max_num_seqs.value or _SEQS),
        max_num_batched_tokens=round(server.max_num_batched_tokens.value or _BATCH),
        prefix_caching=False,
        step_time=step,
    )


def assumed(server: Server) -> tuple[str, ...]:
    """What is taken for granted where it is not known, in sentences."""
    found = []
    if server.block_size.value is None:
        found.append(f"The block size is not known; {BLOCK} tokens were assumed.")
    if server.max_num_seqs.value is None:
        found.append(f"vLLM does not tell --max-num-seqs; {_SEQS} was assumed. Give yours with --max-num-seqs.")
    if server.max_num_batched_tokens.value is None:
        found.append(
            f"vLLM does not tell --max-num-batched-tokens; {_BATCH} was assumed. Give yours with the flag of that name."
        )
    return tuple(found)


def _arrivals(traffic: demand.Demand) -> str:
    """Where the rate comes from."""
    rule = "Arrivals are those that finished, and what the batch and the queue grew by"
    if traffic.unseen is None:
        return (
            f"{rule}. Users who left while they waited are in none of vLLM's counters, and the time to first token, "
            "which would tell of them, is not known: the true demand may be higher."
        )
    if not traffic.unseen:
        return f"{rule}: {traffic.rate:.2f} requests per second. Users who left early are in none of vLLM's counters."
    return (
        f"{rule}. Users who left while they waited are in none of vLLM's counters, but stood in the queue: by Little's "
        f"law (mean queue {traffic.queue:.1f} / mean time to first token {traffic.first_token:.1f} s) "
        f"{traffic.rate:.2f} requests per second came, of which "
        f"{100 * traffic.unseen:.0f} % left. All are taken to be served."
    )


def _present(server: Server, traffic: Traffic, options: Options, answers: Counted | None = None) -> Present:
    p99: float | None = None
    if answers is not None:
        # As the 95th percentile beside it is found, though the model draws from a smoother distribution.
        p99 = histogram_quantile(_P99, answers.edges, tuple(accumulate(answers.counts)))
    if p99 is None:
        lengths = sorted(job.answer for job in traffic.jobs(0))
        p99 = lengths[min(len(lengths) - 1, int(_P99 * len(lengths)))] if lengths else 1
    return Present(math.ceil(p99), round(server.replicas.value or 1), server.cache_dtype, options.token_bytes)


def _all(present: Present) -> list[changes.Candidate]:
    return [*changes.listed(present), changes.replicas(present, 1), *changes.outside()]


def _simulated(known: Advice, sweep: Sweep, present: Present, targets: Targets) -> Advice:
    """All that the model says."""
    runs = sweep.runs(Setting())
    now = outcome(runs)
    least = changes.need(sweep, targets, present)
    tried = [changes.change(each, sweep, targets, now) for each in (changes.NOTHING, *changes.listed(present))]
    for more in changes.MORE_REPLICAS:
        tried.append(changes.change(changes.replicas(present, more), sweep, targets, now))
        if tried[-1].ends:
            break
    settings = changes.settings(sweep, targets, _most_at_once(sweep, runs))
    if settings.high is not None:
        tried.append(changes.change(changes.fewer(settings.high), sweep, targets, now))
    tried += [changes.change(each, sweep, targets, now) for each in changes.outside()]
    return replace(
        known,
        need=least,
        changes=tuple(tried),
        settings=settings,
        conclusion=_conclusion(known, now, least, tried, healthy=targets.ended(sweep, Setting())),
    )


def _most_at_once(sweep: Sweep, runs: Sequence[Run]) -> int:
    """A higher setting of ``--max-num-seqs`` than this changes nothing."""
    return max(2, min(sweep.config.max_num_seqs, max(run.top_running for run in runs)))


def _conclusion(known: Advice, now: Outcome, least: Need | None, tried: Sequence[Change], *, healthy: bool) -> str:
    begun = known.limit_says + "".join(f" {_shifted(shift)}" for shift in known.shifts if shift.after > shift.before)
    if healthy:
        rest = f"the model gives {now.per_thousand.middle:.1f} preemptions per thousand requests as things are."
        return f"{known.limit_says} Nothing needs to change: {rest}"
    first = next((change for change in tried[1:] if change.ends and _in_time(change, known)), None)
    if least is None and first is None:
        return (
            f"{begun} No KV cache up to eight times as large ends preemption: this server is asked for more "
            "than it can compute. Send it less traffic, or add replicas."
        )
    size = least.says if least else "No KV cache up to eight times as large ends preemption."
    if first is None:
        return (
            f"{begun} {size} Of the changes that were tried alone, none ends preemption and keeps the "
            "time to first token within its target: it takes that much memory, in a larger GPU or in more replicas."
        )
    cheapest = f"The cheapest change that ends it: {_lower(first.title)} ({first.how})."
    return f"{begun} {size} {cheapest} {first.says}"


def _in_time(change: Change, known: Advice) -> bool:
    """Whether first tokens come within their target, too."""
    target = known.target_ttft
    return change.outcome is not None and (target is None or change.outcome.ttft_p95.high <= target)


def _shifted(shift: Shift) -> str:
    return (
        f"The {shift.what} became {shift.after / shift.before:.1f} times longer since {_clock(shift.since)}: find out "
        "why before you pay for memory."
    )


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _after(slots: tuple[Slot, ...], shifts: Sequence[Shift]) -> tuple[Slot, ...]:
    """The slots since lengths changed last: traffic as it is now."""
    since = max((shift.since for shift in shifts), default=0.0)
    return tuple(slot for slot in slots if slot.end > since)


def _period(chosen: Sequence[Slot]) -> str:
    begin, end = chosen[0].end - chosen[0].seconds, chosen[-1].end
    return (
        f"The busiest {_minutes(end - begin)} simulated, from {_clock(begin)} to {_clock(end)}: those "
        "with most preemptions, or with most requests present where nothing was preempted."
    )


def _minutes(seconds: float) -> str:
    whole = round(seconds / 60)
    return f"{whole} minutes were" if whole > 1 else f"{seconds:.0f} seconds were"


def _clock(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(t))
