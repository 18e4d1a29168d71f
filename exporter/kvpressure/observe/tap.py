"""
The tap: a reverse proxy in the token stream that times what users get, and changes nothing of it.

What does not concern one connection alone passes as it came: bytes of paths, headers and bodies, chunk by chunk, and
how a connection ends. The tap adds no header, so the upstream sees the tap's address in place of the clients', which
stay where they are. Whatever fails in observing is counted, and the bytes go on.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from kvpressure.config import TapConfig
from kvpressure.log import RateLimitedLog
from kvpressure.observe import tap_http, tunnel
from kvpressure.observe.tap_exchange import Around, Exchange, Outcome
from kvpressure.observe.tap_pool import Pool, explain
from kvpressure.observe.tap_server import Client, Passed, Server
from kvpressure.observe.tap_watch import Counts, Observer
from kvpressure.settings import ConfigError, shown, split_address
from kvpressure.vllm.stream import StreamSink, TapFacts

_CROSSED = 1.0
"""
Seconds. An idle connection that the upstream closed while the request was on its way breaks within a round trip. One
that breaks later may have broken because of the request, which is not sent again then.
"""
_BEAT = 0.25  # seconds between two times that the sink hears that it has all events
_BACKLOG = 1024  # connections that wait to be accepted
_SHUTDOWN = 0.2  # seconds; for aiohttp's own part, when all requests have ended

_log = logging.getLogger(__name__)


class _Refusal(NamedTuple):
    """An answer of the tap's own: the reason is what is counted."""

    reason: str
    status: int
    message: str


_OVERLOAD = _Refusal("overload", 503, "Too many requests are open at the tap (tap.max-requests); try again later.")
_HEADERS = _Refusal("headers", 503, "The request's headers are longer than the tap allows (tap.max-header-bytes).")
_MALFORMED = _Refusal("malformed", 400, "The request is not valid HTTP.")
_CONNECT = _Refusal("connect", 501, "The tap passes requests on to one server and opens no connections to others.")
_UNREACHABLE = _Refusal("unreachable", 502, "The upstream cannot be reached.")
_UNANSWERED = _Refusal("unanswered", 502, "The upstream closed the connection without an answer.")
_UNREADABLE = _Refusal("unreadable", 502, "The upstream's answer is not valid HTTP.")
_FAULT = _Refusal("fault", 500, "The tap failed to pass the request on; its log says where.")

REFUSED = tuple(
    refusal.reason
    for refusal in (_OVERLOAD, _HEADERS, _MALFORMED, _CONNECT, _UNREACHABLE, _UNANSWERED, _UNREADABLE, _FAULT)
)
"""Every reason for which the tap answers itself: values of a label, so they are few and fixed."""

_REFUSALS = {
    Outcome.UNANSWERED: _UNANSWERED,
    Outcome.UNREADABLE: _UNREADABLE,
    Outcome.MALFORMED: _MALFORMED,
}


