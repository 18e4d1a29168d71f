"""
An hour of the lab as Prometheus would have scraped it, for the dashboards: their queries and their pictures.

Four servers run in model time, their metrics and streams go through the sidecar's own pipeline, and what it would have
exposed at every scrape becomes blocks of a Prometheus. What the lab has no part for is made up: the busy share of the
engine stands for the GPU's utilisation, and the sidecar's CPU is what its pipeline took here.
"""

import contextlib
import hashlib
import json
import math
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import alerting

import kvpressure
from kvpressure.bundle import alerts, records
from kvpressure.bundle.config import BundleConfig
from kvpressure.bundle.others import CPU_SECONDS, GPU_UTILISATION, MEMORY_BYTES
from kvpressure.config import Config
from kvpressure.derive.target import Target
from kvpressure.expose.families import exposition
from kvpressure.lab.engine import Engine
from kvpressure.lab.load import Load
from kvpressure.lab.metrics import ServerMetrics
from kvpressure.lab.scenarios import SCENARIOS
from kvpressure.lab.workload import Length, Phase, Workload
from kvpressure.settings import duration
from kvpressure.vllm import names
from kvpressure.vllm.stream import LogFacts, StreamEvent, TapFacts

START = 1_767_260_400.0
"""2026-01-01 09:40 UTC: the lab's hour, and before it what the longest window needs."""

SECONDS = 4200.0
END = START + SECONDS
HOUR = 3600.0
SCRAPE = 15.0
SAMPLE = 2.0
NAMESPACE = "shop"


@dataclass(frozen=True)
class Server:
    """
    One vLLM with its sidecar.

    Args:
        instance: of the sidecar.
        model: served.
        engines: (scenario that gives the server, load) each.
        tap: it has one.
        log: it has one.
        freeze: between these seconds the front end hands tokens on in batches only.
    """

    instance: str
    model: str
    engines: tuple[tuple[str, tuple[Phase, ...]], ...]
    tap: bool = True
    log: bool = True
    freeze: tuple[float, float] = (0.0, 0.0)


def _phases(scenario: str, *parts: tuple[float, float, int]) -> tuple[str, tuple[Phase, ...]]:
    """A scenario's server under other loads: (seconds, requests per second, mean answer) each."""
    prompt = SCENARIOS[scenario].workload.phases[0].prompt
    return scenario, tuple(
        Phase(seconds, rate, Length(prompt.mean, prompt.spread), Length(answer, 0.4), shared_prefix=64)
        for seconds, rate, answer in parts
    )


SERVERS = (
    # The storm: recommendations grow, later they are capped again.
    Server(
        "books-0:10938", "bookstore-14b", (_phases("bookstore", (1800, 1.3, 250), (1200, 1.5, 600), (9e9, 0.9, 250)),)
    ),
    # One hot rank of two: a short storm on it, and nothing on the other.
    Server(
        "chat-0:10938",
        "chat-8b",
        (
            _phases("storm", (2700, 1.0, 150), (500, 3.0, 400), (9e9, 0.8, 150)),
            _phases("calm", (9e9, 2.5, 200)),
        ),
    ),
    # Calm; for five minutes its front end hands tokens on in batches, which the engine does not see.
    Server("chat-1:10938", "chat-8b", (_phases("calm", (9e9, 2.0, 200)),), freeze=(2200.0, 2500.0)),
    # max_num_seqs too low for the rush hour; no tap.
    Server(
        "code-0:10938",
        "coder-7b",
        (_phases("queue_bound", (1500, 1.0, 200), (900, 2.6, 200), (9e9, 1.0, 200)),),
        tap=False,
    ),
)


@dataclass
class _Player:
    """One engine of the lab, and what its users get."""

    scenario: str
    phases: tuple[Phase, ...]
    model: str
    number: int
    events: list[tuple[float, str, str]] = field(default_factory=list)
    busy: float = 0.0

    def __post_init__(self) -> None:
        self._server = SCENARIOS[self.scenario].server
        self._engine = Engine(self._server, None, self.number)
        self._load = Load(Workload(self.phases), 7 + self.number, f"{self.number}-")
        self._metrics = ServerMetrics(self._server, self.model)
        self._pending: tuple[Any, float] | None = None

    def advance(self, until: float) -> None:
        """All steps that end by then."""
        engine = self._engine
        while True:
            if self._pending is None:
                self._load.advance(engine)
                if engine.scheduler.idle:
                    if self._load.next_time > until:
                        return
                    engine.clock = self._load.next_time
                    continue
                self._pending = engine.begin()
            result, seconds = self._pending
            if engine.clock + seconds > until:
                return
            self.busy += seconds
            done = engine.finish(result, seconds)
            self._metrics.record(done)
            self._pending = None
            for token in done.tokens:
                kind = "last" if token.finished else "token"
                self.events.append((done.now, kind, token.sequence.request.id))

    def text(self) -> str:
        """vLLM's exposition."""
        return self._metrics.render().decode().replace('engine="0"', f'engine="{self.number}"')


