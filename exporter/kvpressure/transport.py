"""What requests cannot do by itself: a Unix socket, TLS as the sampler speaks it, one deadline for all."""

import socket
import ssl
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

_Answer = TypeVar("_Answer")


def within(seconds: float, ask: Callable[[], _Answer]) -> _Answer:
    """
    What `ask` returns, or raises, if it does so in time.

    A timeout of requests begins anew with every byte of a head, or of the length of a chunk.

    Raises:
        requests.Timeout: it does not. Its thread is given up, and ends with the program.
    """
    ended: SimpleQueue[tuple[_Answer] | Exception] = SimpleQueue()

    def run() -> None:
        try:
            ended.put((ask(),))
        except Exception as fault:  # noqa: BLE001  # raised again where it is waited for
            ended.put(fault)

    threading.Thread(target=run, daemon=True).start()
    try:
        found = ended.get(timeout=seconds)
    except Empty:
        raise requests.Timeout from None
    if isinstance(found, Exception):
        raise found
    return found[0]


class UnixAdapter(HTTPAdapter):
    """
    Sends every request over one Unix socket.

    Args:
        path: the socket's file.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._pool = _UnixPool(path)

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> HTTPConnectionPool:  # noqa: ANN401
        """The pool of connections to the socket, whatever the URL says."""
        return self._pool

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()
        super().close()


class TlsAdapter(HTTPAdapter):
    """
    Trusts and shows over TLS what a context says; by itself requests trusts authorities that it brings along.

    Args:
        context: what to trust and to show.
        name: the name to ask for and to expect in the server's certificate; empty for the URL's host.
    """

    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        self._context, self._name = context, name or None
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:  # noqa: ANN401
        """Make the pools with the context and the name."""
        options |= {"ssl_context": self._context, "server_hostname": self._name, "assert_hostname": self._name}
        super().init_poolmanager(*args, **options)

    def cert_verify(self, *_: Any) -> None:  # noqa: ANN401
        """Add nothing to what the context trusts and shows."""


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _UnixPool(HTTPConnectionPool):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def _new_conn(self) -> HTTPConnection:
        timeout = self.timeout.connect_timeout
        return _UnixConnection(self._path, timeout if isinstance(timeout, float | int) else None)
