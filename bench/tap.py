"""
The tap in a stream of chunks, against nginx as a reverse proxy and against no proxy at all, in turns.

Upstream and client are processes of their own (tap_load.py). nginx has one worker and no buffering, as in front of a
server that streams; it only passes bytes on, while the tap reads every message. It is unpacked from Debian's package,
as the Makefile does with promtool, and where that cannot be done the tap stands alone. A relay on asyncio that reads
nothing (relay.py) says what of the tap's time no proxy in Python can save.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.launch import first_line, free_port, interpreter, relay
from bench.measure import Spread, ratio
from bench.proc import MIB, cpu_seconds, memory
from bench.results import Row
from bench.watching import check, fetch, scrape, sidecar
from kvpressure.signals_exporter import TAP_REQUESTS

LATENCY_GOAL = 0.001
"""Seconds that a chunk takes longer, at the median and at 2,000 chunks/s."""
CPU_GOAL = 0.15
"""Share of one core of a whole sidecar, at 2,000 chunks/s."""
MEMORY_GOAL = 80 * MIB
"""Resident bytes of it."""

_RATE = 50  # chunks per second and stream
_QUIET, _BUSY = 40, 200  # streams: 2,000 and 10,000 chunks/s
_ROUNDS = 3
_SECONDS = 6  # that a stream lasts
_SETTLE = 1.5  # seconds at its beginning and its end over which no CPU time is taken
_SIDECAR_SECONDS = 20
_MANY = 500  # streams that are open at once, for the memory of one
_MANY_RATE, _MANY_SECONDS = 2, 6
_SCRAPES, _SCRAPED_EVERY = 50, 0.2  # seconds: an answer may be given again for half of that
_START_WITHIN = 20.0

_CACHE = Path(".cache") / "nginx"
_CONF = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://127.0.0.1:{upstream}; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Proxy:
    """One way from the client to the upstream: where it is asked, and the process that it takes, if it takes one."""

    port: int
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One run: seconds per chunk at three shares of them, CPU seconds per chunk of the proxy, and its memory."""

    p50: float
    p99: float
    p999: float
    cpu: float
    resident: int


def run() -> list[Row]:
    """All of it, in one run."""
    with interpreter("-m", "bench.tap_load", "source") as source:
        upstream = int(first_line(source))
        rows: list[Row] = []
        with _tap(upstream) as tap, _nginx(upstream) as nginx, relay(upstream) as bare:
            ways = {"direct": Proxy(upstream), "tap": tap} | ({"nginx": nginx} if nginx else {})
            rows += _latency(_in_turn(ways, _QUIET))
            busy = _in_turn(ways | {"relay": Proxy(*bare)}, _BUSY)
            rows += [_cpu(busy), _floor(busy)]
            rows.append(_memory(upstream, ways))
        rows += _sidecar(upstream)
    return rows


def _in_turn(ways: dict[str, Proxy], streams: int) -> dict[str, list[Seen]]:
    seen: dict[str, list[Seen]] = {name: [] for name in ways}
    for _ in range(_ROUNDS):
        for name, way in ways.items():
            seen[name].append(_once(way, streams, _SECONDS))
    return seen


def _once(way: Proxy, streams: int, seconds: int, rate: int = _RATE) -> Seen:
    """
    So many streams at once.

    Raises:
        RuntimeError: chunks are missing.
    """
    chunks = rate * seconds
    with interpreter("-m", "bench.tap_load", "client", str(way.port), str(streams), str(rate), str(chunks)) as client:
        first_line(client)
        time.sleep(_SETTLE)
        began, cpu = time.monotonic(), cpu_seconds(way.pid) if way.pid else 0.0
        time.sleep(seconds - 2 * _SETTLE)
        spent, taken = time.monotonic() - began, (cpu_seconds(way.pid) if way.pid else 0.0) - cpu
        resident = memory(way.pid)["resident"] if way.pid else 0
        told = json.loads(first_line(client))
    if told["chunks"] != streams * chunks:
        raise RuntimeError(f"{streams * chunks - told['chunks']} chunks are missing")
    return Seen(told["p50"], told["p99"], told["p999"], taken / (spent * streams * rate), resident)