def play(server: Server, out: Path) -> Path:
    """An hour and more of one server as OpenMetrics, without the end mark."""
    players = [_Player(*engine, server.model, number) for number, engine in enumerate(server.engines)]
    sources = [source for source, there in (("tap", server.tap), ("log", server.log)) if there]
    target = Target(Config(), interval=SAMPLE, sources=sources)
    model, spent, chunks, ended, busy, scraped = server.model, 0.0, 0, 0, 0.0, 0.0
    host = {"job": "kvpressure", "instance": server.instance, "namespace": NAMESPACE}
    engine_host = {"job": "vllm", "instance": server.instance.replace("10938", "8000"), "namespace": NAMESPACE}
    with out.open("w", encoding="utf-8") as file:
        for tick in range(1, int(SECONDS / SAMPLE) + 1):
            t = tick * SAMPLE
            for player in players:
                player.advance(t)
            happened = sorted(event for player in players for event in player.events)
            for player in players:
                player.events.clear()
            began = time.process_time()
            for source in sources:
                late = [(_seen(at, source, server.freeze), kind, request) for at, kind, request in happened]
                events = [
                    StreamEvent(step, START + at, request, model=model if source == "tap" else "")
                    for at, kind, request in sorted(late, key=lambda event: event[0])
                    for step in ((kind,) if kind == "token" else (kind, "end"))
                ]
                target.streams[source].feed(events)
                target.streams[source].advance(START + t - 1.6)
            chunks += len(happened)
            ended += sum(kind == "last" for _, kind, _ in happened)
            took = 0.004 + 0.0001 * len(happened) / SAMPLE
            if server.instance.startswith("books") and 3100 < t < 3112:
                target.failed(START + t, "timeout")
            else:
                target.observe(START + t, "".join(player.text() for player in players), took)
            if t % SCRAPE < SAMPLE:
                log = LogFacts(1, chunks, 0, 0.2 + 0.1 * math.sin(t / 90), {}) if server.log else None
                tap = TapFacts(8, {"2xx": ended}, {}, {"client": ended // 97}) if server.tap else None
                body = exposition(target.snapshot(START + t, log=log, tap=tap)).decode()
                spent += time.process_time() - began
                at = START + t
                file.writelines(stamped(body, host, at))
                file.writelines(
                    stamped(f"up 1\n{CPU_SECONDS} {spent}\n{MEMORY_BYTES} {5.1e7 + 400 * math.sqrt(chunks)}", host, at)
                )
                file.writelines(stamped("\n".join(_drawn(player.text()) for player in players), engine_host, at))
                total = sum(player.busy for player in players) / len(players)
                share = 100 * min(1.0, (total - busy) / (t - scraped))
                busy, scraped = total, t
                file.writelines(stamped(f'{GPU_UTILISATION}{{gpu="0"}} {share}', engine_host | {"job": "dcgm"}, at))
            else:
                spent += time.process_time() - began
    return out


def _seen(at: float, source: str, freeze: tuple[float, float]) -> float:
    """When an observer sees a token: soon; while the front end freezes the tap sees it with the next batch."""
    if source == "tap" and freeze[0] <= at < freeze[1]:
        return math.ceil(at / 1.5) * 1.5
    return at


_DRAWN = tuple(
    names.PREFIX + alias.name
    for family in (names.PROMPT_LENGTHS, names.OUTPUT_LENGTHS, *names.DRAWN)
    for alias in family.aliases
)


def _drawn(text: str) -> str:
    """The lines that dashboards read from vLLM itself."""
    return "\n".join(line for line in text.splitlines() if line.startswith(_DRAWN) and "_created" not in line)


_SAMPLE_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")


def stamped(text: str, labels: dict[str, str], at: float) -> Iterator[str]:
    """Samples with these labels and a time, as OpenMetrics has them."""
    more = ",".join(f'{name}="{value}"' for name, value in labels.items())
    for line in text.splitlines():
        if line and not line.startswith("#"):
            found = _SAMPLE_LINE.fullmatch(line)
            assert found, line
            inner = f"{found[2]},{more}" if found[2] else more
            yield f"{found[1]}{{{inner}}} {found[3]} {at:.3f}\n"


# --- a Prometheus with this past --------------------------------------------------------------------------------------


def load(folder: Path, lines: Iterator[str]) -> None:
    """Make blocks of the lines, in the folder's data."""
    text = folder / "lines.om"
    with text.open("w", encoding="utf-8") as file:
        file.writelines(lines)
        file.write("# EOF\n")
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text), str(folder / "prometheus")],
        check=True,
        capture_output=True,
    )
    text.unlink()


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The URL of a Prometheus on the folder's data."""
    config = alerting.written({"global": {"scrape_interval": "15s"}}, folder / "prometheus.yml")
    with alerting.prometheus(config, folder) as url:
        yield url