class Tap:
    """
    Passes requests on to one upstream, and watches the streams that come back.

    Args:
        config: where to listen, and where to pass requests on to.
        sink: takes what happens in the streams.
        now: seconds since 1970 that never jump: the clock of the events.

    Raises:
        ConfigError: a file that the settings name cannot be used.
    """

    def __init__(self, config: TapConfig, sink: StreamSink, now: Callable[[], float]) -> None:
        self._config = config
        self._now = now
        self._counts = Counts()
        self._observer = Observer(sink, self._counts)
        self._around = Around(self._observer, self._counts, now)
        self._pool = Pool(config, now, self._observer.fault)
        self._told = RateLimitedLog(_log)
        self._running: set[asyncio.Task[object]] = set()
        self._closing = False
        self._server: Server | None = None
        self._runner: web.ServerRunner | None = None
        self._beat: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """
        Listen on every configured address.

        Raises:
            ConfigError: an address cannot be listened on.
        """
        self._server = Server(self._handle, self._malformed, self._config.max_header_bytes)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=_SHUTDOWN)
        await self._runner.setup()
        try:
            for address in self._config.listen:
                await _listen(self._runner, address)
        except BaseException:
            await self.close(0.0)
            raise
        self._beat = asyncio.create_task(self._keep_advancing())

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every address that is listened on."""
        return [(name[0], name[1]) for name in self._runner.addresses] if self._runner else []

    def facts(self) -> TapFacts:
        """What has passed so far."""
        return self._counts.facts(self._now())

    async def close(self, grace: float) -> None:
        """
        Accept nothing more, let what is under way come to its end, and break off what has not after `grace` seconds.

        Args:
            grace: seconds.
        """
        self._closing = True
        if self._beat is not None:
            self._beat.cancel()
        if self._runner is not None and self._server is not None:
            for site in list(self._runner.sites):
                await site.stop()
            self._server.close_idle()
            if self._running:
                await asyncio.wait(self._running, timeout=grace)
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
            await self._runner.cleanup()
        self._pool.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request, from its head to the end of its answer."""
        client, transport = request.protocol, request.transport
        task = asyncio.current_task()
        if not isinstance(client, Client) or transport is None or task is None:
            return Passed(keep=False)
        refusal = self._refusal(request)
        if refusal is not None:
            return self._refuse(request, refusal)
        self._counts.open += 1
        self._running.add(task)
        try:
            client.exchange = exchange = Exchange(request, transport, self._pool.host, self._around)
            refusal = await self._pass(client, exchange)
            if refusal is None:
                return Passed(keep=not (exchange.close or self._closing))
        except Exception as fault:  # noqa: BLE001  # a fault of ours must not leave a request without an end
            self._observer.fault(fault)
            refusal = _FAULT
        finally:
            answered = client.exchange is not None and client.exchange.answered
            client.exchange = None
            self._running.discard(task)
            self._counts.open -= 1
        if answered:
            transport.close()
            return Passed(keep=False)
        return self._refuse(request, refusal)

    async def _pass(self, client: Client, exchange: Exchange) -> _Refusal | None:
        """Pass it through, on a connection that is kept if there is one; tell what to answer where that failed."""
        loop = asyncio.get_running_loop()
        upstream = self._pool.take()
        fresh = upstream is None
        while True:
            if upstream is None:
                try:
                    upstream = await self._pool.connect()
                except (OSError, UnicodeError) as fault:
                    why = explain(fault)
                    self._told.warning("unreachable", "the tap cannot reach its upstream", detail=why)
                    return _UNREACHABLE
            asked = loop.time()
            outcome = await exchange.run(client, upstream)
            crossed = outcome is Outcome.UNANSWERED and loop.time() - asked < _CROSSED
            if fresh or not crossed or not exchange.upload.repeatable:
                break
            upstream, fresh = None, True
        if outcome is Outcome.PASSED:
            self._pool.give(upstream)
        elif outcome is Outcome.SWITCHED:
            self._counts.responses["1xx"] += 1
            await tunnel.run(client, upstream, exchange.switch)
        return _REFUSALS.get(outcome)

    def _refusal(self, request: web.BaseRequest) -> _Refusal | None:
        """Why this request is not passed on, if it is not."""
        if request.method == "CONNECT":
            return _CONNECT
        if tap_http.is_ambiguous(request.raw_headers):
            return _MALFORMED
        if tap_http.size(request.raw_headers, request.raw_path) > self._config.max_header_bytes:
            return _HEADERS
        if self._counts.open >= self._config.max_requests:
            self._told.warning("overload", "the tap refuses requests", limit=self._config.max_requests)
            return _OVERLOAD
        return None

    def _refuse(self, request: web.BaseRequest, refusal: _Refusal) -> web.StreamResponse:
        """Answer in the upstream's place."""
        self._counts.refused[refusal.reason] += 1
        keep = request.keep_alive and request.content.is_eof() and not self._closing
        if request.transport is not None and not request.transport.is_closing():
            body = request.method != "HEAD"
            request.transport.write(tap_http.error(refusal.status, refusal.message, close=not keep, body=body))
            if refusal is _MALFORMED:
                # The rest of it, which aiohttp would wait for, will not come.
                request.transport.close()
        return Passed(keep=keep)

    def _malformed(self, request: web.BaseRequest, fault: BaseException | None) -> web.StreamResponse:
        """Answer what aiohttp could not read; what it says of that would quote the request."""
        return self._refuse(request, _HEADERS if isinstance(fault, LineTooLong) else _MALFORMED)

    async def _keep_advancing(self) -> None:
        """A silence has no event of its own: the sink must hear that it lasts."""
        while True:
            await asyncio.sleep(_BEAT)
            self._observer.advance(self._now())


async def _listen(runner: web.ServerRunner, address: str) -> None:
    host, port = split_address(address)
    try:
        try:
            await web.TCPSite(runner, host or None, port, backlog=_BACKLOG).start()
        except OSError as fault:
            # Every interface, in a pod whose IPv6 is switched off.
            if host or fault.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            await web.TCPSite(runner, "0.0.0.0", port, backlog=_BACKLOG).start()  # noqa: S104  # as configured
    except socket.gaierror as fault:
        raise ConfigError(f"tap.listen: the host of {shown(address)} cannot be resolved") from fault
    except OSError as fault:
        # From 3.13 on asyncio gives no number where no address of the host can be assigned.
        why = os.strerror(fault.errno or errno.EADDRNOTAVAIL).lower()
        raise ConfigError(f"tap.listen: cannot listen on {shown(address)}: {why}") from fault
    _log.info("tapping", extra={"fields": {"address": address}})
