"""The whole sidecar as a process: `kvpressure serve` samples a stand-in for vLLM and is scraped as by Prometheus."""

import gzip
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from bench.exposition import LONG_MODEL, Fleet
from bench.launch import first_line, free_port, interpreter, wait_ready
from bench.proc import MIB, cpu_seconds, imports_memory, memory
from bench.results import Row

CPU_GOAL = 0.03
"""Share of one core."""
MEMORY_GOAL = 64 * MIB
"""Resident bytes."""
BARE = "aiohttp, prometheus_client, yaml"
"""What any exporter of this make has to import."""

_WARM_UP = 10.0
_SCRAPE_EVERY = 15.0
_SCRAPES = 2
# As Prometheus 3 asks.
_HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.3,*/*;q=0.2",
    "Accept-Encoding": "gzip",
}


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen of one sidecar after its warm-up."""

    engines: int
    seconds: float
    cpu: float
    memory: dict[str, int]
    samples: float
    cost: float


def run() -> list[Row]:
    """Sixteen engines, then one."""
    bare = imports_memory(BARE)
    return [row for engines in (16, 1) for row in _rows(watch(engines), bare)]


def watch(engines: int) -> Watched:
    """
    Watch a sidecar that samples `engines` engines.

    Raises:
        RuntimeError: it did not start, or did not do its work.
    """
    seconds = _WARM_UP + _SCRAPES * _SCRAPE_EVERY
    with interpreter("-m", "bench.standin", str(engines), str(int(seconds) + 5)) as standin:
        upstream = f"http://127.0.0.1:{first_line(standin)}/metrics"
        listen = f"127.0.0.1:{free_port()}"
        with interpreter(
            "-m", "kvpressure", "serve", "--vllm.url", upstream, "--web.listen-address", listen, "--log.level", "warn"
        ) as sidecar:
            wait_ready(f"http://{listen}/-/ready")
            time.sleep(_WARM_UP)
            before = _scrape(listen)
            start, cpu = time.monotonic(), cpu_seconds(sidecar.pid)
            for number in range(_SCRAPES):
                time.sleep(start + (number + 1) * _SCRAPE_EVERY - time.monotonic())
                after = _scrape(listen)
            watched = Watched(
                engines,
                time.monotonic() - start,
                cpu_seconds(sidecar.pid) - cpu,
                memory(sidecar.pid),
                after["kvpressure_samples_total"] - before["kvpressure_samples_total"],
                after["kvpressure_sample_cost_seconds"],
            )
    if after["kvpressure_up"] != 1.0 or after["sample errors"] or after["engines"] != engines:
        raise RuntimeError(f"the sidecar did not do its work: {after}")
    return watched


def _rows(watched: Watched, bare: int) -> Iterator[Row]:
    who = f"sidecar, {watched.engines} engine{'s' * (watched.engines > 1)}"
    size = f"{len(Fleet(watched.engines, LONG_MODEL).text(0)) / 1000:.0f} KB"
    share = watched.cpu / watched.seconds
    yield Row(
        f"{who}: CPU, one core, {size} a second",
        f"{share:.2%}",
        goal=f"under {CPU_GOAL:.0%}",
        met=share < CPU_GOAL,
        figures={"cpu_share": share, "cpu_seconds": watched.cpu, "seconds": watched.seconds},
    )
    interval = watched.seconds / watched.samples
    yield Row(
        f"{who}: interval kept ({watched.samples:g} samples, {watched.cost * 1000:.1f} ms each)",
        f"{interval:.2f} s",
        goal="1 s",
        # One sample more or less falls into the time watched by chance.
        met=abs(watched.samples - watched.seconds) <= 1.5,
        figures={"interval_seconds": interval, "samples": watched.samples, "sample_cost_seconds": watched.cost},
    )
    resident = watched.memory["resident"]
    yield Row(
        f"{who}: resident, against importing {BARE}",
        f"{resident / MIB:.1f} MiB",
        f"{bare / MIB:.1f} MiB",
        f"{resident / bare:.2f}x as large",
        f"under {MEMORY_GOAL / MIB:.0f} MiB",
        resident < MEMORY_GOAL,
        {"bytes": watched.memory, "bare_bytes": bare},
    )


def _scrape(listen: str) -> dict[str, float]:
    """What the sidecar says of itself, as a scrape of Prometheus sees it."""
    request = urllib.request.Request(f"http://{listen}/metrics", headers=_HEADERS)
    with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
        body = gzip.decompress(answer.read()).decode()
    said = {"sample errors": 0.0, "engines": 0.0}
    for family in text_string_to_metric_families(body):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            said["sample errors"] += sample.value * (sample.name == "kvpressure_sample_errors_total")
            said["engines"] += sample.name == "kvpressure_preemptions_total"
            if not sample.labels:
                said[sample.name] = sample.value
    return said
