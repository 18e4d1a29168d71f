"""
The lab's scheduler for capacity advice: the same decisions as ``scheduler.py``, some thousand times in a sweep.

Ten minutes of ten requests a second take a fraction of a second. Times are added up step by step as the lab does, so
they are equal to the last digit.

Left out: prefix caching, whatever ``Config`` says of it (on a real server shared prompts cost less and hold fewer
blocks, and a resumed request may find some of its own again: there this is the pessimistic side); stalls of the host;
vLLM's late count of preemptions (they are counted in the step that preempts).
"""

from collections.abc import Iterable
from math import inf

from kvpressure.lab.leap_figures import Tally
from kvpressure.lab.leap_model import Admission, Job, Outcome
from kvpressure.lab.leap_run import Run
from kvpressure.lab.model import Config

__all__ = ["Admission", "Job", "Outcome", "leap"]


def leap(  # noqa: PLR0913 - the server, its users, and what is looked at
    config: Config,
    jobs: Iterable[Job],
    *,
    admission: Admission = Admission(),  # noqa: B008 - frozen
    since: float = 0.0,
    until: float = inf,
    patience: float = inf,
    pause: float = 1.0,
) -> Outcome:
    """
    Run jobs through the scheduler until all are over, or until the model time ``until``.

    Args:
        config: the server's settings; ``prefix_caching`` and ``async_scheduling`` change nothing here.
        jobs: in order of arrival. They are read as their time comes, so an endless stream is fine with ``until``.
        admission: what else must hold before a request starts.
        since: what the outcome tells begins here, in model seconds.
        until: what it tells ends here.
        patience: seconds after which a request without a first token leaves.
        pause: a gap longer than this is a pause, in seconds.

    Raises:
        ValueError: a job is out of order or has no tokens, the window has no length, or the server could never run a
            request.
    """
    if not 0 <= since < until:
        raise ValueError(
            f"the window from {since} to {until} s has no length; let it begin at 0 or later, and end after"
        )
    usable = config.num_gpu_blocks - 1
    if min(usable, config.block_size, config.max_num_seqs, config.max_num_batched_tokens) < 1:
        raise ValueError("the server can run nothing; it needs 2 blocks, and 1 token and 1 sequence in a step")
    tally = Tally(usable, config.block_size, since, until, pause)
    Run(config, jobs, admission, patience, tally).run()
    return tally.outcome()
