"""What to change next for each verdict, in order of cost, and the runbook that says it at length."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvpressure.derive.verdict import Verdict
from kvpressure.expose.page import words
from kvpressure.expose.page.sentences import Case

STORM_PER_THOUSAND = 50.0
"""Preemptions per thousand requests from which the runbook is that of a storm: where its alert begins by default."""

STORM, CHURN, MEMORY_BOUND = "KVPressurePreemptionStorm", "KVPressurePreemptionChurn", "KVPressureMemoryBound"
STALL, DOWN, MISSING = "KVPressureStallElsewhere", "KVPressureVLLMDown", "KVPressureSignalMissing"
PAUSING = "KVPressureRequestsPausing"
RUNBOOKS = (STORM, CHURN, MEMORY_BOUND, STALL, DOWN, MISSING, PAUSING)
"""The alerts whose runbooks the page leads to."""
_HOW_FAR = "Run kvpressure advise to learn how far to go."


@dataclass(frozen=True, slots=True)
class Next:
    """
    What to do.

    Args:
        steps: one sentence each, the cheapest first.
        runbook: the alert whose runbook says more; empty where there is nothing to say.
    """

    steps: tuple[str, ...]
    runbook: str = ""


def next_steps(case: Case) -> Next:
    """What to change where the verdict on an engine is this one."""
    return _STEPS[case.engine.verdict](case)


def _kv_memory(case: Case) -> Next:
    # What is in use already is no advice.
    fp8 = "fp8" in case.engine.cache_dtype.lower()
    burst = "Has load just arrived? Then wait some minutes: a burst settles by itself. If it does not:"
    memory = "More memory for the cache: a higher --gpu-memory-utilization, sharding, or another replica."
    steps = (
        burst if case.engine.regime == "onset" else None,
        "Cap max_tokens at what the product needs: no restart; longer answers are cut off.",
        None if fp8 else "FP8 KV cache (--kv-cache-dtype fp8), after an accuracy check: about twice the capacity.",
        f"{memory} {_HOW_FAR}",
        "Only then a lower --max-num-seqs: it moves the wait into the queue. Raising it makes this worse.",
    )
    return Next(tuple(step for step in steps if step), _pressure_runbook(case))


def _pressure_runbook(case: Case) -> str:
    rate = case.window.preemptions_per_thousand if case.window else None
    if rate is not None and rate >= STORM_PER_THOUSAND:
        return STORM
    return CHURN if case.engine.regime == "churn" else MEMORY_BOUND


def _stall_elsewhere(_case: Case) -> Next:
    return Next(
        (
            "Did it come with a rollout? Undo that first.",
            "Look at the host: CPU limits, other work on the node, the network. Move traffic away from the node.",
            "Long prompts: chunked prefill on, or a lower --max-num-batched-tokens. More KV memory will not help.",
        ),
        STALL,
    )


def _concurrency_cap(case: Case) -> Next:
    evidence = case.engine.evidence
    to = ""
    if evidence is not None and evidence.seats is not None:
        to = f", at most towards the {words.count(round(evidence.seats))} that the cache seats"
    step = f"Raise --max-num-seqs step by step{to}, and watch for preemptions."
    return Next((f"{step} {_HOW_FAR}",), MEMORY_BOUND)


def _healthy(case: Case) -> Next:
    if case.engine.regime == "onset":
        return Next(("Wait some minutes: a burst when load arrives settles by itself. If it does not, act.",), CHURN)
    window = case.stream_window
    if case.engine.regime == "churn" or (window is not None and window.paused_ratio):
        return Next(("Nothing at once; see whether users feel it.",), PAUSING)
    return Next(())


def _unknown(case: Case) -> Next:
    why = case.engine.why_unknown
    if why == "alternating":
        step = "Give --vllm.url the address of one server, never that of a Service in front of several."
        return Next((step,), MISSING)
    if why == "missing":
        return Next(("See which signals are missing below, and what would enable them.",), MISSING)
    # Where vLLM does not answer at all, that is said once for all of its engines.
    if why == "stale" and case.answers:
        return Next(("Was this engine taken away? vLLM does not speak of it any more.",), DOWN)
    return Next(())


_STEPS: Mapping[Verdict, Callable[[Case], Next]] = {
    "kv_memory": _kv_memory,
    "stall_elsewhere": _stall_elsewhere,
    "concurrency_cap": _concurrency_cap,
    "healthy": _healthy,
    "unknown": _unknown,
}
