"""The advice on what was seen: arithmetic first, then the model, which must first give what was observed."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvpressure.advise import changes, demand, described, fit, limits, seqs
from kvpressure.advise.advice import Advice, Calibration, Change, Shift
from kvpressure.advise.calibrate import calibration
from kvpressure.advise.changes import Present, Targets
from kvpressure.advise.conclusion import conclusion
from kvpressure.advise.have import have, have_of
from kvpressure.advise.lengths import quantile, ranked, together
from kvpressure.advise.report_words import moment
from kvpressure.advise.seen import AdviseError, Counted, Figure, Seen, Server, Slot
from kvpressure.advise.sweep import Setting, Sweep, Traffic
from kvpressure.advise.workload import Workload
from kvpressure.lab.leap import Job
from kvpressure.lab.model import Config, StepTime

_SEQS = 256
"""vLLM's own default of ``--max-num-seqs`` on GPUs of less than 70 GiB; larger ones have a higher one."""
_BATCH = 2048
"""vLLM's own default of ``--max-num-batched-tokens`` on these."""
_LARGER = ", which is vLLM's default on GPUs of less than 70 GiB and less than that of most larger ones"
BLOCK = described.BLOCK_SIZE
"""What is assumed of ``--block-size``."""
_P99 = 0.99

_INDEPENDENT = (
    "Prompt and answer lengths are drawn independently of each other: two histograms do not say how they go together."
)
_PREFIXES = (
    "The model shares no prompt prefixes. Where vLLM's prefix cache hits often, less memory is needed than it says."
)
_OFFLOADING = (
    "A slow offload or swap link is out of scope: KV offloading is not simulated, and nothing here says if it helps."
)

