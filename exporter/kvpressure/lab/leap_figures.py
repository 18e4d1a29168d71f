"""The sums that a run of ``leap.py`` adds up, and the outcome that it makes of them."""

from dataclasses import dataclass, field

from kvpressure.lab.leap_model import Outcome
from kvpressure.lab.simulate import PIN_USAGE


@dataclass(slots=True)
class Tally:
    """
    The sums of one run, and the state that holds since its last step.

    Args:
        usable: blocks that sequences can hold.
        block_size: tokens per block.
        since: where the window begins, in model seconds.
        until: where it ends.
        pause: a gap longer than this is a pause, in seconds.
    """

    usable: int
    block_size: int
    since: float
    until: float
    pause: float
    now: float = 0.0
    running: int = 0
    waiting: int = 0
    free: int = field(init=False)
    short: float = 0.0
    """Fewer free blocks than this are too few for a typical prompt, while somebody waits; 0 while nobody does."""
    pin_free: int = field(init=False)
    """The most free blocks with which usage is still pinned."""
    jobs: int = 0
    prompts: int = 0
    arrived: int = 0
    finished: int = 0
    refused: int = 0
    left: int = 0
    preemption_times: list[tuple[float, int]] = field(default_factory=list)
    streamed: int = 0
    paused: int = 0
    first_tokens: list[float] = field(default_factory=list)
    tokens: int = 0
    gap_count: int = 0
    gap_seconds: float = 0.0
    top_running: int = 0
    running_seconds: float = 0.0
    waiting_seconds: float = 0.0
    free_seconds: float = 0.0
    pinned_seconds: float = 0.0
    blocked_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.free = self.usable
        most = int((1 - PIN_USAGE) * self.usable)
        self.pin_free = next(free for free in range(most, -1, -1) if 1.0 - free / self.usable >= PIN_USAGE)

    def arrive(self, at: float, prompt: int, *, refused: bool) -> None:
        """A request of ``prompt`` tokens came."""
        if not refused:
            self.jobs += 1
            self.prompts += prompt
        if at >= self.since:
            self.arrived += 1
            self.refused += refused

    def hold(self, now: float) -> None:
        """The state that the last step left held until ``now``."""
        seconds = min(now, self.until) - max(self.now, self.since)
        self.now = now
        if seconds <= 0:
            return
        self.running_seconds += self.running * seconds
        self.waiting_seconds += self.waiting * seconds
        self.free_seconds += self.free * seconds
        if self.free <= self.pin_free:
            self.pinned_seconds += seconds
        if self.free < self.short:
            self.blocked_seconds += seconds

    def stretch(self, seconds: float, free: float, pinned: float, blocked: float) -> None:
        """
        Several steps that only decoded, all within the window.

        Args:
            seconds: that they took.
            free: free blocks, times the seconds that they were free.
            pinned: seconds of them with usage pinned.
            blocked: seconds of them with a queue and too few blocks for a typical prompt.
        """
        self.running_seconds += self.running * seconds
        self.waiting_seconds += self.waiting * seconds
        self.free_seconds += free
        self.pinned_seconds += pinned
        self.blocked_seconds += blocked

    def decoded(self, tokens: int, gap: float) -> None:
        """So many tokens came, each ``gap`` seconds after the one before it."""
        self.tokens += tokens
        self.gap_count += tokens
        self.gap_seconds += tokens * gap

    def state(self, running: int, waiting: int, free: int) -> None:
        """A step left this behind."""
        self.running = running
        self.waiting = waiting
        self.free = free
        self.short = self.prompts / (self.jobs * self.block_size) if waiting else 0.0
        if self.now > self.since:
            self.top_running = max(self.top_running, running)

    def outcome(self) -> Outcome:
        """The figures of the window, now that ``hold`` has seen its end."""
        seconds = max(0.0, min(self.now, self.until) - self.since)
        time = seconds or 1.0
        return Outcome(
            seconds=seconds,
            arrived=self.arrived,
            finished=self.finished,
            refused=self.refused,
            left=self.left,
            running=self.running,
            waiting=self.waiting,
            preemptions=sum(count for _, count in self.preemption_times),
            preemption_times=tuple(self.preemption_times),
            streamed=self.streamed,
            paused=self.paused,
            first_tokens=tuple(self.first_tokens),
            tokens=self.tokens,
            gap_count=self.gap_count,
            gap_seconds=self.gap_seconds,
            mean_running=self.running_seconds / time,
            top_running=self.top_running,
            mean_waiting=self.waiting_seconds / time,
            mean_usage=1 - self.free_seconds / (self.usable * time) if seconds else 0.0,
            pinned=self.pinned_seconds / time,
            blocked=self.blocked_seconds / time,
        )
