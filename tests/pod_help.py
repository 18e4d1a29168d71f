"""
The processes of a pod, for tests: a sidecar, its users, and a vLLM that ends what it began when it is told to stop.

Run as a program, this is that vLLM: it answers chat completions with streams whose every byte is known beforehand.
"""

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from aiohttp import web
from commands import Running, free_port, get, running, wait_for
from taps import DONE, token, unchunked

from kvpressure.lab.metrics import ServerMetrics
from kvpressure.lab.scenarios import SCENARIOS

LAST_CHUNK = b"0\r\n\r\n"
"""With what a whole answer ends."""


class Sidecar:
    """A running ``kvpressure serve`` with a tap."""

    def __init__(self, command: Running, tap: int) -> None:
        self.command, self.tap = command, tap

    @property
    def metrics(self) -> str:
        """Its exposition; empty where it does not answer."""
        return get(f"{self.command.url}/metrics")[1]

    @property
    def values(self) -> dict[str, float]:
        """Sample (name with labels) -> value."""
        lines = (line for line in self.metrics.splitlines() if not line.startswith("#"))
        return {name: float(number) for name, _, number in (line.rpartition(" ") for line in lines)}

    def value(self, name: str) -> float | None:
        """The value of one sample, or of the first with this name; None where there is none."""
        return next((number for found, number in self.values.items() if name in (found, found.partition("{")[0])), None)

    def terminate(self) -> None:
        """Tell it to stop, as a kubelet does."""
        self.command.process.send_signal(signal.SIGTERM)

    def ended(self, seconds: float = 20) -> int:
        """Wait for its end; the exit status."""
        _, self.command.stderr = self.command.process.communicate(timeout=seconds)
        return self.command.process.returncode

    @property
    def last_line(self) -> dict[str, str]:
        """The fields of the last line of its log, once it has ended."""
        words = self.command.stderr.splitlines()[-1].split()
        return dict(word.split("=", 1) for word in words if "=" in word)


@contextlib.contextmanager
def sidecar(vllm: int, *words: str) -> Iterator[Sidecar]:
    """A sidecar of the vLLM on a port, with five samples a second."""
    tap = free_port()
    upstream = f"http://127.0.0.1:{vllm}"
    with running(
        "serve",
        *("--vllm.url", f"{upstream}/metrics", "--sample.interval", "200ms", "--sample.duty-budget", "1"),
        *("--tap.listen", f"127.0.0.1:{tap}", "--tap.upstream", upstream, *words),
        ready="/-/ready",
    ) as command:
        yield Sidecar(command, tap)


@contextlib.contextmanager
def draining_vllm() -> Iterator[Running]:
    """A vLLM that, told to stop, first ends the streams that it has begun."""
    port = free_port()
    with subprocess.Popen([sys.executable, __file__, str(port)], stderr=subprocess.PIPE, text=True) as process:
        vllm = Running(process, f"http://127.0.0.1:{port}")
        try:
            wait_for(lambda: get(f"{vllm.url}/health")[0] == 200, 20)
            yield vllm
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()


def port_of(vllm: Running) -> int:
    """Where it listens."""
    return int(vllm.url.rpartition(":")[2])


@dataclass
class Answer:
    """What a user got: bytes as they came after the head, and when the connection ended."""

    begun: bool = False
    status: int = 0
    raw: bytes = b""
    ended: float = 0.0

    @property
    def text(self) -> bytes:
        """The same without its framing: whoever passes chunks on may put some together."""
        return unchunked(self.raw)

    @property
    def whole(self) -> bool:
        """Whether it came to its end."""
        return self.raw.endswith(LAST_CHUNK)


