"""Run Alertmanager and Prometheus in tests, as Debian builds them, and a webhook that keeps what it is told."""

import contextlib
import http.server
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from commands import free_port, get, wait_for


@dataclass
class Notification:
    """What a webhook was told once: when (monotonic), under which path, with which token, and what."""

    at: float
    path: str
    token: str
    body: dict[str, Any]

    def names(self, status: str = "firing") -> set[str]:
        """The alerts in it that fire, or that have ended (``resolved``)."""
        return {alert["labels"]["alertname"] for alert in self.body["alerts"] if alert["status"] == status}


@dataclass
class Webhook:
    """Takes every notification, and keeps them all."""

    url: str
    told: list[Notification] = field(default_factory=list)

    def of(self, path: str, **labels: str) -> list[Notification]:
        """What came under a path, of the group with these labels."""
        return [one for one in self.told if one.path == path and labels.items() <= one.body["groupLabels"].items()]


@contextlib.contextmanager
def webhook() -> Iterator[Webhook]:
    """A webhook on a free port of the loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            token = self.headers.get("Authorization", "")
            kept.told.append(Notification(time.monotonic(), self.path, token, body))
            self.send_response(200)
            self.end_headers()
            # What Slack says; newer versions of Alertmanager ask for it.
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        # Alertmanager tells of all its groups at once.
        request_queue_size = 512

    server = Server(("127.0.0.1", 0), Handler)
    kept = Webhook(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def written(document: dict[str, Any], path: Path) -> Path:
    """A document as YAML, at this path."""
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


@contextlib.contextmanager
def alertmanager(file: Path, folder: Path) -> Iterator[str]:
    """
    Alertmanager's URL, from when it is ready until the block ends.

    Debian names it prometheus-alertmanager. One that was unpacked rather than installed finds its templates from there.
    """
    port = free_port()
    program = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager") or "alertmanager"
    command = [
        program,
        f"--config.file={file}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    unpacked = Path(program).absolute().parents[2]
    with _server(command, f"http://127.0.0.1:{port}", folder / "alertmanager.log", unpacked) as url:
        yield url


@contextlib.contextmanager
def prometheus(file: Path, folder: Path) -> Iterator[str]:
    """Prometheus' URL, from when it is ready until the block ends. It tells of an alert anew every second."""
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
        # Without it a notification that came before Alertmanager was ready is lost for a minute.
        "--rules.alert.resend-delay=1s",
        "--log.level=warn",
    ]
    with _server(command, f"http://127.0.0.1:{port}", folder / "prometheus.log") as url:
        yield url


@contextlib.contextmanager
def _server(command: list[str], url: str, log: Path, folder: Path | None = None) -> Iterator[str]:
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, cwd=folder) as process:
        try:
            wait_for(lambda: process.poll() is not None or get(f"{url}/-/ready")[0] == 200, 30)
            assert process.poll() is None, log.read_text(encoding="utf-8")[-2000:]
            yield url
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
