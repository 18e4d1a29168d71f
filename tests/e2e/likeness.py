"""
``python -m tests.e2e.likeness HOME``: the lab held against a real vLLM, both under the same workloads.

The lab's step time is fitted first, to the steps that this vLLM takes on this machine. Counts are medians of several
runs; the lab plays the same in model time. Pinned time of the real server is what a sidecar says that samples every
second; that of the lab is its own.
"""

import statistics
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from kvpressure import tables
from kvpressure.lab.model import Config, StepTime
from kvpressure.lab.scenarios import Scenario
from kvpressure.lab.simulate import simulate
from kvpressure.lab.workload import Length, Phase, Workload

from . import fit, play, shared
from .stand import BATCHED, BLOCK, ROOT, SCRATCH, Server, sidecar, vllm

RESULTS = ROOT / "docs" / "experiments" / "likeness.json"
FACTOR = 2.0
"""By how much preemptions may differ."""
POINTS = 0.15
"""By how much the pinned share may differ."""

_ASYNC = False  # the CPU platform schedules synchronously
_FEW = 10  # preemptions; a factor of smaller numbers says nothing


def _flood(prompt: Length, answer: Length, requests: int = 200) -> Workload:
    return Workload((Phase(3600.0, 1e-9, prompt, answer, burst=requests),), patience=3600.0)


WORKLOADS: Mapping[str, tuple[Server, Workload]] = {
    "16 in, 500 out": (Server(blocks=40, log=False), _flood(Length(16), Length(500), 100)),
    "128 in, 128 out": (Server(blocks=40, log=False), _flood(Length(128), Length(128))),
    "500 in, 16 out": (Server(blocks=40, log=False), _flood(Length(500), Length(16))),
    "128 in, 128 out, tiny cache": (
        Server(blocks=18, length=512, log=False),
        _flood(Length(128, 0.9), Length(128, 0.9), 60),
    ),
    "256 in, 128 out, roomy": (Server(blocks=1004, log=False), _flood(Length(256), Length(128))),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """Medians of the runs of one workload on one of the two: preemptions, pinned share, seconds."""

    preemptions: float
    pinned: float
    seconds: float


def main() -> int:
    """Measure, print and keep; 1 where the two are further apart than they may be."""
    parser = shared.parser(__doc__)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    time = step_time(args.home)
    print(f"step time: {time}", file=sys.stderr)
    real = {name: on_vllm(args.home, server, load, args.runs) for name, (server, load) in WORKLOADS.items()}
    lab = {name: on_lab(server, load, time, args.runs) for name, (server, load) in WORKLOADS.items()}
    rows = [
        (
            name,
            f"{real[name].preemptions:g}",
            f"{lab[name].preemptions:g}",
            f"{real[name].pinned:.0%}",
            f"{lab[name].pinned:.0%}",
            f"{real[name].seconds:.0f} s",
            f"{lab[name].seconds:.0f} s",
        )
        for name in WORKLOADS
    ]
    print(tables.text(HEADER, rows))
    shared.keep(
        RESULTS,
        {
            "runs": args.runs,
            "step_time": asdict(time),
            "real": {name: asdict(seen) for name, seen in real.items()},
            "rows": rows,
        },
    )
    wrong = unlike(real, lab)
    for sentence in wrong:
        print(f"NOT ALIKE: {sentence}")
    return 1 if wrong else 0


HEADER = ("workload", "preemptions", "the lab's", "pinned", "the lab's", "took", "the lab's")


def step_time(home: Path) -> StepTime:
    """How long steps take here, from a mix of long and short prompts at many numbers of running requests."""
    server = Server(blocks=1004, log=False, stamp=fit.STAMP, flags=(fit.FLAG,))
    mix = Workload(
        (
            Phase(20.0, 6.0, Length(200, 0.9), Length(100, 0.9)),
            Phase(3600.0, 1e-9, Length(200, 0.9), Length(100, 0.9), burst=80),
        ),
        patience=3600.0,
    )
    with vllm(home, server, SCRATCH) as running:
        play.play(running, None, mix, 190)
        found = fit.steps(running.stdout.read_text(encoding="utf-8", errors="replace").splitlines())
    time, off = fit.fit(found)
    print(f"{len(found)} steps; half of them are within {off:.0%} of the fit", file=sys.stderr)
    return time


def on_vllm(home: Path, server: Server, load: Workload, runs: int) -> Seen:
    """Medians of some runs on a real server, each after the other on the same one."""
    seen = []
    with vllm(home, server, SCRATCH) as running:
        play.warm(running)
        for seed in range(runs):
            with sidecar(running) as beside:
                run = play.play(running, beside, load, load.phases[0].burst, seed=seed)
            engine = run.sidecar["engines"][0]
            # Of the time that the run took; the sidecar was there before and after it.
            seen.append((run.preemptions, min(1.0, engine["kv_pinned_seconds"] / run.seconds), run.seconds))
            print(seen[-1], file=sys.stderr)
    return Seen(*(statistics.median(values) for values in zip(*seen, strict=True)))


def on_lab(server: Server, load: Workload, time: StepTime, runs: int) -> Seen:
    """The same of the lab, in model time."""
    config = Config(
        num_gpu_blocks=server.blocks,
        block_size=BLOCK,
        max_model_len=server.length,
        max_num_seqs=server.seqs,
        max_num_batched_tokens=BATCHED,
        async_scheduling=_ASYNC,
        step_time=time,
    )
    seen = []
    for seed in range(runs):
        trace = simulate(Scenario("real", "", config, load), 3600.0, seed)
        busy = [step for step in trace.steps if step.tokens or step.running]
        end = busy[-1].now
        figures = trace.window(0.0, end)
        seen.append((figures.preemptions, figures.pinned, end))
    return Seen(*(statistics.median(values) for values in zip(*seen, strict=True)))


def unlike(real: Mapping[str, Seen], lab: Mapping[str, Seen]) -> list[str]:
    """A sentence for each way in which the two differ by more than they may."""
    wrong = []
    for name, one in real.items():
        other = lab[name]
        low, high = sorted((one.preemptions, other.preemptions))
        if high >= _FEW and high > FACTOR * low:
            wrong.append(f"{name}: {one.preemptions:g} preemptions, the lab has {other.preemptions:g}")
        if abs(one.pinned - other.pinned) > POINTS:
            wrong.append(f"{name}: pinned {one.pinned:.0%}, the lab {other.pinned:.0%}")
    ranks = [sorted(seen, key=lambda name: seen[name].preemptions) for seen in (real, lab)]
    if ranks[0] != ranks[1]:
        wrong.append(f"by preemptions the order is {ranks[0]}, the lab's {ranks[1]}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