def _latency(seen: dict[str, list[Seen]]) -> Iterator[Row]:
    """What a chunk takes longer than without a proxy, at the median and at the slow end."""
    for share in ("p50", "p99", "p999"):
        added = {
            name: [getattr(one, share) - getattr(bare, share) for one, bare in zip(runs, seen["direct"], strict=True)]
            for name, runs in seen.items()
        }
        ours, peer = Spread.of(added["tap"]), Spread.of(added["nginx"]) if "nginx" in added else None
        direct = Spread.of([getattr(one, share) for one in seen["direct"]])
        figures = {"added_seconds": asdict(ours), "direct_seconds": asdict(direct)}
        yield Row(
            f"tap: {share} of what it adds to a chunk at {_QUIET * _RATE:,} chunks/s, against nginx",
            ours.text(1000, " ms"),
            peer.text(1000, " ms") if peer else "-",
            f"{ours.median / peer.median:.1f}x" if peer and min(ours.median, peer.median) > 0 else "-",
            f"under {LATENCY_GOAL * 1000:g} ms" if share == "p50" else "-",
            ours.median < LATENCY_GOAL if share == "p50" else None,
            figures | ({"peer_added_seconds": asdict(peer)} if peer else {}),
        )


def _cpu(seen: dict[str, list[Seen]]) -> Row:
    """CPU time of the proxy, and what that makes of a core."""
    ours, peers = [one.cpu for one in seen["tap"]], [one.cpu for one in seen.get("nginx", [])]
    return Row(
        f"tap: CPU s per million chunks at {_BUSY * _RATE:,} chunks/s; streams of {_RATE} chunks/s that a core carries",
        _carried(ours),
        _carried(peers) if peers else "-",
        ratio(ours, peers).text(1, "x the time", 1) if peers else "-",
        figures={"cpu_seconds_per_chunk": asdict(Spread.of(ours))}
        | ({"peer_cpu_seconds_per_chunk": asdict(Spread.of(peers))} if peers else {}),
    )


def _floor(seen: dict[str, list[Seen]]) -> Row:
    """The same against what the least proxy on the same event loop takes."""
    ours, floor = [one.cpu for one in seen["tap"]], [one.cpu for one in seen["relay"]]
    return Row(
        "tap: the same, against a relay on asyncio that reads nothing",
        _carried(ours),
        _carried(floor),
        ratio(ours, floor).text(1, "x the time", 1),
        figures={"floor_cpu_seconds_per_chunk": asdict(Spread.of(floor))},
    )


def _carried(cpu: list[float]) -> str:
    cost = Spread.of(cpu)
    return f"{cost.text(1e6, ' s', 1)}; {1 / (cost.median * _RATE):,.0f}"


def _memory(upstream: int, ways: dict[str, Proxy]) -> Row:
    """What an open stream takes: memory with many of them, less that with none, of proxies that did nothing before."""
    with _tap(upstream) as tap:
        none = memory(tap.pid)["resident"]
        ours = (_once(tap, _MANY, _MANY_SECONDS, _MANY_RATE).resident - none) / _MANY
    peer: float | None = None
    if "nginx" in ways:
        with _nginx(upstream) as nginx:
            if nginx is not None:
                none = memory(nginx.pid)["resident"]
                peer = (_once(nginx, _MANY, _MANY_SECONDS, _MANY_RATE).resident - none) / _MANY
    return Row(
        f"tap: memory of one stream, of {_MANY} at once, against nginx",
        f"{ours / 1024:.1f} KiB",
        f"{peer / 1024:.1f} KiB" if peer is not None else "-",
        f"{ours / peer:.1f}x as large" if peer else "-",
        figures={"bytes_per_stream": ours, "peer_bytes_per_stream": peer},
    )


