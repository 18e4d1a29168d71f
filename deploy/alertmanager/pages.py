"""
Whoever would be paged, in docker-compose.yml: a webhook for Alertmanager that writes one line for each alert it gets.

It needs nothing but Python. It listens on the loopback of Alertmanager's own container, port 9095, and what it writes
are names of alerts and their labels, which tell of servers, never of users.
"""  # noqa: INP001 - a script, not a package

import http.server
import json
import signal
import sys
from typing import Any

ADDRESS = ("127.0.0.1", 9095)
_LABELS = ("alertname", "severity", "model_name", "engine", "instance")
_MOST_BYTES = 1 << 20


def lines(where: str, told: dict[str, Any]) -> list[str]:
    """
    One line for each alert of a notification.

    Args:
        where: the path it came under: ``/page`` or ``/ticket``.
        told: Alertmanager's webhook message, version 4.
    """
    return [
        " ".join(
            [
                where.strip("/"),
                alert["status"],
                *(f"{name}={alert['labels'][name]}" for name in _LABELS if name in alert["labels"]),
                json.dumps(alert["annotations"].get("summary", "")),
            ]
        )
        for alert in told["alerts"]
    ]


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers POST alone."""

    timeout = 10

    def do_POST(self) -> None:
        """Write what was told; 400 where it is not Alertmanager's."""
        try:
            length = int(self.headers["Content-Length"])
            told = lines(self.path, json.loads(self.rfile.read(min(length, _MOST_BYTES))))
        except (TypeError, ValueError, LookupError, AttributeError):
            self.send_error(400)
            return
        # At once, for a restart must not lose a page.
        sys.stdout.write("".join(line + "\n" for line in told))
        sys.stdout.flush()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing of requests: what was told is what counts."""


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    server = http.server.ThreadingHTTPServer(ADDRESS, Handler)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
