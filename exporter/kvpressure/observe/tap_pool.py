"""Opens connections to the upstream, and keeps those that wait for their next request."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from kvpressure.config import TapConfig
from kvpressure.credentials import FileFault, Stamp, stamp, trust
from kvpressure.observe.tap_upstream import Upstream
from kvpressure.settings import ConfigError, port_of

_IDLE = 3.0
"""Seconds. uvicorn, and so vLLM, closes connections that have been idle for 5 s; ours must be gone by then."""


class Pool:
    """
    Opens connections to one upstream, and keeps for a while those that are done. There is no limit to their number.

    Args:
        config: where it is.
        now: the clock of the events.
        fault: is told of a fault of ours.

    Raises:
        ConfigError: the file with the authorities cannot be used.
    """

    def __init__(self, config: TapConfig, now: Callable[[], float], fault: Callable[[Exception], None]) -> None:
        parts = urlsplit(config.upstream)
        self.host = parts.netloc.encode()
        """What a request's Host says that names none itself."""
        self._address = parts.hostname or "", port_of(parts)
        self._config = config
        self._now = now
        self._fault = fault
        self._idle: list[Upstream] = []
        self._tls: tuple[Stamp, ssl.SSLContext] | None = None
        if parts.scheme == "https":
            try:
                self._tls = self._stamp(), _context(config.ca_file)
            except FileFault as unusable:
                raise ConfigError(str(unusable)) from unusable

    def take(self) -> Upstream | None:
        """The connection that has been idle for the shortest time, if there is one."""
        while self._idle:
            upstream = self._idle.pop()
            if upstream.expiry is not None:
                upstream.expiry.cancel()
            if upstream.is_connected():
                return upstream
        return None

    async def connect(self) -> Upstream:
        """
        A new connection.

        Raises:
            OSError: there is none within the time allowed (also TimeoutError and ssl.SSLError, which are of its kind).
        """
        loop = asyncio.get_running_loop()
        tls = self._context()
        async with asyncio.timeout(self._config.connect_timeout):
            _, upstream = await loop.create_connection(
                lambda: Upstream(loop, self._now, self._fault),
                *self._address,
                ssl=tls,
                server_hostname=(self._config.server_name or self._address[0]) if tls else None,
                # Not happy_eyeballs_delay: asyncio loses the socket of such a race if the client leaves meanwhile.
            )
        return upstream

    def give(self, upstream: Upstream) -> None:
        """Take back a connection on which the last answer is complete."""
        upstream.serve(None)
        if not upstream.usable:
            upstream.close()
            return
        self._idle.append(upstream)
        upstream.expiry = asyncio.get_running_loop().call_later(_IDLE, self._expire, upstream)

    def close(self) -> None:
        """Close the connections that are idle."""
        while (upstream := self.take()) is not None:
            upstream.close()

    def _expire(self, upstream: Upstream) -> None:
        if upstream in self._idle:
            self._idle.remove(upstream)
            upstream.close()

    def _context(self) -> ssl.SSLContext | None:
        """What to trust, read again when the file changed; while the new one cannot be used, what it was."""
        if self._tls is None:
            return None
        now = self._stamp()
        if self._tls[0] != now:
            try:
                self._tls = now, _context(self._config.ca_file)
            except FileFault:
                self._tls = now, self._tls[1]
        return self._tls[1]

    def _stamp(self) -> Stamp:
        return stamp(self._config.ca_file) if self._config.ca_file else ()


def explain(fault: OSError | UnicodeError) -> str:
    """Why there is no connection, in words that hold nothing of the traffic."""
    if isinstance(fault, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {fault.verify_message}"
    if isinstance(fault, ssl.SSLError):
        return f"the TLS handshake failed: {fault.reason or 'no reason given'}"
    if isinstance(fault, UnicodeError | socket.gaierror):
        return "its name cannot be resolved"
    if isinstance(fault, TimeoutError):
        return "it takes no connection within tap.connect-timeout"
    return os.strerror(fault.errno).lower() if fault.errno else "none of its addresses answers"


def _context(ca_file: str) -> ssl.SSLContext:
    if ca_file:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust(made, "tap.ca-file", ca_file)
    else:
        made = ssl.create_default_context()
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    return made
