"""What the scheduler is told and what it tells, as data."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class StepTime:
    """
    How long a step takes: ``base + decode * decoding requests + prefill * prefill tokens``, in seconds.

    Args:
        base: reading the weights once, and the host's own work.
        decode: one request's share of attention and sampling.
        prefill: one prompt token, also of a recompute.
    """

    base: float = 0.012
    decode: float = 0.0003
    prefill: float = 0.00012


@dataclass(frozen=True, slots=True)
class Config:
    """
    What an operator sets on the server.

    Args:
        num_gpu_blocks: KV blocks, the unusable null block among them; at least 2.
        block_size: tokens per block.
        max_model_len: most tokens of one request, prompt and answer.
        max_num_seqs: most requests that run at once.
        max_num_batched_tokens: token budget of one step.
        prefix_caching: reuse blocks of equal prefixes.
        async_scheduling: report a preemption at the end of the step in which it happened, as vLLM does when it
            schedules one step ahead (the default since 0.14). Off: with the victim's next output.
        step_time: how long steps take.
    """

    num_gpu_blocks: int
    block_size: int = 16
    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    prefix_caching: bool = True
    async_scheduling: bool = False
    step_time: StepTime = StepTime()

    @property
    def max_request_tokens(self) -> int:
        """The longest request that can ever be served: it fits the model and, alone, the cache."""
        return min(self.max_model_len, (self.num_gpu_blocks - 1) * self.block_size)


@dataclass(frozen=True, slots=True)
class Request:
    """
    What one user asks.

    Args:
        id: unique among the requests that are alive.
        prompt_tokens: at least 1.
        max_tokens: most answer tokens, at least 1.
        answer_tokens: where the answer ends by itself, 1 to ``max_tokens``; None: at ``max_tokens``.
        block_keys: what the prompt's leading full blocks contain, for reuse between requests. Blocks beyond these
            are the request's own.
    """

    id: str
    prompt_tokens: int
    max_tokens: int
    answer_tokens: int | None = None
    block_keys: tuple[Hashable, ...] = ()


@dataclass(slots=True, eq=False)
class Sequence:
    """
    A request inside the scheduler.

    Args:
        request: what was asked.
        generated: answer tokens so far.
        computed: tokens whose KV entries are in blocks.
        blocks: the blocks it holds; none while it waits.
        preemptions: how often it lost them.
        unreported: preemptions that no output has reported yet.
        cached_tokens: prompt tokens that its first admission found in the prefix cache.
    """

    request: Request
    generated: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    preemptions: int = 0
    unreported: int = 0
    cached_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and answer so far."""
        return self.request.prompt_tokens + self.generated

    def key(self, index: int) -> Hashable:
        """What its block ``index`` contains."""
        keys = self.request.block_keys
        return keys[index] if index < len(keys) else (self.request.id, index)


@dataclass(frozen=True, slots=True)
class Output:
    """One token of one request. ``sequence`` is the scheduler's own object: read it before the next step."""

    sequence: Sequence
    finished: FinishReason | None


@dataclass(frozen=True, slots=True)
class StepResult:
    """
    What one step did.

    Args:
        duration: seconds by ``StepTime``.
        outputs: the tokens it made, in running order.
        admitted: sequences that went from waiting to running, resumed ones too.
        preempted: sequences that lost their blocks, in that order.
        reports: by how much each sequence moves vLLM's counter at the end of this step, if its user is still there.
        prefill_tokens: prompt and recomputed tokens that were computed.
        decoding: requests that decoded one token.
        running: running requests at the end of the step.
        waiting: waiting requests at the end of the step.
        usage: share of usable blocks with a user after finished requests were freed, 0 to 1.
    """

    duration: float
    outputs: tuple[Output, ...]
    admitted: tuple[Sequence, ...]
    preempted: tuple[Sequence, ...]
    reports: tuple[tuple[Sequence, int], ...]
    prefill_tokens: int
    decoding: int
    running: int
    waiting: int
    usage: float
