"""
One run of the fast simulator: what ``scheduler.py``, ``engine.py`` and ``load.py`` do, and why it costs less.

A sequence that decodes computes one token in every step, so nothing is kept per step of it: what it has computed is
its ``offset`` plus the number of steps so far (the tick), and how many of them need a new block in a step is counted by
the tick modulo the block size. A step in which nothing but decoding happens is then a few additions, however many
run; the others touch only the sequences that start, end, prefill or lose their blocks.

What makes this simple: whoever is admitted leaves everybody a token of the budget, so a running sequence either
decodes one token in a step or is in the middle of its prefill; at most one is, it is the last of the batch, and nobody
is admitted behind it.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from math import inf

from kvpressure.lab.leap_figures import Tally
from kvpressure.lab.leap_model import Admission, Job
from kvpressure.lab.leap_users import Sequence, Users
from kvpressure.lab.model import Config


class Run:
    """
    One run.

    Args:
        config: the server's settings.
        jobs: in order of arrival.
        admission: what else must hold before a request starts.
        patience: seconds after which a request without a first token leaves.
        tally: takes what happens.
    """

    def __init__(
        self, config: Config, jobs: Iterable[Job], admission: Admission, patience: float, tally: Tally
    ) -> None:
        self._config = config
        self._size = config.block_size
        self._admission = admission
        self._tally = tally
        self._users = Users(config, jobs, patience, tally)
        self._clock = 0.0
        self._tick = 0
        self._free = tally.usable
        self._reserved = 0
        self._waiting: deque[Sequence] = deque()
        # In running order. A dict drops from its end (preemption) as well as from its middle (finish).
        self._decoding: dict[Sequence, None] = {}
        self._partial: Sequence | None = None
        # How many of them need a block in a step whose tick has this remainder.
        self._demand = [0] * self._size
        self._ends: list[tuple[int, int, Sequence]] = []
        # Of the step that is being made: tokens of prefill, the single ones among them that count as decoding, and
        # whose prefill it completes.
        self._prefilled = 0
        self._single = 0
        self._ready: list[Sequence] = []
        # The tick of the window's first step, and that of its newest step that took longer than a pause.
        self._opened = 0
        self._long = 0

    def run(self) -> None:
        """Take all steps."""
        while self._clock < self._tally.until:
            self._waiting.extend(self._users.come(self._clock))
            for sequence in self._users.leave(self._clock):
                self._leave(sequence)
            if self._decoding or self._partial or self._waiting:
                if not self._step():
                    break
                self._stretch()
            elif self._users.next_time < inf:
                self._clock = self._users.next_time
            else:
                return
        self._tally.hold(self._tally.until)
        for sequence in self._decoding:
            self._account(sequence)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._size)

    def _leave(self, sequence: Sequence) -> None:
        """Its user goes: it waits, or it is in the middle of its prefill."""
        if sequence is self._partial:
            self._partial = None
            self._release(sequence)
        else:
            self._waiting.remove(sequence)

    def _step(self) -> bool:
        """One whole step, as ``Scheduler.step`` takes it; False if it ends after the window, and nothing came of it."""
        self._prefilled = self._single = 0
        preempted = self._make_room()
        decoding = len(self._decoding)
        budget = self._config.max_num_batched_tokens - decoding
        if self._partial is not None:
            budget -= self._prefill(self._partial, budget)
        if not preempted:
            self._admit(budget)
        time = self._config.step_time
        now = self._clock + (time.base + time.decode * (decoding + self._single) + time.prefill * self._prefilled)
        tally = self._tally
        if now > tally.until:
            return False
        tally.hold(now)
        gap = now - self._clock
        self._clock = now
        self._tick += 1
        if now > tally.since:
            if not self._opened:
                self._opened = self._tick
            if preempted:
                tally.preemption_times.append((now, preempted))
            if gap > tally.pause:
                self._long = self._tick
            tally.decoded(decoding, gap)
        for sequence in self._ready:
            self._emit(sequence)
        self._ready.clear()
        self._finish()
        tally.state(len(self._decoding) + (self._partial is not None), len(self._waiting), self._free)
        return True

    def _make_room(self) -> int:
        """Give whoever runs the blocks of this step; return how many were preempted for it, the last one first."""
        phase = self._tick % self._size
        demand = self._demand[phase]
        preempted = 0
        partial = self._partial
        if partial is not None:
            after = partial.computed + min(
                partial.tokens - partial.computed, self._config.max_num_batched_tokens - len(self._decoding)
            )
            if demand + self._blocks(after) - self._blocks(partial.computed) > self._free:
                self._partial = None
                self._preempt(partial)
                preempted += 1
        while demand > self._free:
            sequence, _ = self._decoding.popitem()
            demand -= (sequence.offset + self._tick) % self._size == 0
            self._stop(sequence)
            self._preempt(sequence)
            preempted += 1
        self._free -= demand
        return preempted

    def _admit(self, budget: int) -> None:
        """Start waiting sequences in order, until one does not fit."""
        while budget and self._waiting and self._fits(self._waiting[0], self._free):
            sequence = self._waiting.popleft()
            self._reserved += sequence.reserve
            budget -= self._prefill(sequence, budget)

    def _fits(self, sequence: Sequence, free: int) -> bool:
        """Whether the whole sequence may start beside all that run now."""
        running = len(self._decoding) + len(self._ready) + (self._partial is not None)
        if running >= self._config.max_num_seqs:
            return False
        if self._admission.guaranteed and self._reserved + sequence.reserve > self._tally.usable:
            return False
        return self._blocks(sequence.tokens) + (self._admission.headroom if running else 0) <= free

    def _prefill(self, sequence: Sequence, budget: int) -> int:
        """Compute as much of it as the budget allows; return the tokens."""
        missing = sequence.tokens - sequence.computed
        tokens = min(missing, budget)
        self._free -= self._blocks(sequence.computed + tokens) - self._blocks(sequence.computed)
        sequence.computed += tokens
        # The lab takes a single token of a sequence that has an answer for decoding, whatever it really is.
        if tokens == 1 and sequence.started:
            self._single += 1
        else:
            self._prefilled += tokens
        if tokens == missing:
            self._ready.append(sequence)
            self._partial = None
        else:
            self._partial = sequence
        return tokens

    def _emit(self, sequence: Sequence) -> None:
        """Its prefill is complete and gives a token, its first one or the first after a preemption."""
        tally = self._tally
        if self._clock > tally.since:
            if sequence.started:
                gap = self._clock - sequence.last
                tally.decoded(1, gap)
                self._count(sequence, paused=gap > tally.pause)
            else:
                tally.tokens += 1
                tally.first_tokens.append(self._clock - sequence.arrival)
                self._count(sequence, paused=False)
        sequence.started = True
        sequence.tokens += 1
        self._decoding[sequence] = None
        sequence.entered = self._tick
        sequence.offset = sequence.computed - self._tick
        self._demand[-sequence.offset % self._size] += 1
        sequence.end = self._tick + sequence.length - sequence.tokens
        heapq.heappush(self._ends, (sequence.end, sequence.number, sequence))

    def _finish(self) -> None:
        """Let go whoever's answer is complete."""
        while self._next_end() <= self._tick:
            _, _, sequence = heapq.heappop(self._ends)
            del self._decoding[sequence]
            self._stop(sequence)
            self._release(sequence)
            if self._clock > self._tally.since:
                self._tally.finished += 1

    def _next_end(self) -> float:
        """The tick at which the next answer is complete. Ends of sequences that were preempted since are dropped."""
        ends = self._ends
        while ends and ends[0][2].end != ends[0][0]:
            heapq.heappop(ends)
        return ends[0][0] if ends else inf

    def _stop(self, sequence: Sequence) -> None:
        """It decodes no more, and has its newest token since the end of the last step."""
        self._account(sequence)
        self._demand[-sequence.offset % self._size] -= 1
        sequence.computed = sequence.offset + self._tick
        sequence.tokens = sequence.computed + 1
        sequence.last = self._clock
        sequence.end = 0

    def _preempt(self, sequence: Sequence) -> None:
        """It loses all its blocks and heads the queue."""
        self._release(sequence)
        sequence.computed = 0
        self._waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._free += self._blocks(sequence.computed)
        self._reserved -= sequence.reserve

    def _account(self, sequence: Sequence) -> None:
        """See what came of it while it decoded: it got a token at the tick ``entered`` and at every one since."""
        if self._opened:
            self._count(sequence, paused=self._long > sequence.entered)

    def _count(self, sequence: Sequence, *, paused: bool) -> None:
        if not sequence.streamed:
            sequence.streamed = True
            self._tally.streamed += 1
        if paused and not sequence.paused:
            sequence.paused = True
            self._tally.paused += 1

    def _stretch(self) -> None:
        """Take the steps from here on in which nothing but decoding happens. Where in doubt, leave it to `_step`."""
        decoding = len(self._decoding)
        phases, size, tick, free = self._demand, self._size, self._tick, self._free
        # Who does not fit the blocks of the next step does not fit later either: they only grow fewer.
        admits = self._waiting and self._fits(self._waiting[0], free - phases[tick % size])
        if admits or not decoding or self._partial is not None:
            return
        tally = self._tally
        inside = self._clock > tally.since
        time = self._config.step_time
        duration = time.base + time.decode * decoding
        # Of steps that are taken here, all end in the window or none does.
        due = min(self._users.due, (tally.until if inside else tally.since) - 2 * duration)
        last = self._next_end() - 1
        clock, long = self._clock, self._long
        pause, pin_free, short = tally.pause, tally.pin_free, tally.short
        sums = pinned = blocked = 0
        while tick < last and clock < due and (demand := phases[tick % size]) <= free:
            sums += free
            pinned += free <= pin_free
            blocked += free < short
            free -= demand
            tick += 1
            before = clock
            clock += duration
            if clock - before > pause:
                long = tick
        if inside:
            self._long = long
            tally.stretch((tick - self._tick) * duration, sums * duration, pinned * duration, blocked * duration)
            tally.decoded(decoding * (tick - self._tick), duration)
        self._tick, self._free = tick, free
        self._clock = tally.now = clock
        tally.free = free
