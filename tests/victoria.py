"""VictoriaMetrics and vmalert in tests: which alerts a recording sets off there, beside what promtool says of it."""

import contextlib
import datetime as dt
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

from alert_harness import STEP
from commands import free_port, get, wait_for

START = 1_767_225_600
"""2026-01-01, when every recording begins."""

_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")


def missing(folder: Path) -> str:
    """Why vmalert cannot be asked here; empty where it can."""
    if any(shutil.which(program) is None for program in ("victoria-metrics", "vmalert")):
        return "no victoria-metrics and vmalert here"
    rule = folder / "rule.yml"
    rule.write_text(
        json.dumps({"groups": [{"name": "g", "rules": [{"alert": "A", "expr": "a", "keep_firing_for": "1m"}]}]}),
        encoding="utf-8",
    )
    return "" if dry_run([rule]).returncode == 0 else "this vmalert is older than 1.92 and knows no keep_firing_for"


def dry_run(rules: Iterable[Path]) -> subprocess.CompletedProcess[str]:
    """What vmalert says of rules, without running them."""
    command = ["vmalert", "-dryRun", "-loggerLevel=ERROR", *(f"-rule={path}" for path in rules)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def fired(scraped: Iterable[tuple[int, str]], rules: Iterable[Path], folder: Path) -> dict[tuple[str, str], float]:
    """
    Severity and name of every alert that fires, with the minute in which it begins to.

    vmalert replays the rules over the whole time, and has no regard to `keep_firing_for` in that.
    """
    scraped = list(scraped)
    end = START + STEP * max(step for step, _ in scraped)
    with serving(folder) as url:
        lines = [line for step, text in scraped for line in _lines(text, START + step * STEP)]
        urllib.request.urlopen(f"{url}/api/v1/import/prometheus", "\n".join(lines).encode(), timeout=30).close()
        get(f"{url}/internal/force_flush")
        command = [
            "vmalert",
            *(f"-rule={path}" for path in rules),
            f"-datasource.url={url}",
            f"-remoteWrite.url={url}",
            f"-evaluationInterval={STEP}s",
            f"-replay.timeFrom={_moment(START)}",
            f"-replay.timeTo={_moment(end)}",
            "-replay.rulesDelay=1ms",
            "-replay.disableProgressBar",
            "-notifier.blackhole",
            "-httpListenAddr=127.0.0.1:0",
            "-loggerLevel=ERROR",
        ]
        said = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert said.returncode == 0, said.stderr[-2000:]
        get(f"{url}/internal/force_flush")
        query = {"match[]": '{__name__="ALERTS",alertstate="firing"}', "start": START, "end": end + 1}
        found: dict[tuple[str, str], float] = {}
        for line in get(f"{url}/api/v1/export?{urllib.parse.urlencode(query)}")[1].splitlines():
            series = json.loads(line)
            key = series["metric"]["severity"], series["metric"]["alertname"]
            minute = (min(series["timestamps"]) / 1000 - START) / 60
            found[key] = min(minute, found.get(key, minute))
    return found


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The URL of an empty VictoriaMetrics, until the block ends."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        "victoria-metrics",
        f"-httpListenAddr={url.removeprefix('http://')}",
        f"-storageDataPath={folder / 'victoria'}",
        "-retentionPeriod=100y",
        # What was just written is asked for.
        "-search.latencyOffset=0",
        "-loggerLevel=ERROR",
    ]
    with subprocess.Popen(command) as process:
        try:
            wait_for(lambda: get(f"{url}/health")[0] == 200, 20)
            yield url
        finally:
            process.terminate()


def _lines(text: str, at: int) -> Iterator[str]:
    """An exposition as a scrape would store it: with its labels, its time, and `up`."""
    for line in (*text.splitlines(), "up 1"):
        if sample := _SAMPLE.match(line):
            labels = ",".join(part for part in (sample[2], 'instance="i",job="kvpressure"') if part)
            yield f"{sample[1]}{{{labels}}} {sample[3]} {at * 1000}"


def _moment(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