class Users:
    """
    Streams that are read in a thread of their own while a test does other things.

    Args:
        port: where to ask.
        count: how many ask at once.
        ask: the body of each request.
    """

    def __init__(self, port: int, count: int, **ask: object) -> None:
        self.answers = [Answer() for _ in range(count)]
        self._port = port
        body = json.dumps({"model": "lab-8b", "messages": [{"role": "user", "content": "x"}], "stream": True, **ask})
        self._request = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: vllm\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._ask_all()), daemon=True)
        self._thread.start()

    def wait_begun(self) -> "Users":
        """Wait until each has got something of its stream."""
        wait_for(lambda: all(answer.begun for answer in self.answers), 20)
        return self

    def wait_ended(self, seconds: float = 20) -> list[Answer]:
        """Wait until all connections have ended."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "streams are still open"
        return self.answers

    async def _ask_all(self) -> None:
        await asyncio.gather(*(self._ask(answer) for answer in self.answers))

    async def _ask(self, answer: Answer) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(self._request)
            head = await reader.readuntil(b"\r\n\r\n")
            answer.status = int(head.split(b" ", 2)[1])
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65536):
                    answer.raw += data
                    answer.begun = True
            writer.close()
        answer.ended = time.monotonic()


def stream_of(chunks: int) -> bytes:
    """What the draining vLLM answers to a request for so many chunks."""
    return b"".join(token(str(number)) for number in range(chunks)) + DONE


def reachable(port: int) -> bool:
    """Whether a new connection gets an answer from the vLLM behind this port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def delta(request: str) -> bytes:
    """A line that vLLM writes for a token."""
    return (
        f"(APIServer pid=1) INFO 11-30 07:16:32 [request_logger.py:108] Generated response {request} "
        "(streaming delta): output: '', finish_reason: None\n"
    ).encode()


class Falls:
    """Looks at the metrics of a sidecar all the time, and notes every counter that went down."""

    def __init__(self, it: Sidecar) -> None:
        self.it, self.looks, self._stop = it, 0, threading.Event()
        self.found: list[str] = []
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _look(self) -> None:
        before: dict[str, float] = {}
        while not self._stop.wait(0.05):
            now = {
                name: number
                for name, number in self.it.values.items()
                if name.partition("{")[0].endswith(("_total", "_count", "_sum", "_bucket"))
            }
            if not now:
                # It took too long to answer, on a busy machine.
                continue
            self.found += [name for name, number in before.items() if now.get(name, 0.0) < number]
            before, self.looks = now, self.looks + 1


READ_ONLY = """
mount --make-rprivate /
for place in $(awk '$3 !~ /^(proc|sysfs|cgroup2?|devpts|mqueue)$/ {print $2}' /proc/self/mounts); do
  mount -o remount,ro,bind "$place" 2>/dev/null
done
for place in . /tmp /var/tmp /usr/tmp; do
  touch "$place/kvpressure-$$" 2>/dev/null && rm "$place/kvpressure-$$" && exit 3
done
ulimit -f 0
unset HOME TMPDIR TMP TEMP
exec "$@"
"""
"""Runs a command where every file system is read-only, and no file can grow."""


def namespaced() -> list[str] | None:
    """What runs READ_ONLY with a view of the file systems of its own; None where that is not allowed."""
    for words in (["unshare", "-m"], ["unshare", "-rm"]):
        command = [*words, "sh", "-c", READ_ONLY, "sh", "true"]
        if (
            shutil.which("unshare")
            and not subprocess.run(command, check=False, capture_output=True, cwd="/").returncode
        ):
            return words
    return None


class _Vllm:
    """The program: streams, and an end once no stream is open."""

    def __init__(self) -> None:
        self.streams = 0
        self.idle = asyncio.Event()

    async def chat(self, http: web.Request) -> web.StreamResponse:
        ask = await http.json()
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.streams += 1
        self.idle.clear()
        try:
            await answer.prepare(http)
            began = time.monotonic()
            for number in range(ask["chunks"]):
                await answer.write(token(str(number)))
                # By the clock, so that a busy machine makes no stream longer.
                await asyncio.sleep(began + (number + 1) * ask["pause"] - time.monotonic())
            await answer.write(DONE)
            await answer.write_eof()
        finally:
            self.streams -= 1
            if not self.streams:
                self.idle.set()
        return answer

    async def serve(self, port: int) -> None:
        self.idle.set()
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        metrics = ServerMetrics(SCENARIOS["calm"].server, "lab-8b")

        async def health(_: web.Request) -> web.Response:
            return web.Response()

        async def exposition(_: web.Request) -> web.Response:
            return web.Response(body=metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4"})

        app = web.Application()
        app.add_routes(
            [
                web.get("/health", health),
                web.get("/metrics", exposition),
                web.post("/v1/chat/completions", self.chat),
            ]
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await stop.wait()
        await self.idle.wait()
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_Vllm().serve(int(sys.argv[1])))
