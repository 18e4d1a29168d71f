"""
Streams of server-sent events, as vLLM's APIs send them: bytes in, what happened out.

Three APIs are known: OpenAI's completions and chat completions (`choices`), OpenAI's responses (`type: response....`)
and Anthropic's messages (`type: content_block_delta`). What none of them sends means nothing here.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

MAX_MESSAGE = 1024 * 1024
"""Bytes of the longest message that is read; a longer one is skipped and counted."""

_MAX_LINE = MAX_MESSAGE + 1024  # bytes, so that a line with the longest message passes
_BOM = b"\xef\xbb\xbf"
_DONE = b"[DONE]"
_MAX_MODEL = 512  # characters; a longer name is not one
_MAX_CHOICE = 1023
_TEMPLATES = 8  # choices whose chunks are recognised without parsing; as many as `n` usually asks for
_LESSONS = 32  # attempts at that per stream; where the text is not all that changes, they are in vain
_LONGEST = 8 * 1024  # bytes of a message that is learned from; one with the ids of a long prompt is like no other

_decode: Callable[[str], Any] = json.JSONDecoder(strict=False).decode


class Seen(NamedTuple):
    """
    One thing that happened in a stream.

    Args:
        kind: as in ``stream.EventKind``; a reader gives at most one ``end`` or ``abort``, and nothing after it.
        choice: which of the answers.
    """

    kind: Literal["token", "last", "blind", "end", "abort"]
    choice: int = 0


Happened = tuple[Seen, ...]

_END: Happened = (Seen("end"),)
_ABORT: Happened = (Seen("abort"),)

# Of the events with a `type`: what they mean, and where they say which answer they belong to. Whatever else is named
# `response.*.delta` carries content. A finished item or block is no chunk, but nobody waits for its next one.
_TYPES: Mapping[str, tuple[Literal["token", "blind", "end", "abort"], str]] = {
    "response.output_item.done": ("blind", "output_index"),
    "response.completed": ("end", ""),
    "response.failed": ("end", ""),
    "response.incomplete": ("end", ""),
    "content_block_delta": ("token", "index"),
    "content_block_stop": ("blind", "index"),
    "message_stop": ("end", ""),
    "error": ("abort", ""),
}

# Where the text of a chunk stands, the most usual first.
_TEXT_KEYS = tuple(
    f'{key}":"'.encode()
    for key in ("content", "text", "reasoning_content", "reasoning", "delta", "thinking", "partial_json", "arguments")
)
_SPECIAL = re.compile(rb'["\\\r\n]')


class _Template(NamedTuple):
    """The bytes around the text of a choice's chunks: of the message alone, and of the whole event around it."""

    event: bytes
    message: tuple[bytes, bytes]
    whole: tuple[bytes, bytes]
    happened: Happened


class SseReader:
    """
    Reads one stream, in whatever pieces its bytes arrive.

    Most chunks of a stream differ in nothing but their text. So the bytes around the text are learned from one chunk,
    and a chunk that starts and ends with them, and has neither a quote nor a backslash between, needs no parsing:
    inside a JSON string nothing else can end it.
    """

    def __init__(self) -> None:
        self.model = ""
        """The model that the stream names; empty until it does."""
        self.open: set[int] = set()
        """Choices that have begun and are not complete."""
        self.skipped = 0
        """Messages that were too long to be read."""
        self.over = False
        """The stream has ended, well or not: what comes after that is ignored."""
        self._lines = _Lines()
        self._event = b""
        self._data: list[bytes] = []
        self._size = 0
        self._between = False  # the next byte begins a message
        self._templates: deque[_Template] = deque(maxlen=_TEMPLATES)
        self._lessons = _LESSONS

    def feed(self, data: bytes) -> Happened:
        """Take the next bytes of the stream, and tell what happened in them, in order."""
        if self._between and len(data) <= MAX_MESSAGE:
            for template in self._templates:
                if _fits(data, *template.whole):
                    return template.happened
        happened: list[Seen] = []
        for line in self._lines.feed(data):
            if self.over:
                return tuple(happened)
            happened += self._take(line)
        self._between = self._lines.clean and not (self._size or self._event or self.over)
        return tuple(happened)

    def _take(self, line: bytes | None) -> Happened:
        """One line of the stream; None is one that was too long."""
        if line is None:
            self._size = MAX_MESSAGE + 1
        elif not line:
            return self._dispatch()
        elif line.startswith(b"data"):
            name, _, value = line.partition(b":")
            if name == b"data":
                self._size += len(value) + 1
                if self._size <= MAX_MESSAGE:
                    self._data.append(value.removeprefix(b" "))
        elif line.startswith(b"event:"):
            self._event = line[6:].removeprefix(b" ")
        return ()

    def _dispatch(self) -> Happened:
        """The message is complete."""
        event, parts, size = self._event, self._data, self._size
        self._event, self._data, self._size = b"", [], 0
        if size > MAX_MESSAGE:
            # It may have held a chunk of any of them.
            self.skipped += 1
            return tuple(Seen("blind", choice) for choice in sorted(self.open))
        if not parts:
            return ()
        data = b"\n".join(parts)
        for template in self._templates:
            if event == template.event and _fits(data, *template.message):
                return template.happened
        body = _parse(data)
        if not self.model:
            self.model = _model(body)
        happened = tuple(self._noted(_meaning(event, data, body)))
        if self._lessons and size <= _LONGEST and len(happened) == 1 and happened[0].kind == "token":
            self._lessons -= 1
            self._learn(event, data, happened)
        return happened

    def _noted(self, happened: Happened) -> Iterator[Seen]:
        """What happened, kept account of."""
        for seen in happened:
            if seen.kind == "token":
                self.open.add(seen.choice)
            elif seen.kind == "last":
                self._complete(seen.choice)
            elif seen.kind == "blind":
                if seen.choice not in self.open:
                    continue
                self._complete(seen.choice)
            else:
                self.open.clear()
                self._templates.clear()
                self.over = True
            yield seen

    def _complete(self, choice: int) -> None:
        """Should it go on all the same, it is opened again, which no template does."""
        self.open.discard(choice)
        for template in [known for known in self._templates if known.happened[0].choice == choice]:
            self._templates.remove(template)

    def _learn(self, event: bytes, data: bytes, happened: Happened) -> None:
        """Make a template of a message, if it means the same with any text."""
        for key in _TEXT_KEYS:
            # In JSON this ends with the quote that opens a string: outside of strings there is no `content`, and
            # inside of one there is no bare quote.
            start = data.find(key) + len(key)
            end = data.find(b'"', start)
            if start < len(key) or end <= start or _SPECIAL.search(data, start, end):
                continue
            head, tail = data[:start], data[end:]
            if all(_meaning(event, text, _parse(text)) == happened for text in (head + tail, head + b"x" + tail)):
                named = b"event: " + event + b"\n" if event else b""
                whole = named + b"data: " + head, tail + b"\n\n"
                self._templates.append(_Template(event, (head, tail), whole, happened))
                return


