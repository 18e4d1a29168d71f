"""
vLLM V1's scheduler as a discrete model: one call of ``step`` is one engine step. No clock, no I/O.

What it keeps of vLLM (v1/core/sched/scheduler.py, 0.32): running requests first, one token each while they decode;
then waiting ones, first come first served, if the whole sequence fits the free blocks now (growth is not reserved);
prefill in chunks under one token budget; a running request that cannot grow preempts the *last* running one, which
loses all its blocks, goes back to the head of the queue and is prefilled again, prompt and answer so far, as one; no
admission in a step that preempted; the preemption is reported late (see ``Config.async_scheduling``).
"""

from collections import deque

from kvpressure.lab.blocks import BlockPool
from kvpressure.lab.model import Config, FinishReason, Output, Request, Sequence, StepResult


class RequestTooLongError(ValueError):
    """The request could never be served, whatever else runs."""


class Scheduler:
    """
    The scheduler of one engine.

    Args:
        config: the server's settings.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.pool = BlockPool(config.num_gpu_blocks, caching=config.prefix_caching)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self._alive: dict[str, Sequence] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits, so that a step would do nothing."""
        return not self._alive

    def get(self, request_id: str) -> Sequence | None:
        """The sequence of a request that is alive."""
        return self._alive.get(request_id)

    def add(self, request: Request) -> Sequence:
        """
        Queue a request.

        Raises:
            RequestTooLongError: prompt and answer together can never fit.
            ValueError: the id is taken.
        """
        if request.prompt_tokens + request.max_tokens > self.config.max_request_tokens:
            raise RequestTooLongError(request.id)
        if request.id in self._alive:
            raise ValueError(f"request {request.id} is already there")
        sequence = Sequence(request)
        self._alive[request.id] = sequence
        self.waiting.append(sequence)
        return sequence

    def abort(self, request_id: str) -> bool:
        """Forget a request and free its blocks at once. Preemptions it has not reported yet are lost, as in vLLM."""
        sequence = self._alive.pop(request_id, None)
        if sequence is None:
            return False
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._free(sequence)
        return True

    def step(self) -> StepResult:
        """Schedule and compute one step."""
        work: dict[Sequence, int] = {}
        preempted: list[Sequence] = []
        budget = self._schedule_running(work, preempted)
        # Blocks that a preemption freed are for those still running: vLLM admits nobody in the same step.
        admitted = [] if preempted else self._admit(work, budget)
        decoding = sum(1 for sequence, tokens in work.items() if tokens == 1 and sequence.generated)
        prefill = sum(work.values()) - decoding
        outputs = self._compute(work)
        reporting = preempted if self.config.async_scheduling else [output.sequence for output in outputs]
        time = self.config.step_time
        return StepResult(
            duration=time.base + time.decode * decoding + time.prefill * prefill,
            outputs=tuple(outputs),
            admitted=tuple(admitted),
            preempted=tuple(preempted),
            reports=tuple(self._report(sequence) for sequence in reporting if sequence.unreported),
            prefill_tokens=prefill,
            decoding=decoding,
            running=len(self.running),
            waiting=len(self.waiting),
            usage=self.pool.usage,
        )

    def _schedule_running(self, work: dict[Sequence, int], preempted: list[Sequence]) -> int:
        """Give running sequences their tokens, oldest first; return what is left of the budget."""
        budget = self.config.max_num_batched_tokens
        index = 0
        # The list shrinks from its end while this walks it: `preempted` ones are behind the walker or are it.
        while index < len(self.running) and budget:
            sequence = self.running[index]
            tokens = min(sequence.tokens - sequence.computed, budget)
            while not self._grow(sequence, tokens):
                victim = self.running.pop()
                self._preempt(victim)
                preempted.append(victim)
                if victim is sequence:
                    return budget
            work[sequence] = tokens
            budget -= tokens
            index += 1
        return budget

    def _admit(self, work: dict[Sequence, int], budget: int) -> list[Sequence]:
        """Start waiting sequences in order, until one does not fit."""
        admitted: list[Sequence] = []
        while self.waiting and budget and len(self.running) < self.config.max_num_seqs:
            sequence = self.waiting[0]
            hits = self._hits(sequence)
            # The whole sequence must fit now, although only its first chunk is allocated now.
            if self._blocks_for(sequence.tokens) - len(hits) > self.pool.free - self.pool.unused(hits):
                break
            self.waiting.popleft()
            self.pool.share(hits)
            sequence.blocks = hits
            sequence.computed = len(hits) * self.config.block_size
            if not sequence.preemptions:
                sequence.cached_tokens = sequence.computed
            tokens = min(sequence.tokens - sequence.computed, budget)
            self._grow(sequence, tokens)
            self.running.append(sequence)
            admitted.append(sequence)
            work[sequence] = tokens
            budget -= tokens
        return admitted

    def _hits(self, sequence: Sequence) -> list[int]:
        """Cached blocks that the sequence can start from; its last token is always computed, for its output."""
        if not self.config.prefix_caching:
            return []
        full = (sequence.tokens - 1) // self.config.block_size
        return self.pool.hits(sequence.key(index) for index in range(full))

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Allocate what ``tokens`` more need; False if too few blocks are free."""
        after = sequence.computed + tokens
        missing = self._blocks_for(after) - len(sequence.blocks)
        if missing > self.pool.free:
            return False
        if missing > 0:
            sequence.blocks += self.pool.take(missing)
        if self.config.prefix_caching:
            size = self.config.block_size
            for index in range(sequence.computed // size, after // size):
                self.pool.name(sequence.blocks[index], sequence.key(index))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """The sequence, already out of the running list, loses everything that it computed."""
        self._free(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        sequence.unreported += 1
        self.waiting.appendleft(sequence)

    def _compute(self, work: dict[Sequence, int]) -> list[Output]:
        """Advance every scheduled sequence; those whose last token was computed put out one more."""
        outputs: list[Output] = []
        for sequence, tokens in work.items():
            sequence.computed += tokens
            if sequence.computed < sequence.tokens:
                continue
            sequence.generated += 1
            outputs.append(Output(sequence, self._finish_reason(sequence)))
        done = {output.sequence for output in outputs if output.finished}
        if done:
            self.running = [sequence for sequence in self.running if sequence not in done]
            for sequence in done:
                del self._alive[sequence.request.id]
        # In running order, not in the set's: the order of the free list decides what stays cached.
        for output in outputs:
            if output.finished:
                self._free(output.sequence)
        return outputs

    @staticmethod
    def _finish_reason(sequence: Sequence) -> FinishReason | None:
        request = sequence.request
        if sequence.generated >= request.max_tokens:
            return "length"
        if request.answer_tokens is not None and sequence.generated >= request.answer_tokens:
            return "stop"
        return None

    @staticmethod
    def _report(sequence: Sequence) -> tuple[Sequence, int]:
        reported, sequence.unreported = sequence.unreported, 0
        return sequence, reported

    def _free(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)
