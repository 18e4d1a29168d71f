"""Whatever a stream of events holds: no fault, bounded memory, and the same events however it is cut and read."""

import random
import zlib

from kvpressure.vllm.sse import MAX_MESSAGE, Seen, SseReader

_CHAT = b'data: {"id":"1","model":"m","choices":[{"index":0,"delta":{"content":" a"},"finish_reason":null}]}\n\n'
_TEXT = (
    b'data: {"model":"m","choices":[{"index":1,"text":" b","finish_reason":null,"stop_reason":null}],"usage":null}\n\n'
)
_ROLE = b'data: {"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
_LAST = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}\n\n'
_ITEM = (
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","output_index":2,"delta":"c"}\n\n'
)
_BLOCK = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":3,"delta":{"text":"d"}}\n\n'
_STOP = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":3}\n\n'
_ERROR = b'data: {"error":{"message":"no","code":500}}\n\n'
_DONE = b"data: [DONE]\n\n"

_KINDS = {"token", "last", "blind", "end", "abort"}

CORPUS = [
    _ROLE + _CHAT + _CHAT.replace(b" a", b"x") + _LAST + _DONE,
    _TEXT + _TEXT.replace(b" b", b'\\"},') + _TEXT + _DONE,
    _ITEM + _ITEM + b'data: {"type":"response.output_item.done","output_index":2}\n\n' + _ITEM,
    _BLOCK + _BLOCK + _STOP + _BLOCK + b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    _CHAT + _ERROR + _DONE,
    b"\xef\xbb\xbf: hello\r\rid: 1\r\n" + _CHAT.replace(b"\n", b"\r\n") + b"data\ndata:[1,\ndata: 2]\n\n" + _CHAT,
]


def stream(data: bytes) -> None:
    """Read a stream in different ways that must not matter."""
    whole = SseReader()
    expected = list(whole.feed(data))
    _check(whole, expected)
    pieces = _cut(data)
    assert _read(SseReader(), pieces) == expected
    assert _read(_Careful(), pieces) == expected
    assert _read(SseReader(), [data[at : at + 1] for at in range(len(data))]) == expected
    assert _read(SseReader(), [_CHAT, *pieces]) == _read(_Careful(), [_CHAT + data])


def text(data: bytes) -> None:
    """Put bytes where the text of a learned chunk stood: recognised or parsed, it says the same."""
    for chunk in (_CHAT, _TEXT, _ITEM, _BLOCK):
        at = max(chunk.rfind(b'" a"'), chunk.rfind(b'" b"'), chunk.rfind(b'"c"'), chunk.rfind(b'"d"')) + 1
        other = chunk[:at] + data + chunk[chunk.index(b'"', at) :]
        pieces = [chunk, other, chunk, other + chunk, _DONE]
        quick, careful = SseReader(), _Careful()
        for piece in pieces:
            assert quick.feed(piece) == careful.feed(piece)
            assert (quick.open, quick.over, quick.skipped) == (careful.open, careful.over, careful.skipped)


TARGETS = {"stream": stream, "text": text}


class _Careful(SseReader):
    """Parses each message."""

    def _learn(self, *_: object) -> None:
        pass


def _read(reader: SseReader, pieces: list[bytes]) -> list[Seen]:
    return [seen for piece in pieces for seen in reader.feed(piece)]


def _check(reader: SseReader, seen: list[Seen]) -> None:
    kinds = [one.kind for one in seen]
    assert set(kinds) <= _KINDS
    assert kinds.count("end") + kinds.count("abort") == reader.over
    assert not reader.over or kinds[-1] in ("end", "abort")
    assert len(reader.model) <= 512
    assert sum(map(len, reader._data)) <= MAX_MESSAGE
    assert all(0 <= one.choice <= 65_535 for one in seen)


def _cut(data: bytes) -> list[bytes]:
    """Pieces of any length, the same ones for the same bytes."""
    chance = random.Random(zlib.crc32(data))
    pieces = []
    position = 0
    while position < len(data):
        length = chance.choice((1, 2, 5, 60, 500))
        pieces.append(data[position : position + length])
        position += length
    return pieces