class _Lines:
    """Cuts a stream into lines, which end with LF, CR or both."""

    def __init__(self) -> None:
        self.clean = False
        """A line begins with the next byte, and it is neither the first nor can it begin with the LF of a CR."""
        self._first = True
        self._held: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """Give the lines that are complete now; None stands for one that is too long to be kept."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
            self.clean = True
        if not data:
            return
        if b"\n" not in data and b"\r" not in data:
            self._hold(data)
            return
        lines = data.splitlines()
        self._after_cr = data.endswith(b"\r")
        rest = b"" if self._after_cr or data.endswith(b"\n") else lines.pop()
        self._hold(lines[0])
        lines[0] = b"".join(self._held)
        yield None if self._size > _MAX_LINE else lines[0].removeprefix(_BOM) if self._first else lines[0]
        self._first, self._held, self._size = False, [], 0
        for line in lines[1:]:
            yield None if len(line) > _MAX_LINE else line
        self.clean = not self._after_cr
        if rest:
            self._hold(rest)

    def _hold(self, data: bytes) -> None:
        """Keep the beginning of a line, unless it is too long: then only that it is."""
        self.clean = False
        self._size += len(data)
        if self._size <= _MAX_LINE:
            self._held.append(data)
        else:
            self._held.clear()


def _fits(data: bytes, head: bytes, tail: bytes) -> bool:
    """Whether these are the bytes of a template with another text."""
    end = len(data) - len(tail)
    return (
        data.startswith(head)
        and data.endswith(tail)
        and end >= len(head)
        and _SPECIAL.search(data, len(head), end) is None
    )


def _parse(data: bytes) -> Mapping[str, Any]:
    """A message's JSON object; an empty one where it is none."""
    try:
        body = _decode(data.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _meaning(event: bytes, data: bytes, body: Mapping[str, Any]) -> Happened:
    """What one message says."""
    if data.strip() == _DONE:
        return _END
    if event == b"error" or body.get("error") is not None or body.get("object") == "error":
        return _ABORT
    choices = body.get("choices")
    if isinstance(choices, list):
        return tuple(seen for seen in map(_choice, choices) if seen is not None)
    return _typed(body)


def _choice(choice: object) -> Seen | None:
    """What a message says of one choice; nothing where it gives only the role, as the first of a chat does."""
    if not isinstance(choice, dict):
        return None
    index = _index(choice, "index")
    if index is None:
        return None
    if choice.get("finish_reason") is not None:
        return Seen("last", index)
    delta = choice.get("delta")
    if isinstance(delta, dict) and "role" in delta and not any(delta[key] for key in delta if key != "role"):
        return None
    return Seen("token", index)


def _typed(body: Mapping[str, Any]) -> Happened:
    """What an event of the other two APIs says."""
    kind = body.get("type")
    if not isinstance(kind, str):
        return ()
    content = kind.startswith("response.") and kind.endswith(".delta")
    known = ("token", "output_index") if content else _TYPES.get(kind)
    if known is None:
        return ()
    index = _index(body, known[1]) if known[1] else 0
    return () if index is None else (Seen(known[0], index),)  # type: ignore[arg-type]


def _index(body: Mapping[str, Any], key: str) -> int | None:
    """Which answer; the first where that is left out, None where it cannot be understood."""
    index = body.get(key, 0)
    usable = isinstance(index, int) and not isinstance(index, bool) and 0 <= index <= _MAX_CHOICE
    return index if usable else None


def _model(body: Mapping[str, Any]) -> str:
    """The model that a message names, at the top or in the object that opens a stream."""
    for place in (body, body.get("response"), body.get("message")):
        name = place.get("model") if isinstance(place, Mapping) else None
        if isinstance(name, str) and len(name) <= _MAX_MODEL:
            return name
    return ""
