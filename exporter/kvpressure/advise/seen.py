"""What was seen of one engine, whichever source it comes from: the one thing that all advice is made of."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figure:
    """
    A number with where it comes from.

    Args:
        value: it; None where it is not known, and then `source` says why.
        unit: in words, as ``tokens`` or ``requests``; empty for a plain ratio.
        source: the query, the formula, the flag or the file that gave it.
        estimate: whether it is one.
    """

    value: float | None
    unit: str
    source: str
    estimate: bool = False


@dataclass(frozen=True, slots=True)
class Counted:
    """
    Observations of a classic histogram within one slot.

    Args:
        edges: upper bounds, ascending, the last one infinite.
        counts: observations in each bucket by itself (not cumulative), one per edge.
        sum: of all observations.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    @property
    def count(self) -> float:
        """The number of observations."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Slot:
    """
    What an engine did between two looks at it. None is not known, and never 0.

    Args:
        end: seconds since 1970.
        seconds: its length.
        finished: requests that came to their end.
        tokens: answer tokens that came out, of running requests too.
        preemptions: that vLLM counted.
        running: requests in the batch, mean over the slot.
        waiting: requests in the queue, mean over the slot.
        peak: most requests running and waiting at once.
        usage: of the KV cache, 0 to 1, mean over the slot.
        observed: seconds that the sidecar watched.
        pinned: seconds of them with the cache full.
        blocked: seconds of them with requests that waited for KV blocks.
        streamed: requests whose stream was seen.
        paused: requests of them that paused for over a second.
        prompts: tokens of finished requests' prompts.
        answers: tokens of finished requests' answers.
        gaps: seconds between tokens.
        first_tokens: seconds until the first token.
        regime: the sidecar's word at its end; empty where not known.
        verdict: the sidecar's word at its end; empty where not known.
    """

    end: float
    seconds: float
    finished: float | None = None
    tokens: float | None = None
    preemptions: float | None = None
    running: float | None = None
    waiting: float | None = None
    peak: float | None = None
    usage: float | None = None
    observed: float | None = None
    pinned: float | None = None
    blocked: float | None = None
    streamed: float | None = None
    paused: float | None = None
    prompts: Counted | None = None
    answers: Counted | None = None
    gaps: Counted | None = None
    first_tokens: Counted | None = None
    regime: str = ""
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """
    How an engine is set up, each number with its source.

    Args:
        capacity: tokens that its KV cache holds.
        block_size: tokens per block.
        max_num_seqs: most requests that run at once. vLLM does not tell: None, unless a flag or a workload does.
        max_model_len: most tokens of one request.
        max_num_batched_tokens: token budget of one step.
        replicas: engines that share the traffic of the model.
        cache_dtype: as vLLM calls it; empty where not known.
    """

    capacity: Figure
    block_size: Figure
    max_num_seqs: Figure
    max_model_len: Figure
    max_num_batched_tokens: Figure
    replicas: Figure
    cache_dtype: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """
    One engine over a range of time.

    Args:
        model: its name.
        engine: its rank.
        source: in words, as ``Prometheus at http://...``, or the recording's path.
        server: how it is set up.
        slots: in order of time; time that nobody watched is in none.
        sources: the query or the rule behind each field of a slot, by the field's name. Where the sum of a histogram is
            a query of its own, that is there by the field's name and ``_sum``.
        notes: what the reader must know of it, in whole sentences: what is missing, what was assumed.
    """

    model: str
    engine: str
    source: str
    server: Server
    slots: tuple[Slot, ...]
    sources: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class AdviseError(ValueError):
    """What was given cannot be used; the message is one sentence that says what and what to do."""
