"""Heads of HTTP messages as the tap passes them on: as they came, but for what concerns one connection only (pure)."""

import json
from collections.abc import Mapping, Sequence

Headers = Sequence[tuple[bytes, bytes]]
"""Names and values as they came, in their order."""

# RFC 9110, 7.6.1. A body is framed anew, so Transfer-Encoding is passed on: it says truly how.
_HOP = frozenset({b"connection", b"keep-alive", b"te", b"trailer", b"upgrade"})
# Never dropped, whatever Connection names: they decide where a message goes and where it ends.
_ESSENTIAL = frozenset({b"host", b"content-length", b"transfer-encoding"})

_REASONS = {400: "Bad Request", 500: "Internal Server Error", 501: "Not Implemented", 502: "Bad Gateway"}
_REASONS |= {503: "Service Unavailable"}

NO_BODY = frozenset({204, 304})
"""Statuses of final answers that never have a body."""
SWITCHING = 101
"""The status after which a connection speaks another protocol."""


def wants_upgrade(headers: Headers) -> bool:
    """Whether the two ends may agree on another protocol after this message."""
    return b"upgrade" in _options(headers) and any(name.lower() == b"upgrade" for name, _ in headers)


def is_ambiguous(headers: Headers) -> bool:
    """Whether two programs could disagree on where a request goes, or where it ends."""
    names = [name.lower() for name, _ in headers]
    return any(names.count(name) > 1 for name in _ESSENTIAL) or {b"content-length", b"transfer-encoding"} <= set(names)


def size(headers: Headers, target: str) -> int:
    """Bytes of a request's head, but for its method and version."""
    return len(target) + sum(len(name) + len(value) + len(b": \r\n") for name, value in headers)


def request_head(method: str, target: bytes, headers: Headers, host: bytes) -> bytes:
    """
    The head of a request to the upstream.

    Args:
        method: as it came.
        target: path and query, or whatever stood in their place, as it came.
        headers: all that came.
        host: what to give as Host where that is missing, as it may be in HTTP/1.0.
    """
    connection, keep = b"", frozenset[bytes]()
    if wants_upgrade(headers):
        # If the ends agree, the connection is theirs, and so is what belongs to it (HTTP2-Settings to h2c).
        connection = b", ".join(value for name, value in headers if name.lower() == b"connection")
        keep = _options(headers)
    kept = _passed(headers, connection, keep)
    if not any(name.lower() == b"host" for name, _ in kept):
        kept.insert(0, (b"Host", host))
    return _head(b"%b %b HTTP/1.1" % (method.encode(), target), kept)


def response_head(status: int, reason: bytes, headers: Headers, *, close: bool, old: bool) -> bytes:
    """
    The head of an answer to the client.

    Args:
        status: as it came.
        reason: as it came.
        headers: all that came.
        close: the connection ends with this answer.
        old: the client speaks HTTP/1.0, so it knows no chunks, and has to be told that the connection stays open.
    """
    first = b"HTTP/1.1 %d %b" % (status, reason)
    if status == SWITCHING:
        return _head(first, headers)
    if old:
        headers = [(name, value) for name, value in headers if name.lower() != b"transfer-encoding"]
    options = [b"close"] if close else [b"keep-alive"] * old
    keep = frozenset[bytes]()
    if wants_upgrade(headers):
        options.insert(0, b"upgrade")
        keep = frozenset({b"upgrade"})
    return _head(first, _passed(headers, b", ".join(options), keep))


def error(status: int, message: str, *, close: bool, body: bool = True) -> bytes:
    """
    A whole answer of the tap's own, in the shape that clients of OpenAI's API read.

    Args:
        status: 4xx or 5xx.
        message: one sentence, without anything that came from either side.
        close: the connection ends with it.
        body: whether the body is sent too: not to a HEAD request.
    """
    reason = _REASONS[status]
    kind = reason.replace(" ", "") + "Error"
    text = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}}).encode()
    headers = [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(text))]
    headers += [(b"Connection", b"close")] * close
    return _head(b"HTTP/1.1 %d %b" % (status, reason.encode()), headers) + text * body


def chunk(data: bytes) -> bytes:
    """A piece of a body in chunks; not for an empty one, which would end it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def is_event_stream(headers: Mapping[str, str]) -> bool:
    """Whether an answer's body is a stream of server-sent events."""
    return headers.get("Content-Type", "").partition(";")[0].strip().lower() == "text/event-stream"


def is_encoded(headers: Mapping[str, str]) -> bool:
    """Whether an answer's body is compressed."""
    return headers.get("Content-Encoding", "").strip().lower() not in ("", "identity")


def _options(headers: Headers) -> frozenset[bytes]:
    """What Connection names, in small letters."""
    values = [value for name, value in headers if name.lower() == b"connection"]
    return frozenset(option.strip().lower() for value in values for option in value.split(b","))


def _passed(headers: Headers, connection: bytes, keep: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    """
    The headers without those that concern one connection only.

    Args:
        headers: all that came.
        connection: what Connection says on the other side; nothing to leave it out.
        keep: names that stay although they concern one connection.
    """
    dropped = (_HOP | _options(headers)) - _ESSENTIAL - keep
    kept: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        lowered = name.lower()
        if lowered == b"connection":
            if connection:
                kept.append((name, connection))
                connection = b""
        elif lowered not in dropped and not lowered.startswith(b"proxy-"):
            kept.append((name, value))
    if connection:
        kept.append((b"Connection", connection))
    return kept


def _head(first: bytes, headers: Headers) -> bytes:
    return b"\r\n".join([first, *(b"%b: %b" % header for header in headers), b"", b""])