def _sidecar(upstream: int) -> Iterator[Row]:
    """`kvpressure serve` with a tap, which samples one engine beside it; then how long scrapes of it take meanwhile."""
    listen = f"127.0.0.1:{free_port()}"
    with sidecar(1, "--tap.listen", listen, "--tap.upstream", f"http://127.0.0.1:{upstream}") as running:
        idle = _scrape_times(running.listen)
        port = int(listen.rpartition(":")[2])
        seen = _once(Proxy(port, running.pid), _QUIET, _SIDECAR_SECONDS)
        with interpreter("-m", "bench.tap_load", "steady", str(port), str(_QUIET), str(_RATE)) as load:
            first_line(load)
            time.sleep(_SETTLE)
            busy = _scrape_times(running.listen)
            said = scrape(running.listen)
    check(said, 1)
    passing = said[TAP_REQUESTS.metric]
    if passing < _QUIET:
        raise RuntimeError(f"{passing:g} streams passed through the tap while it was scraped, not {_QUIET}")
    share = seen.cpu * _QUIET * _RATE
    who = f"sidecar with a tap at {_QUIET * _RATE:,} chunks/s in {_QUIET} streams"
    yield Row(
        f"{who}: CPU, one core",
        f"{share:.2%}",
        goal=f"under {CPU_GOAL:.0%}",
        met=share < CPU_GOAL,
        figures={"cpu_share": share},
    )
    yield Row(
        f"{who}: resident",
        f"{seen.resident / MIB:.1f} MiB",
        goal=f"under {MEMORY_GOAL / MIB:.0f} MiB",
        met=seen.resident < MEMORY_GOAL,
        figures={"bytes": seen.resident},
    )
    told = {"busy": _quantiles(busy), "idle": _quantiles(idle)}
    texts = [f"{each['p50'] * 1000:.1f} and {each['p98'] * 1000:.1f} ms" for each in told.values()]
    yield Row(
        f"/metrics while that goes on, against the same without a stream: wall time, p50 and p98 of {_SCRAPES} scrapes",
        texts[0],
        texts[1],
        f"{told['busy']['p50'] / told['idle']['p50']:.1f}x the time",
        figures={f"{name}_seconds": each for name, each in told.items()},
    )


def _scrape_times(listen: str) -> list[float]:
    """Seconds that each of some scrapes took, as a client sees it."""
    times = []
    for _ in range(_SCRAPES):
        time.sleep(_SCRAPED_EVERY)
        began = time.perf_counter()
        fetch(listen)
        times.append(time.perf_counter() - began)
    return sorted(times)


def _quantiles(times: list[float]) -> dict[str, float]:
    return {"p50": times[len(times) // 2], "p98": times[len(times) * 98 // 100 - 1]}


# --- processes ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _tap(upstream: int) -> Iterator[Proxy]:
    with interpreter("-m", "bench.tap_load", "tap", str(upstream)) as process:
        yield Proxy(int(first_line(process)), process.pid)


@contextlib.contextmanager
def _nginx(upstream: int) -> Iterator[Proxy | None]:
    """One of one worker; None where there is no nginx and none can be unpacked."""
    program = _find_nginx()
    if program is None:
        print("there is no nginx to compare the tap with", file=sys.stderr)
        yield None
        return
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        # Its worker is another user.
        Path(folder).chmod(0o755)
        conf = Path(folder) / "nginx.conf"
        conf.write_text(_CONF.format(folder=folder, port=port, upstream=upstream), encoding="utf-8")
        process = subprocess.Popen([program, "-c", conf])
        try:
            _wait_listening(port)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            while not (workers := children.read_text(encoding="utf-8").split()):
                time.sleep(0.05)  # it listens before it forks
            yield Proxy(port, int(workers[0]))
        finally:
            process.terminate()
            process.wait(10)


def _find_nginx() -> Path | None:
    found = shutil.which("nginx")
    program = Path(found) if found else _CACHE.absolute() / "usr" / "sbin" / "nginx"
    if program.exists():
        return program
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb") or os.geteuid() != 0:
        return None
    _CACHE.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(["apt-get", "download", "-qq", "nginx"], check=True, cwd=_CACHE)
        for package in list(_CACHE.glob("nginx_*.deb")):
            subprocess.run(["dpkg-deb", "-x", package.name, "."], check=True, cwd=_CACHE)
            package.unlink()
    except subprocess.CalledProcessError:
        return None
    return program if program.exists() else None


def _wait_listening(port: int) -> None:
    deadline = time.monotonic() + _START_WITHIN
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError("nginx did not start")