def kept(cache: Path) -> Path:
    """The folder of a past that was built with this code, which takes a minute the first time."""
    own = (Path(__file__), *sorted(Path(kvpressure.__file__).parent.rglob("*.py")))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in own if path.name not in _LOOKS)).hexdigest()[:16]
    folder = cache / digest
    if not folder.exists():
        shutil.rmtree(cache, ignore_errors=True)
        unfinished = cache / "unfinished"
        unfinished.mkdir(parents=True)
        build(unfinished).rename(folder)
    return folder


_PAGES = ("oncall", "engines", "streams", "capacity", "exporter", "parts")
_LOOKS = ("look.py", "grafana.py", *(f"dash_{name}.py" for name in _PAGES))
"""What shows the past and does not make it."""


def build(folder: Path) -> Path:
    """The whole past, below a folder: signals, records and alerts."""
    with ProcessPoolExecutor(2) as pool:
        files = list(pool.map(play, SERVERS, [folder / f"{number}.om" for number in range(len(SERVERS))]))
    load(folder, _all_lines(files))
    for file in files:
        file.unlink()
    config = BundleConfig()
    with serving(folder) as url:
        ruled = [
            *(line for record in records.records(config) for line in _recorded(url, record)),
            *(line for alert in alerts.alerts(config) for line in _fired(url, alert)),
        ]
    load(folder, iter(ruled))
    for name in ("wal", "chunks_head"):
        shutil.rmtree(folder / "prometheus" / name, ignore_errors=True)
    return folder


def _all_lines(files: list[Path]) -> Iterator[str]:
    for file in files:
        with file.open(encoding="utf-8") as lines:
            yield from lines


def ask(url: str, path: str, **parameters: object) -> dict[str, Any]:
    """What Prometheus' API answers: `data`, and `stats` in it."""
    body = urllib.parse.urlencode(parameters).encode()
    with urllib.request.urlopen(f"{url}/api/v1/{path}", body, timeout=60) as answer:
        data: dict[str, Any] = json.load(answer)["data"]
    return data


def crowd(url: str, folder: Path, engines: int) -> Path:
    """Ten minutes of so many engines, eight to an instance, each as the calm one was; below a folder."""
    calm = f'{{namespace="{NAMESPACE}",instance=~"chat-1:.+"}}'
    found = ask(url, "query_range", query=calm, start=END - 600, end=END, step=SCRAPE)["result"]

    def lines() -> Iterator[str]:
        for number in range(engines):
            for series in found:
                labels = series["metric"] | {"instance": f"chat-{number // 8}:{series['metric']['instance'][-5:]}"}
                if "engine" not in labels and number % 8:
                    continue
                labels |= {"engine": str(number % 8)} if "engine" in labels else {}
                for at, value in series["values"]:
                    yield _line(labels["__name__"], labels, value, at)

    load(folder, lines())
    return folder


def over_time(url: str, expr: str, step: float = SCRAPE) -> list[dict[str, Any]]:
    """The series of an expression over the whole past."""
    found = ask(url, "query_range", query=expr, start=START + SCRAPE, end=END, step=step)
    result: list[dict[str, Any]] = found["result"]
    return result


def _recorded(url: str, record: records.Record) -> Iterator[str]:
    for series in over_time(url, record.expr):
        for at, value in series["values"]:
            yield _line(record.name, series["metric"], value, at)


def _fired(url: str, alert: alerts.Alert) -> Iterator[str]:
    """ALERTS as Prometheus' rule manager writes it: pending for `for`, firing, and on for `keep_firing_for`."""
    hold, keep = (duration(text) if text else 0.0 for text in (alert.hold, alert.keep))
    for series in over_time(url, alert.expr):
        labels = {name: value for name, value in series["metric"].items() if name != "__name__"}
        labels |= {"alertname": alert.name, "severity": alert.severity}
        true = {at for at, _ in series["values"]}
        since: float | None = None
        last = -math.inf
        firing = False
        at = START + SCRAPE
        while at <= END:
            if at in true:
                since, last = at if since is None else since, at
                firing = firing or at - since >= hold
            elif not (firing and at - last < keep):
                since, firing = None, False
            if since is not None:
                yield _line("ALERTS", labels | {"alertstate": "firing" if firing else "pending"}, 1, at)
            at += SCRAPE


def _line(name: str, labels: dict[str, str], value: object, at: float) -> str:
    inner = ",".join(f'{label}="{text}"' for label, text in labels.items() if label != "__name__")
    return f"{name}{{{inner}}} {value} {at:.3f}\n"
