"""The log messages of a source and the lines of a log, and what kvpressure makes of them. No text of a log is shown."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvpressure.vllm.logframes import Frames
from kvpressure.vllm.logmessages import said, text_message
from kvpressure.vllm.logrecords import vllm_message
from kvpressure.vllm.logs import LogReader

from .drift_source import Source
from .drift_table import Version

EXPECTED: Mapping[str, tuple[str, Version]] = {
    "start": ("a request was received", (0, 6, 0)),
    "abort": ("a request was aborted", (0, 6, 0)),
    "end": ("a streamed answer is complete", (0, 10, 2)),
    "token": ("a chunk of an answer", (0, 10, 2)),
    "last": ("the last chunk of an answer", (0, 10, 2)),
}
"""What the log observer lives on, and the first release that was looked at which logs it."""

BEGINNINGS = (
    "Received request",
    "Generated response",
    "Added request",
    "Aborted request",
    "Finished request",
    "Request ",
)
"""How vLLM's messages about requests begin. Another message is no message about one."""

_TEMPLATES = (*BEGINNINGS[:-1], BEGINNINGS[-1] + "%s")  # "Request body ..." speaks of none
_PLACES = ("entrypoints/", "engine/", "v1/engine/")
_METHODS = {"debug", "info", "warning", "error", "exception"}
_SPECIFIER = re.compile(r"%(?:\.[0-9]+)?[srdf]")
_ID = "chatcmpl-a1"
_STREAMED = re.compile(r" \(streaming \w+\)")
_HEADER_PARTS = {
    "levelname": "INFO",
    "asctime": "11-30 06:07:36",
    "filename": "logger.py",
    "fileinfo": "logger.py",
    "lineno": 42,
    "vllm_process_name": "APIServer",
    "process": 1,
}
_ARRIVAL = 1796022992.0


@dataclass(frozen=True, slots=True)
class Format:
    """
    One message about requests in a source.

    Args:
        template: as it stands in the source.
        level: the logger's method.
        says: what kvpressure makes of lines of it: kinds of events; empty for none.
    """

    template: str
    level: str
    says: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Formats:
    """
    What a source logs of requests.

    Args:
        header: what stands before each message; empty where the source does not show it.
        header_read: kvpressure knows a line by it.
        messages: the messages, each once.
    """

    header: str
    header_read: bool
    messages: tuple[Format, ...]

    def gone(self, release: Version | None) -> list[str]:
        """What a release must log, or the newest where it is not known, and no message of this source says."""
        said_here = {kind for message in self.messages for kind in message.says}
        return [
            f"{kind} ({what})"
            for kind, (what, since) in EXPECTED.items()
            if kind not in said_here and (release is None or release >= since)
        ]


def formats(source: Source) -> Formats:
    """The messages about requests in a source, each put through the reader behind the source's own header."""
    header = _header(source)
    found: dict[tuple[str, str], Format] = {}
    for path, text in sorted(source.files.items()):
        if not path.startswith(_PLACES) or "logger." not in text:
            continue
        tree = source.tree(path)
        streamed = sorted(
            {
                node.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and _STREAMED.fullmatch(node.value)
            }
        )
        for level, template in _logged(tree):
            kinds = sorted({kind for message in _filled(template, streamed) for kind in _read(header, message)})
            found.setdefault((template, level), Format(template, level, tuple(kinds)))
    read = text_message(_line(header, "hello").encode()) == b"hello"
    return Formats(header, read, tuple(found[key] for key in sorted(found)))


def _header(source: Source) -> str:
    """What vLLM's formatter writes before a message: logger._FORMAT without an operator's own prefix."""
    if "logger.py" not in source.files:
        return ""
    for node in ast.walk(source.tree("logger.py")):
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "_FORMAT" for target in node.targets):
            template = _template(node.value)
            return template.removesuffix("%(message)s") if template is not None else ""
    return ""


def _line(header: str, message: str) -> str:
    try:
        return header % _HEADER_PARTS + message
    except (KeyError, ValueError, TypeError):
        return message


def _template(node: ast.expr) -> str | None:
    """A string, or an f-string without the parts that are filled in when it is made."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else ("" if "PREFIX" in ast.unparse(part) else "%s")
            for part in node.values
        )
    return None


def _logged(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Level and template of each message about requests that a file logs."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        template = _template(node.args[0])
        if node.func.attr in _METHODS and template is not None and template.startswith(_TEMPLATES):
            yield node.func.attr, template


def _filled(template: str, streamed: list[str]) -> Iterator[str]:
    """A template with a request's name and what else can stand in it."""
    places = _SPECIFIER.findall(template)
    twice = "%s%s" in template
    for stream in ["", *streamed] if twice else [""]:
        for reason in ("None", "length"):
            values = [_ID, *(["x"] * (len(places) - 1))]
            if twice:
                values[1] = stream
            if "finish_reason: " in template:
                values[-1] = reason
            yield _SPECIFIER.sub("{}", template.replace("{", "{{").replace("}", "}}")).format(*values)


def _read(header: str, message: str) -> list[str]:
    events = LogReader().read((_line(header, message) + "\n").encode(), _ARRIVAL, _ARRIVAL)
    return [event.kind for batch in events for event in batch.events]


@dataclass(frozen=True, slots=True)
class Lines:
    """
    What a log holds.

    Args:
        lines: lines in all.
        known: lines with a header of vLLM or its web server.
        events: what was read, by kind.
        messages: lines about requests by the beginning of their message.
        unread: of those, lines that say something of a stream and gave no event, by their beginning.
    """

    lines: int
    known: int
    events: Counter[str]
    messages: Counter[str]
    unread: Counter[str]


def lines(data: bytes) -> Lines:
    """What a log holds, by kinds and numbers only."""
    reader = LogReader()
    events = Counter[str](event.kind for batch in reader.read(data, _ARRIVAL, _ARRIVAL) for event in batch.events)
    known = 0
    messages: Counter[str] = Counter()
    unread: Counter[str] = Counter()
    frames = Frames(Counter())
    for line in data.split(b"\n"):
        framed = frames.open(line)
        if framed is None:
            continue
        content, _, record, _ = framed
        message = text_message(content) if record is None else vllm_message(record)[0]
        known += message is not None
        beginning = next((one for one in BEGINNINGS if (message or b"").startswith(one.encode())), None)
        if message is None or beginning is None:
            continue
        messages[beginning] += 1
        # vLLM says "Added" and "Finished" beside another line, and prints details of what another line has said.
        telling = beginning in ("Received request", "Aborted request") or b"(streaming " in message
        unread[beginning] += telling and not said(message) and b" details: " not in message
    return Lines(data.count(b"\n"), known, events, messages, +unread)
