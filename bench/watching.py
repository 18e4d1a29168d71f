"""A whole sidecar as a process in front of a stand-in for vLLM, and what a scrape of it says."""

import contextlib
import gzip
import re
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from bench.launch import first_line, free_port, interpreter, wait_ready
from kvpressure.signals import PREEMPTIONS
from kvpressure.signals_exporter import SAMPLE_ERRORS, UP

SCRAPE_EVERY = 15.0
"""Seconds, as in Prometheus's example configuration."""
ENGINES = "engines"
"""How many engines there are, among what `scrape` gives."""

# As Prometheus 3 asks.
_HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.3,*/*;q=0.2",
    "Accept-Encoding": "gzip",
}
_SAMPLE = re.compile(r"^(\w+)(?:\{.*\})? (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """
    One that runs.

    Args:
        pid: its process.
        listen: where it is scraped.
        upstream: the port of what it samples.
    """

    pid: int
    listen: str
    upstream: int


@contextlib.contextmanager
def sidecar(engines: int, *flags: str, module: str = "kvpressure") -> Iterator[Sidecar]:
    """
    `kvpressure serve` with some flags, sampling a stand-in of so many engines.

    Raises:
        RuntimeError: it did not start.
    """
    with interpreter("-m", "bench.standin", str(engines)) as standin:
        upstream = int(first_line(standin))
        listen = f"127.0.0.1:{free_port()}"
        command = ["-m", module, "serve", "--vllm.url", f"http://127.0.0.1:{upstream}/metrics"]
        with interpreter(*command, "--web.listen-address", listen, "--log.level", "warn", *flags) as process:
            wait_ready(f"http://{listen}/-/ready")
            yield Sidecar(process.pid, listen, upstream)


def fetch(listen: str) -> bytes:
    """The exposition, as Prometheus asks for it."""
    request = urllib.request.Request(f"http://{listen}/metrics", headers=_HEADERS)
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310  # our own
        body: bytes = answer.read()
    return body


def scrape(listen: str) -> dict[str, float]:
    """What a sidecar says of itself: the sum over all series of each name, and how many engines there are."""
    said: defaultdict[str, float] = defaultdict(float)
    for name, value in _SAMPLE.findall(gzip.decompress(fetch(listen)).decode()):
        said[name] += float(value)
        said[ENGINES] += name == PREEMPTIONS.metric
    return said


def check(said: dict[str, float], engines: int) -> None:
    """
    Whoever did not do its work costs nothing.

    Raises:
        RuntimeError: samples failed, or engines are missing.
    """
    errors = said[SAMPLE_ERRORS.metric]
    if said[UP.metric] != 1.0 or errors or said[ENGINES] != engines:
        raise RuntimeError(
            f"the sidecar did not do its work: up {said[UP.metric]:g}, {errors:g} sample errors, "
            f"{said[ENGINES]:g} of {engines} engines"
        )
