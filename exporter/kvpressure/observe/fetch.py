"""One request for vLLM's metrics: credentials, TLS, limits, and one word for whatever goes wrong."""

import asyncio
import os
import socket
import ssl
import zlib
from collections.abc import Iterator
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDict

from kvpressure import client
from kvpressure.config import VllmConfig
from kvpressure.credentials import FileFault, Stamp, stamp
from kvpressure.settings import ConfigError

ANSWERED = frozenset({"status", "too_large", "truncated"})
"""Reasons for which vLLM did the work of an answer: they count towards the duty budget."""
REASONS = ("refused", "timeout", "status", "too_large", "truncated", "tls", "credentials", "dns", "other")
"""Every reason that a sample fails for: values of a label, so they are few and fixed."""

_DAMAGED = "the answer's body is cut off or damaged"
_OK = 200
_REDIRECTS = range(300, 400)
_CHUNK = 64 * 1024
_KEEP_ALIVE = 90.0  # seconds; longer than the longest interval between samples


class FetchError(Exception):
    """
    A request that gave no body.

    Args:
        reason: one of ``REASONS``.
        detail: why, in plain words that hold nothing vLLM sent and no credential.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Fetcher:
    """
    Reads the metrics of one vLLM over a connection that is kept open.

    Args:
        config: how to reach it.

    Raises:
        ConfigError: a file that exists cannot be used, or settings do not fit together. A file that does not exist
            may still come, so it fails samples, not the start.
    """

    def __init__(self, config: VllmConfig) -> None:
        self._config = config
        parts = urlsplit(config.url)
        self.address = f"{parts.scheme}://{parts.netloc}{parts.path}"
        """The URL without its query, which may hold a secret: safe to log."""
        self._https = parts.scheme == "https"
        self._session: aiohttp.ClientSession | None = None
        self._tls_files = tuple(path for path in (config.ca_file, config.cert_file, config.key_file) if path)
        self._tls: tuple[Stamp, ssl.SSLContext] | None = None
        self._check()

    def _check(self) -> None:
        client.check(self._config)
        for use in (self._headers, self._tls_context):
            try:
                use()
            except FileFault as fault:
                if not fault.missing:
                    raise ConfigError(str(fault)) from fault

    async def text(self) -> str:
        """
        The metrics now.

        Raises:
            FetchError: there is no complete answer of status 200 within the time and size allowed.
        """
        try:
            headers, tls = self._headers(), self._tls_context()
            # One deadline over everything; aiohttp's own total is rounded up to whole seconds.
            async with (
                asyncio.timeout(self._config.timeout),
                self._connected().get(
                    self._config.url,
                    headers=headers,
                    ssl=tls,
                    server_hostname=self._config.server_name or None,
                    allow_redirects=False,
                ) as response,
            ):
                return (await self._body(response)).decode("utf-8", errors="replace")
        except FetchError:
            raise
        except FileFault as fault:
            raise FetchError("credentials", str(fault)) from fault
        except TimeoutError as fault:
            raise FetchError("timeout", f"no complete answer within {self._config.timeout:g} s") from fault
        except Exception as fault:
            raise FetchError(*_explain(fault, ask_certificate=self._https and not self._config.cert_file)) from fault

    async def close(self) -> None:
        """Close the connection. A later ``text`` opens a new one."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        """The decompressed body. Leaving early makes aiohttp drop the connection instead of reading the rest."""
        if response.status != _OK:
            hint = "; redirects are not followed" if response.status in _REDIRECTS else ""
            raise FetchError("status", f"the answer's status is {response.status}{hint}")
        limit = self._config.max_body_bytes
        too_large = FetchError("too_large", f"the answer is longer than vllm.max-body-bytes ({limit})")
        if (response.content_length or 0) > limit:
            raise too_large
        unpack = _unpacker(response.headers.get("Content-Encoding", "identity"))
        chunks: list[bytes] = []
        room = limit
        try:
            async for chunk in response.content.iter_chunked(_CHUNK):
                # One byte over the cap is enough to see that the body is too long.
                chunks.append(unpack.decompress(chunk, room + 1) if unpack else chunk)
                room -= len(chunks[-1])
                if room < 0:
                    raise too_large
            if unpack and (not unpack.eof or unpack.unused_data):
                raise FetchError("truncated", _DAMAGED)
            return b"".join(chunks)
        finally:
            # An exception that this frame knows holds the frame: the pair, and a body, would wait for the collector.
            chunks.clear()

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            path = self._config.unix_socket
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(path, keepalive_timeout=_KEEP_ALIVE)
                if path
                else aiohttp.TCPConnector(keepalive_timeout=_KEEP_ALIVE),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None),
            )
        return self._session

    def _headers(self) -> CIMultiDict[str]:
        """The headers of one request, with the credentials as their files hold them now."""
        headers = CIMultiDict(client.headers(self._config))
        # vLLM answers on the loop that streams tokens: no compression.
        headers.setdefault("Accept-Encoding", "identity")
        return headers

    def _tls_context(self) -> ssl.SSLContext | bool:
        """What to trust and to show, read again when a file changed; a new context makes a new connection."""
        if not self._https:
            return True
        now = stamp(*self._tls_files)
        if self._tls is None or self._tls[0] != now:
            self._tls = now, client.context(self._config)
        return self._tls[1]


def _unpacker(encoding: str) -> "zlib._Decompress | None":
    """What decompresses a body; aiohttp's own way of it bounds memory in some versions only."""
    if encoding.lower() == "identity":
        return None
    if encoding.lower() in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(zlib.MAX_WBITS | 32)  # tells gzip from deflate by itself
    raise FetchError("other", "the answer's content encoding is neither gzip nor deflate")


def _explain(fault: BaseException, *, ask_certificate: bool) -> tuple[str, str]:
    """Reason and detail. Messages of aiohttp are not repeated: some hold what the server sent."""
    for link in _chain(fault):
        if isinstance(link, aiohttp.ClientError):
            continue  # some of these are SSL errors too, but without the attributes of one
        if isinstance(link, ssl.SSLCertVerificationError):
            return "tls", f"vLLM's certificate is not accepted: {link.verify_message}"
        if isinstance(link, ssl.SSLError):
            return "tls", f"the TLS handshake failed: {link.reason or 'no reason given'}"
    # Some hosts could never be resolved: an empty label, 1.2.3.999, an IPv6 zone that is not there.
    nameless = isinstance(fault, aiohttp.ClientConnectorDNSError | aiohttp.InvalidURL | UnicodeError)
    if nameless or isinstance(getattr(fault, "os_error", None), socket.gaierror):
        return "dns", "the host's name cannot be resolved"
    if isinstance(fault, aiohttp.ClientConnectorError):
        number = fault.os_error.errno
        return "refused", f"cannot connect: {os.strerror(number).lower() if number else 'no address answers'}"
    if isinstance(fault, aiohttp.ClientPayloadError | zlib.error):
        return "truncated", _DAMAGED
    if isinstance(fault, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
        # So closes, without a TLS alert, a Python server that wants a client certificate and got none.
        hint = "; does vLLM want a client certificate?" if ask_certificate else ""
        return "truncated", f"the connection was closed before the answer was complete{hint}"
    if isinstance(fault, aiohttp.ClientResponseError):
        return "other", "the answer is not HTTP, or has unusable headers"
    return "other", f"unexpected {type(fault).__name__}"


def _chain(fault: BaseException) -> Iterator[BaseException]:
    """The fault and what caused it."""
    link: BaseException | None = fault
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
