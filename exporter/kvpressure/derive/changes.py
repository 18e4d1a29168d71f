"""What two neighbouring readings of one engine tell that neither of them says."""

from kvpressure.vllm.reading import EngineReading


def preemptions_inferred(before: EngineReading, after: EngineReading, nearly_full: float) -> float:
    """
    Preemptions that must have happened between two readings, whether or not vLLM has counted them.

    Of the requests that left the running set without finishing, at least as many as the queue grew by went back into
    it: ``min(-(Δrunning + Δfinished), Δwaiting)``. Admissions and arrivals in the same interval hide some, so this is
    a lower bound that fades with slower sampling. A client that aborts while another one arrives looks the same, so
    it is used only where KV usage was at least `nearly_full` at either reading.
    """
    gained = finished_between(before, after)
    if (
        gained is None
        or before.running is None
        or after.running is None
        or before.waiting is None
        or after.waiting is None
        or before.kv_usage is None
        or after.kv_usage is None
        or max(before.kv_usage, after.kv_usage) < nearly_full
    ):
        return 0.0
    left = before.running - after.running - gained
    return max(0.0, min(left, after.waiting - before.waiting))


def finished_between(before: EngineReading, after: EngineReading) -> float | None:
    """Requests that finished between two readings; None where that is not known, as after a restart."""
    if before.finished is None or after.finished is None:
        return None
    old = sum(before.finished.values())
    new = sum(after.finished.values())
    return new - old if new >= old else None


class StallWatch:
    """
    Time during which an engine that was streaming gave no token at all.

    A stall starts at the reading that last saw tokens move and is one once it lasts longer than `threshold` seconds.
    Only a batch that had streams in it can stall: a lone request in its prefill gives no token either, and nobody
    is kept from one. So at least one request that ran before the last tokens must still be running.
    """

    __slots__ = ("_since", "_stalled", "_threshold")

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._since: float | None = None
        self._stalled = False

    def observe(self, start: float, before: EngineReading, end: float, after: EngineReading, *, seen: bool) -> float:
        """Take the interval from the reading at `start` to the one at `end`; the seconds of stall that it reveals."""
        was_stalled, self._stalled = self._stalled, False
        if not seen or not before.running or not after.running or after.asleep or before.generation_tokens is None:
            self._since = None
            return 0.0
        if after.generation_tokens != before.generation_tokens:
            gained = finished_between(before, after)
            self._since = end if gained is not None and before.running - gained >= 1.0 else None
            return 0.0
        if self._since is None or end - self._since < self._threshold:
            return 0.0
        self._stalled = True
        return end - (start if was_stalled else self._since)
