"""What `leap` promises, by the lab itself: the engine step by step, users as in load.py, sums over every step."""

import heapq
from collections import deque
from dataclasses import replace

from kvpressure.lab.engine import Engine
from kvpressure.lab.leap import Admission, Outcome
from kvpressure.lab.model import Request
from kvpressure.lab.scheduler import RequestTooLongError, Scheduler
from kvpressure.lab.simulate import PIN_USAGE

INF = float("inf")


class Careful(Scheduler):
    """The lab's scheduler, which asks the rules of an `Admission` before it admits the head of the queue."""

    def __init__(self, config, admission):
        super().__init__(config)
        self.admission = admission

    def _admit(self, work, budget):
        queue, admitted = self.waiting, []
        while queue and self._may(queue[0]):
            self.waiting = deque([queue[0]])
            if not super()._admit(work, budget):
                break
            admitted.append(queue.popleft())
            budget -= work[admitted[-1]]
        self.waiting = queue
        return admitted

    def _may(self, sequence):
        reserved = sum(map(self._most, [*self.running, sequence]))
        if self.admission.guaranteed and reserved > self.pool.usable:
            return False
        kept = self.admission.headroom if self.running else 0
        return self.pool.free - self._blocks_for(sequence.tokens) >= kept

    def _most(self, sequence):
        return self._blocks_for(sequence.request.prompt_tokens + sequence.request.max_tokens)


def stepped(config, jobs, *, admission=None, since=0.0, until=INF, patience=INF, pause=1.0):  # noqa: PLR0913 - as leap
    """The outcome of the same run, one step of the lab's engine after the other."""
    config = replace(config, prefix_caching=False)
    engine = Engine(config)
    engine.scheduler = Careful(config, admission or Admission())
    users = _Users(engine, jobs, patience)
    iterations, states = [], [(0.0, 0, 0, 0.0, False)]
    while engine.clock < until:
        users.advance()
        if engine.scheduler.idle:
            if not users.coming:
                break
            engine.clock = users.coming[0].arrival
            continue
        iteration = engine.finish(*engine.begin())
        if iteration.now > until:
            break
        iterations.append(iteration)
        states.append((iteration.now, *_state(engine, iteration.result, users)))
    end = until if users.coming or engine.clock >= until else states[-1][0]
    window = [iteration for iteration in iterations if since < iteration.now]
    tokens = [token for iteration in window for token in iteration.tokens]
    gaps = [token.gap for token in tokens if token.gap is not None]
    return Outcome(
        seconds=max(0.0, end - since),
        arrived=sum(at >= since for at in users.arrived),
        finished=sum(token.finished is not None for token in tokens),
        refused=sum(at >= since for at in users.refused),
        left=sum(at >= since for at in users.left),
        running=states[-1][1],
        waiting=states[-1][2],
        preemptions=sum(len(iteration.result.preempted) for iteration in window),
        preemption_times=tuple((i.now, len(i.result.preempted)) for i in window if i.result.preempted),
        streamed=len({token.sequence for token in tokens}),
        paused=len({token.sequence for token in tokens if token.gap is not None and token.gap > pause}),
        first_tokens=tuple(
            iteration.now - token.times.arrival
            for iteration in window
            for token in iteration.tokens
            if token.gap is None
        ),
        tokens=len(tokens),
        gap_count=len(gaps),
        gap_seconds=sum(gaps),
        top_running=max((running for now, running, *_ in states if now > since), default=0),
        **_means(states, since, end),
    )


def _state(engine, result, users):
    scheduler = engine.scheduler
    free = scheduler.pool.free * engine.config.block_size
    blocked = result.waiting > 0 and free * len(users.prompts) < sum(users.prompts)
    return result.running, result.waiting, result.usage, blocked


def _means(states, since, end):
    held = [
        (max(0.0, min(after[0], end) - max(state[0], since)), state)
        for state, after in zip(states, [*states[1:], (end,)], strict=True)
    ]
    seconds = sum(time for time, _ in held) or 1.0
    return {
        "mean_running": sum(time * running for time, (_, running, *_) in held) / seconds,
        "mean_waiting": sum(time * waiting for time, (_, _, waiting, *_) in held) / seconds,
        "mean_usage": sum(time * usage for time, (*_, usage, _) in held) / seconds,
        "pinned": sum(time for time, (*_, usage, _) in held if usage >= PIN_USAGE) / seconds,
        "blocked": sum(time for time, (*_, blocked) in held if blocked) / seconds,
    }


class _Users:
    """`Load` for a list of jobs."""

    def __init__(self, engine, jobs, patience):
        self.engine = engine
        self.coming = list(jobs)
        self.patience = patience
        self.deadlines = []
        self.arrived, self.refused, self.left, self.prompts = [], [], [], []

    def advance(self):
        engine = self.engine
        while self.coming and self.coming[0].arrival <= engine.clock:
            job = self.coming.pop(0)
            self.arrived.append(job.arrival)
            request = Request(str(len(self.arrived)), job.prompt, job.max_tokens, min(job.answer, job.max_tokens))
            try:
                engine.submit(request, job.arrival)
            except RequestTooLongError:
                self.refused.append(job.arrival)
                continue
            self.prompts.append(job.prompt)
            heapq.heappush(self.deadlines, (job.arrival + self.patience, request.id))
        while self.deadlines and self.deadlines[0][0] <= engine.clock:
            _, number = heapq.heappop(self.deadlines)
            if engine.waits_for_first_token(number) and engine.abort(number):
                self.left.append(engine.clock)
