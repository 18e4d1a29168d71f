"""The named scenarios, as frozen data: a server and its users."""

from dataclasses import dataclass

from kvpressure.lab.engine import Stalls
from kvpressure.lab.model import Config, StepTime
from kvpressure.lab.workload import Length, Phase, Workload


@dataclass(frozen=True, slots=True)
class Scenario:
    """
    One situation that an operator can be in.

    Args:
        name: what ``--scenario`` takes.
        summary: what it shows, one sentence.
        server: the server's settings.
        workload: what its users do.
        stalls: how its host freezes, if it does.
    """

    name: str
    summary: str
    server: Config
    workload: Workload
    stalls: Stalls | None = None


# An 8B model in 16 bit on a 24 GB card: 16 GB of weights at 0.9 TB/s are 18 ms per step; about 7,000 prompt tokens/s.
_CARD_24_GB = StepTime(base=0.018, decode=0.0002, prefill=0.00014)
# A 14B model in 16 bit on a 48 GB card: more weights to read per step, about 5,000 prompt tokens/s.
_CARD_48_GB = StepTime(base=0.026, decode=0.0002, prefill=0.0002)

CALM = Scenario(
    name="calm",
    summary="Steady traffic that fits: no preemption, usage far from full.",
    server=Config(num_gpu_blocks=1600, step_time=_CARD_24_GB),  # 25,584 tokens: about 60 requests of this kind
    workload=Workload((Phase(seconds=600, rate=4.0, prompt=Length(300, 0.5), answer=Length(200, 0.5)),)),
)

ONSET = Scenario(
    name="onset",
    summary="A flood arrives at once and preempts while it is worked off; then the same server is calm.",
    server=Config(num_gpu_blocks=1004, step_time=_CARD_24_GB),  # 16,048 tokens: a quarter of the flood
    workload=Workload(
        (
            # Early morning: a moment in which the gauges read low.
            Phase(seconds=20, rate=0.5, prompt=Length(256, 0.3), answer=Length(256, 0.3)),
            # Everybody arrives: 400 requests at once, each of which doubles after it was admitted.
            Phase(seconds=600, rate=0.8, prompt=Length(256, 0.3), answer=Length(256, 0.3), burst=400),
        ),
        patience=180,  # nobody leaves: the server works off the whole flood
    ),
)

STORM = Scenario(
    name="storm",
    summary="Short prompts and long answers on a cache that is far too small: preemptions for as long as it runs.",
    server=Config(num_gpu_blocks=600, step_time=_CARD_24_GB),  # 9,584 tokens: about 18 finished requests of this kind
    # Admission is cheap (120 tokens), growth is large (400): the shape that preempts most. The burst fills the cache
    # at once.
    workload=Workload((Phase(seconds=600, rate=3.2, prompt=Length(120, 0.5), answer=Length(400, 0.5), burst=30),)),
)

LONG_ANSWERS = Scenario(
    name="long_answers",
    summary="A healthy server until the answers become twice as long overnight; then it storms.",
    server=Config(num_gpu_blocks=900, step_time=_CARD_24_GB),
    workload=Workload(
        (
            Phase(seconds=300, rate=2.6, prompt=Length(200, 0.5), answer=Length(250, 0.5)),
            Phase(seconds=600, rate=2.6, prompt=Length(200, 0.5), answer=Length(500, 0.5)),
        )
    ),
)

QUEUE_BOUND = Scenario(
    name="queue_bound",
    summary="max_num_seqs is too low: a lasting queue in front of a roomy cache, and no preemption.",
    server=Config(num_gpu_blocks=1600, max_num_seqs=8, step_time=_CARD_24_GB),
    workload=Workload((Phase(seconds=600, rate=2.5, prompt=Length(300, 0.5), answer=Length(200, 0.5)),)),
)

SLOW_HOST = Scenario(
    name="slow_host",
    summary="The host freezes for seconds now and then: every stream pauses, and the cache has nothing to do with it.",
    server=Config(num_gpu_blocks=3000, step_time=_CARD_24_GB),
    workload=Workload((Phase(seconds=600, rate=2.0, prompt=Length(300, 0.5), answer=Length(200, 0.5)),)),
    stalls=Stalls(every=20.0, shortest=2.0, longest=4.0),
)

BOOKSTORE = Scenario(
    name="bookstore",
    summary="A 48 GB card at 60 %: fine with 250-token answers, a storm once recommendations grow to 600 tokens.",
    # 26,576 tokens of KV: the 26,600 that the server reports at --gpu-memory-utilization 0.6, in whole blocks.
    server=Config(num_gpu_blocks=1662, step_time=_CARD_48_GB),
    workload=Workload(
        (
            Phase(seconds=600, rate=1.5, prompt=Length(850, 0.3), answer=Length(250, 0.3)),
            Phase(seconds=600, rate=1.5, prompt=Length(850, 0.3), answer=Length(600, 0.3)),
        )
    ),
)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario for scenario in (CALM, ONSET, STORM, LONG_ANSWERS, QUEUE_BOUND, SLOW_HOST, BOOKSTORE)
}
"""Every scenario by its name, the quiet ones first."""