_UNLIMITED = (
    "The workload gives no max_tokens. Guaranteed admission then reserves what each answer really takes, which no "
    "gateway knows beforehand: it looks better than it can be."
)
_UNOBSERVED = "Nothing was observed: what limits this server is what the model says of it."
_USUAL_STEP = (
    "How long a step takes was not given, so that of an 8B model on a 24 GB card was assumed; waiting times, and how "
    "many replicas it takes, depend on it: give server.step_time."
)
_SHORTEST = 2
"""Tokens: a prompt of one, and one that answers it."""

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
        done: is called after each run of the model.
    """

    targets: Targets = field(default_factory=Targets)
    seeds: int = 10
    token_bytes: Figure = _NO_BYTES
    cores: int | None = None
    done: Callable[[], None] = lambda: None


RUNS = 100
"""About as many runs are made for each of the seeds: for a progress bar."""


def advise(seen: Seen, options: Options) -> Advice:
    """
    The advice on what was seen of an engine.

    Raises:
        AdviseError: nothing was seen.
    """
    if not seen.slots:
        raise AdviseError(f"{seen.source} has no samples in this range: choose another one")
    shifts = limits.shifts(seen)
    now = _after(seen.slots, shifts)
    word, says, evidence = limits.limit_now(seen, now, shifts)
    chosen = demand.busiest(now)
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
    guessed = _max_tokens(traffic.answers.most)
    notes = (*seen.notes, *assumed(seen.server), _INDEPENDENT, _arrivals(traffic), guessed, _PREFIXES, _OFFLOADING)
    answers = together(slot.answers for slot in chosen if slot.answers)
    present = _present(seen.server, traffic, options, answers)
    with Sweep(config, traffic, traffic.seconds, options.seeds, done=options.done, cores=options.cores) as sweep:
        compared = calibration(chosen, sweep.runs(Setting()), str(step), seen.sources)
        known = replace(bare, calibration=compared, notes=notes)
        if compared.holds is False:
            untried = tuple(Change(c.key, c.title, c.how, c.price, None, None, None, "") for c in _all(present))
            return replace(known, changes=untried, conclusion=f"{says} {compared.says}")
        return _simulated(known, sweep, present, options.targets)


def advise_on(workload: Workload, options: Options) -> Advice:
    """
    The advice on a workload that was described, not observed.

    Raises:
        AdviseError: it does not say how large the cache is.
    """
    step = workload.step or fit.USUAL
    says = (
        "as the workload states it" if workload.step else "of an 8B model on a 24 GB card: give step_time to change it"
    )
    config = config_of(workload.server, step)
    jobs = workload.jobs(0)
    unlimited = () if all(job.limit for job in jobs) else (_UNLIMITED,)
    refused = _refused(jobs, config.max_request_tokens)
    bare = Advice(
        model="",
        engine="",
        source=workload.source,
        begin=None,
        end=None,
        conclusion="",
        have=have_of(workload.server, jobs, workload.seconds),
        limit="unknown",
        limit_says=_UNOBSERVED if workload.step else f"{_UNOBSERVED} {_USUAL_STEP}",
        evidence=(),
        shifts=(),
        calibration=Calibration(
            (), None, f"{fit.said(step)}, {says}", "Nothing was observed that the model could be held against."
        ),
        need=None,
        changes=(),
        settings=None,
        notes=(*workload.notes, *refused, *assumed(workload.server), *unlimited, _PREFIXES, _OFFLOADING),
        period=f"The workload, {workload.seconds:g} s of it, was simulated with {options.seeds} seeds.",
        targets=str(options.targets),
        target_per_thousand=options.targets.per_thousand,
        target_ttft=options.targets.ttft,
        seeds=options.seeds,
    )
    with Sweep(config, workload, workload.seconds, options.seeds, done=options.done, cores=options.cores) as sweep:
        return _simulated(bare, sweep, _present(workload.server, workload, options), options.targets)


def _refused(jobs: Sequence[Job], most: int) -> tuple[str, ...]:
    """What must be said of prompts that vLLM would not take."""
    number = sum(job.prompt >= most for job in jobs)
    if not number:
        return ()
    which = f"{number:,} of {len(jobs):,} prompts have no room for an answer within the {most:,} tokens of a request"
    if 2 * number > len(jobs):
        raise AdviseError(
            f"{which}, so vLLM refuses most of this workload: give shorter ones, or a longer max_model_len"
        )
    return (f"{which}. vLLM refuses these; here they were shortened.",)


def config_of(server: Server, step: StepTime) -> Config:
    """
    The server as the model takes it.

    Raises:
        AdviseError: its capacity is not known, or takes no request.
    """
    capacity, size = server.capacity.value, server.block_size.value
    if capacity is None:
        raise AdviseError(f"the capacity of the KV cache is not known ({server.capacity.source})")
    blocks = round(capacity / (size or BLOCK))
    config = Config(
        num_gpu_blocks=max(2, blocks),
        block_size=round(size or BLOCK),
        max_model_len=round(server.max_model_len.value or capacity),
        max_num_seqs=round(server.max_num_seqs.value or _SEQS),
        max_num_batched_tokens=round(server.max_num_batched_tokens.value or _BATCH),
        prefix_caching=False,
        step_time=step,
    )
    if config.max_request_tokens < _SHORTEST:
        raise AdviseError(
            f"a request can have {config.max_request_tokens} token at most, which is too few for a prompt and an "
            "answer: give a longer --max-model-len, or a larger KV cache"
        )
    return config


def assumed(server: Server) -> tuple[str, ...]:
    """What is taken for granted where it is not known, in sentences."""
    found = []
    if server.block_size.value is None:
        found.append(f"The block size is not known; {BLOCK} tokens were assumed.")
    if server.max_num_seqs.value is None:
        found.append(
            f"vLLM does not tell --max-num-seqs; {_SEQS} was assumed{_LARGER}. Give yours with --max-num-seqs."
        )
    if server.max_num_batched_tokens.value is None:
        found.append(
            f"vLLM does not tell --max-num-batched-tokens; {_BATCH} was assumed{_LARGER}. Give yours with the flag of "
            "that name."
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
    # As the 95th percentile beside it is found, though the model draws from a smoother distribution.
    p99 = None if answers is None else quantile(answers, _P99)
    coarse = p99 is not None
    if p99 is None:
        lengths = [min(job.answer, job.max_tokens) for job in traffic.jobs(0)]
        highest = ranked(lengths, _P99) if lengths else 0
        p99 = highest if highest < max(lengths, default=0) else None
    replicas = round(server.replicas.value or 1)
    cap = None if p99 is None else math.ceil(p99)
    return Present(cap, coarse, replicas, server.cache_dtype, options.token_bytes)


def _max_tokens(most: int) -> str:
    """What guaranteed admission rests on, where requests were observed."""
    return (
        "What clients ask for as max_tokens is not read. Guaranteed admission needs it: each request is taken to ask "
        f"for {most:,} tokens, the longest answer that the histogram allows. Where clients ask for less, users wait "
        "less than it says."
    )


def _all(present: Present) -> list[changes.Candidate]:
    return [*changes.listed(present), changes.replicas(present, 1), *changes.admissions()]


def _simulated(known: Advice, sweep: Sweep, present: Present, targets: Targets) -> Advice:
    """All that the model says."""

    def tried(each: changes.Candidate) -> Change:
        return changes.change(each, sweep, targets)

    least = changes.need(sweep, targets, present)
    more = list(seqs.more(sweep, targets))
    found = [tried(each) for each in (changes.NOTHING, *more, *changes.listed(present))]
    for number in changes.MORE_REPLICAS:
        another = changes.replicas(present, number)
        found.append(tried(another))
        if not found[-1].prompt:
            # Where each of them has a full batch, a flag that costs nothing may save a GPU.
            found += [tried(each) for each in seqs.more(sweep, targets, another)]
        if found[-1].ends and found[-1].prompt:
            break
    most = seqs.most(sweep, more)
    settings = seqs.settings(sweep, targets, most)
    if settings.high is not None and settings.high < min(most, sweep.config.max_num_seqs):
        found.append(tried(seqs.fewer(settings.high)))
    found += [tried(each) for each in changes.admissions()]
    enough = least is not None and targets.prompt(sweep, Setting(blocks=least.blocks))
    queued = statistics.median(run.queued for run in sweep.runs(Setting()))
    return replace(
        known,
        need=least,
        changes=tuple(found),
        settings=settings,
        conclusion=conclusion(known, least, found, enough=enough, queued=queued),
    )


def _after(slots: tuple[Slot, ...], shifts: Sequence[Shift]) -> tuple[Slot, ...]:
    """The slots since lengths changed last: traffic as it is now."""
    since = max((shift.since for shift in shifts), default=0.0)
    return tuple(slot for slot in slots if slot.end > since)


def _period(chosen: Sequence[Slot]) -> str:
    begin, end = chosen[0].end - chosen[0].seconds, chosen[-1].end
    return (
        f"The busiest {_minutes(sum(slot.seconds for slot in chosen))} simulated, from {moment(begin)} to "
        f"{moment(end)}: those "
        "with most preemptions, or with most requests present where nothing was preempted."
    )


def _minutes(seconds: float) -> str:
    whole = round(seconds / 60)
    return f"{whole} minutes were" if whole > 1 else f"{seconds:.0f} seconds were"
