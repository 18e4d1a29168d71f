"""What the fast simulator of ``leap.py`` is told and what it tells, as data."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """
    One request.

    Args:
        arrival: model seconds; not before the arrival of the job before it.
        prompt: tokens, at least 1.
        answer: tokens until it ends by itself, at least 1.
        limit: ``max_tokens`` as asked: the answer ends there at the latest, a job whose prompt and limit can never fit
            is refused, and guaranteed admission reserves it. 0: same as ``answer``.
    """

    arrival: float
    prompt: int
    answer: int
    limit: int = 0

    @property
    def max_tokens(self) -> int:
        """Most answer tokens."""
        return self.limit or self.answer


@dataclass(frozen=True, slots=True)
class Admission:
    """
    Rules of admission that vLLM does not offer, for "what if". Both can be used at once.

    Args:
        headroom: blocks that must stay free after an admission, as long as anything else runs.
        guaranteed: a request is admitted only if its prompt and limit fit beside those of all running ones. Then
            nothing is ever preempted.
    """

    headroom: int = 0
    guaranteed: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What happened after ``since`` and up to ``until``. Means and shares are weighted by time.

    As in ``simulate.Trace``, what a step did belongs to its end, and the state at the end of a step holds until the
    end of the next one. Unlike there, the window begins at ``since`` and not at the first step that ended in it.

    Args:
        seconds: length of the window; it ends early where all jobs were over early.
        arrived: requests that came, refused ones too.
        finished: requests whose answer was complete.
        refused: requests that could never fit.
        left: requests whose users saw no first token in time.
        running: requests in the batch at the end.
        waiting: requests in the queue at the end, preempted ones too.
        preemptions: times that a running request lost its blocks.
        preemption_times: end of each step that preempted, in model seconds, and how many requests it preempted.
        streamed: requests that got at least one token.
        paused: requests that saw a gap longer than the pause threshold end.
        first_tokens: seconds from arrival to the first token, of every request that got it, in order of time.
        tokens: answer tokens put out.
        gap_count: gaps between two tokens of one request that ended.
        gap_seconds: their sum.
        mean_running: requests in the batch.
        top_running: most of them at the end of a step.
        mean_waiting: requests in the queue.
        mean_usage: share of the usable KV blocks that are held, 0 to 1.
        pinned: share of the time with usage at or above 0.95.
        blocked: share of the time in which requests waited while fewer KV tokens were free than the mean prompt of all
            requests that had come so far (the refused ones left out) needs.
    """

    seconds: float
    arrived: int
    finished: int
    refused: int
    left: int
    running: int
    waiting: int
    preemptions: int
    preemption_times: tuple[tuple[float, int], ...]
    streamed: int
    paused: int
    first_tokens: tuple[float, ...]
    tokens: int
    gap_count: int
    gap_seconds: float
    mean_running: float
    top_running: int
    mean_waiting: float
    mean_usage: float
    pinned: float
    blocked: float

    @property
    def served(self) -> int:
        """Requests that finished and those that still ran at the end; at least 1."""
        return max(1, self.finished + self.running)

    @property
    def per_thousand(self) -> float:
        """Preemptions per thousand requests served."""
        return 1000 * self.preemptions / self.served

    @property
    def paused_share(self) -> float:
        """Share of the streaming requests that paused, 0 to 1."""
        return self.paused / max(1, self.streamed)

    @property
    def throughput(self) -> float:
        """Answer tokens per second; 0 where the window has no length."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def gaps(self) -> tuple[int, float]:
        """How many gaps between tokens ended, and their sum in seconds."""
        return self.gap_count, self.gap_seconds

    def ttft(self, share: float) -> float | None:
        """
        The time to first token that this share of requests did not exceed, in seconds, by nearest rank.

        Args:
            share: above 0, up to 1: 0.95 is the 95th percentile.

        Returns:
            None where no request got its first token.
        """
        if not self.first_tokens:
            return None
        ordered = sorted(self.first_tokens)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
