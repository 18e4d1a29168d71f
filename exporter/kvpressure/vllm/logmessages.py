r"""
What vLLM's log lines say of requests, from version 0.4 to 0.33.

A message is told by its beginning, and its finish reason by its end. What stands between is text of users and is never
looked at. vLLM prints that text with ``repr``, which writes a newline as ``\n``: no text can begin a line of its own.
File names and line numbers change with every release, so they are never matched.

A line of vLLM begins with its header, in which the date may be missing, as in lines that a logging configuration stamps
by itself. Before it may stand names of processes, ``(APIServer pid=1) ``, and what the environment variable
VLLM_LOGGING_PREFIX says: up to ``MAX_PREFIX`` bytes with no quote in them, and no colon before a space. What other
programs print of users, as an error with a prompt in it, is seldom taken for a line of vLLM then.
"""

import re
from collections.abc import Hashable
from typing import Literal

MAX_ID = 200
"""Bytes of the longest request id that is kept as it is: clients choose ids, and thousands are remembered."""

MAX_PREFIX = 64
"""Bytes of the longest VLLM_LOGGING_PREFIX behind which a line is still vLLM's."""

PROCESS = rb"\(\w+ pid=[0-9]+\) "
"""A pattern for the name of a process, as vLLM writes it before a line."""
GENERATED = b"Generated response "
DELTA = b" (streaming delta): output: "
UNFINISHED = b", finish_reason: None"
"""The beginning, the middle and the end of a delta's message; an id and text stand between them."""

_HEAD_REACH = 512  # bytes in which a header begins and ends
_MAX_ABORTS = 4096  # requests of one line
_HEADER = re.compile(
    rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) +(?:[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} "
    rb"(?:\[[^\]]*\]|[^ \]]+\]) |\[[\w.]+:[0-9]+\] )"
)
_PROCESS = re.compile(PROCESS)
_NO_PREFIX = re.compile(rb"[\"']|: ")
_UVICORN = re.compile(rb"(?:%s)?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL): " % PROCESS)
_RECEIVED = re.compile(rb"Received request (.{1,8192}?): (?:params|prompt): ", re.DOTALL)
_GENERATED = re.compile(rb"Generated response (.{1,8192}?)(?: \(streaming (delta|complete)\))?: output: ", re.DOTALL)
_ABORTED = re.compile(rb"Aborted request(?:\(s\))? ([^ ]+)\.$")
_FAILED = re.compile(rb"Request ([^ ]+) (?:aborted\.|failed[ .])")
_FINISHED = re.compile(rb"finish_reason: (?!None$)[^ ]+$")
_SUFFIX = re.compile(rb"(.+)-[0-9a-f]{8}")

MessageKind = Literal["start", "token", "last", "end", "abort"]
Said = tuple[MessageKind, bytes]
"""What happened, and to which request, as the log names it."""


def text_message(content: bytes) -> bytes | None:
    """The message of a line that vLLM printed as text, empty where it is uvicorn's; None where it is neither's."""
    header = _HEADER.search(content, 0, _HEAD_REACH)
    if header and _may_precede(content[: header.start()]):
        return content[header.end() :]
    return b"" if _UVICORN.match(content) else None


def said(message: bytes) -> list[Said]:
    """
    What a message says of requests; mostly nothing.

    ``Received request`` is a start; ``Added request``, which always follows it, adds nothing but the engine's own name
    of the request. An answer that is not streamed has no gaps, so that nothing is said of it. vLLM has no line for a
    request that ended by itself other than ``(streaming complete)``, and no number of a choice in any.
    """
    if message.startswith(GENERATED):
        found = _GENERATED.match(message)
        if found is None or found[2] is None:
            return []
        if found[2] == b"complete":
            return [("end", found[1])]
        return [("last" if _FINISHED.search(message, max(found.end(), len(message) - 100)) else "token", found[1])]
    if found := _RECEIVED.match(message):
        return [("start", found[1])]
    if found := _ABORTED.match(message):
        return _aborts(found[1].split(b",", _MAX_ABORTS)[:_MAX_ABORTS])
    if found := _FAILED.match(message):
        return _aborts([found[1]])
    return []


def may_say(line: bytes) -> bool:
    """Whether it is worth looking for a message: cheap, and true for everything that ``said`` understands."""
    return GENERATED in line or b"equest" in line


def key(request: bytes) -> Hashable:
    """The name of a request that events carry: its id, or a number where that is long."""
    return request if len(request) <= MAX_ID else hash(request)


def _may_precede(head: bytes) -> bool:
    """Whether vLLM may have written this before a header."""
    prefix = _PROCESS.sub(b"", head)
    return len(prefix) <= MAX_PREFIX and not _NO_PREFIX.search(prefix)


def _aborts(requests: list[bytes]) -> list[Said]:
    """Aborts under both names: from some version on these lines have the engine's, which adds 8 hexadecimal digits."""
    aborts: list[Said] = []
    for request in requests:
        aborts.append(("abort", request))
        if longer := _SUFFIX.fullmatch(request):
            aborts.append(("abort", longer[1]))
    return aborts
