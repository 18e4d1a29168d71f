"""Streams of server-sent events as vLLM's three APIs send them, whole and in every kind of pieces."""

import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvpressure.vllm import sse
from kvpressure.vllm.sse import Seen, SseReader

TOKEN, LAST, END, ABORT = Seen("token"), Seen("last"), Seen("end"), Seen("abort")
DONE = b"data: [DONE]\n\n"


def event(body, name=""):
    """One event as vLLM writes it."""
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return (f"event: {name}\n" if name else "").encode() + b"data: " + text.encode() + b"\n\n"


def chat(text=" tok", finish=None, index=0, **more):
    """A chunk of a chat completion."""
    choice = {"index": index, "delta": {"content": text} | more, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return event(head | {"choices": [choice]})


def completion(text=" tok", finish=None, index=0):
    """A chunk of a completion."""
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    return event(head | {"choices": [choice], "usage": None})


def choices(*given, **more):
    """A message with these choices."""
    return event({"model": "m", "choices": list(given)} | more)


def read(*pieces):
    """What happened in pieces of one stream."""
    reader = SseReader()
    return [seen for piece in pieces for seen in reader.feed(piece)]


class Slow(SseReader):
    """A reader that parses every message."""

    def __init__(self):
        super().__init__()
        self._lessons = 0


# --- what messages mean ---------------------------------------------------------------------------------------------


def test_a_chat_stream_is_its_chunks_without_the_role():
    """The role is none; empty text is one; the last one has a finish reason; [DONE] ends it; usage is nothing."""
    role, usage = chat("", role="assistant"), event({"model": "m", "choices": [], "usage": {"total_tokens": 3}})
    assert [TOKEN, TOKEN, LAST, END] == read(role, chat(), chat(""), chat("x", "stop"), usage, DONE)


def test_a_completion_stream_is_its_chunks():
    """Text completions have no role and no delta."""
    assert [TOKEN, TOKEN, LAST, END] == read(completion(), completion(""), completion("x", "length"), DONE)


@pytest.mark.parametrize(
    "delta",
    [
        {"role": "assistant"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None, "reasoning_content": None, "tool_calls": []},
    ],
)
def test_a_role_alone_is_no_chunk(delta):
    """Neither with empty content nor with other empty fields."""
    assert [] == read(choices({"index": 0, "delta": delta, "finish_reason": None}))


@pytest.mark.parametrize(
    "delta",
    [
        {},
        {"content": ""},
        {"content": None},
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"role": "assistant", "content": "with text"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
    ],
)
def test_whatever_else_a_choice_says_is_a_chunk(delta):
    """Empty text, reasoning and tools count, and a role with something beside it."""
    assert [TOKEN] == read(choices({"index": 0, "delta": delta, "finish_reason": None}))


def test_each_choice_of_a_message_is_told():
    """Several answers to one request, in one message or in turn."""
    both = choices({"index": 0, "text": "a"}, {"index": 3, "text": "b", "finish_reason": "stop"})
    assert [TOKEN, Seen("last", 3), TOKEN, Seen("token", 7)] == read(both, chat(), chat(index=7))


def test_a_choice_without_an_index_is_the_first_and_one_that_cannot_be_understood_is_none():
    """Nothing is guessed about an index that is no number, or beyond all that is asked for."""
    assert [TOKEN] == read(choices({"text": "a"}))
    for index in ("0", -1, 1.5, True, None, 65536, [0]):
        assert [] == read(choices({"index": index, "text": "a"}))
    assert [] == read(choices("a", None, 3))


@pytest.mark.parametrize(
    "message",
    [
        event({"error": {"message": "no", "type": "InternalServerError", "param": None, "code": 500}}),
        event({"error": "no"}),
        event({"object": "error", "message": "no", "code": 500}),
        event({"type": "error", "message": "no"}),
        event({"type": "error", "error": {"type": "overloaded_error"}}, "error"),
        b"event: error\ndata: no JSON at all\n\n",
    ],
)
def test_an_error_ends_the_stream(message):
    """In each of the shapes that vLLM's APIs have; what comes after it is ignored."""
    assert [TOKEN, ABORT] == read(chat(), message, DONE, chat())
    assert [TOKEN, ABORT] == read(chat() + message + DONE + chat())


def test_what_is_no_message_is_nothing():
    """Text, numbers, lists, half an object, another object, and nesting beyond any sense."""
    for data in (b"hello", b"3", b"[1]", b'{"choices":', b"{}", b'{"choices":{}}', b'{"type":3}', b"[" * 100_000):
        assert [TOKEN] == read(b"data: " + data + b"\n\n", chat())
    assert [TOKEN] == read(b'data: {"n":' + b"1" * 5000 + b"}\n\n", chat())


def test_the_model_is_that_of_the_first_message_that_names_one():
    """At the top, or in the object that opens a stream; a name that is no name is none."""
    for message in (
        chat(),
        event({"type": "response.created", "response": {"model": "m"}}),
        event({"type": "message_start", "message": {"model": "m"}}),
    ):
        reader = SseReader()
        assert "" == reader.model
        reader.feed(message)
        assert "m" == reader.model
        reader.feed(choices({"index": 0, "text": ""}, model="other"))
        assert "m" == reader.model
    for name in (3, None, "m" * 513):
        reader = SseReader()
        reader.feed(choices({"index": 0, "text": ""}, model=name))
        assert "" == reader.model


def test_the_responses_api_is_told_by_its_output_items():
    """Deltas of any content are chunks; an item that is done is waited for no more; the response ends."""
    reader = SseReader()
    delta = {"type": "response.output_text.delta", "output_index": 1, "delta": "a", "sequence_number": 4}
    assert () == reader.feed(event({"type": "response.created", "response": {"model": "m"}}, "response.created"))
    thought = {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "hm"}
    assert (TOKEN,) == reader.feed(event(thought, "response.reasoning_text.delta"))
    assert {0} == reader.open
    done = {"type": "response.output_item.done", "output_index": 0, "item": {}}
    assert (Seen("blind", 0),) == reader.feed(event(done, "response.output_item.done"))
    assert () == reader.feed(event(done, "response.output_item.done"))
    for number in range(5, 8):
        body = delta | {"sequence_number": number}
        assert (Seen("token", 1),) == reader.feed(event(body, "response.output_text.delta"))
    assert (END,) == reader.feed(event({"type": "response.completed", "response": {}}, "response.completed"))


@pytest.mark.parametrize("ending", ["completed", "failed", "incomplete"])
def test_a_response_ends_in_three_ways(ending):
    """Each of them is its end."""
    assert [END] == read(event({"type": f"response.{ending}", "response": {"error": None}}, f"response.{ending}"))


def test_a_messages_stream_is_told_by_its_blocks():
    """Deltas are chunks, whatever they are of; a block that stops is waited for no more; the message stops."""

    def named(kind, **more):
        return event({"type": kind} | more, kind)

    def delta(index, **more):
        return named("content_block_delta", index=index, delta=more)

    assert [TOKEN, TOKEN, Seen("blind", 0), Seen("token", 1), END] == read(
        named("message_start", message={"model": "m", "content": []}),
        named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        named("ping"),
        delta(0, type="text_delta", text="a"),
        delta(0, type="text_delta", text="b"),
        named("content_block_stop", index=0),
        delta(1, type="input_json_delta", partial_json="{"),
        named("message_delta", delta={"stop_reason": "end_turn"}),
        named("message_stop"),
    )


# --- how streams are written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_lines_end_in_three_ways(end):
    """LF, CR, and both."""
    stream = (chat() + chat("x", "stop") + DONE).replace(b"\n", end.encode())
    assert [TOKEN, LAST, END] == read(stream)
    assert [TOKEN, LAST, END] == read(*(bytes([byte]) for byte in stream))


def test_a_cr_ends_a_message_before_it_is_known_whether_an_lf_follows():
    """The time of a chunk is not put off until the next one arrives; a late LF makes no empty line."""
    reader = SseReader()
    assert (TOKEN,) == reader.feed(b'data: {"choices":[{"text":"a"}]}\r\r')
    assert () == reader.feed(b"\n")
    assert (TOKEN,) == reader.feed(b'data: {"choices":[{"text":"a"}]}\r\n\r')
    assert (END,) == reader.feed(b"\ndata: [DONE]\n\n")


def test_other_lines_are_passed_over():
    """Comments, ids, retries, fields that nobody knows, a field without a colon, and blank lines."""
    junk = b": keep-alive\n\n\n\nid: 7\nretry: 10\nfoo: bar\ndatabase: x\nevent\ndata\n\n"
    assert [TOKEN, END] == read(junk, b"id: 1\n" + chat(), junk, DONE)


def test_data_can_have_several_lines_and_no_space():
    """Lines of one message are one text; one space after the colon is not part of it, and need not be there."""
    assert [TOKEN] == read(b'data: {"choices":\ndata:[{"index":0,\ndata: "text":"a"}]}\n\n')
    assert [END] == read(b"data:[DONE]\n\n")
    assert [END] == read(b"data:  [DONE]  \n\n")


def test_a_byte_order_mark_is_passed_over():
    """At the very beginning, and nowhere else."""
    assert [TOKEN] == read(b"\xef", b"\xbb\xbf" + chat())
    assert [] == read(b"\n\xef\xbb\xbf" + chat())


def test_a_message_that_is_not_ended_is_none():
    """Nothing is said before the blank line."""
    reader = SseReader()
    assert () == reader.feed(chat()[:-1])
    assert (TOKEN,) == reader.feed(b"\n")


# --- messages that are too long -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, 65536, 3 * sse.MAX_MESSAGE])
def test_a_message_that_is_too_long_is_skipped_and_makes_the_open_choices_blind(size):
    """In whatever pieces it comes; it is counted, and the stream goes on after it."""
    message = b"data: " + b"x" * (sse.MAX_MESSAGE + 5000) + b"\n\n"
    reader = SseReader()
    reader.feed(chat() + chat(index=2) + chat("", "stop", index=3))
    happened = [seen for at in range(0, len(message), size) for seen in reader.feed(message[at : at + size])]
    assert [Seen("blind", 0), Seen("blind", 2)] == happened
    assert 1 == reader.skipped
    assert (TOKEN,) == reader.feed(chat())


def test_lines_that_are_too_long_together_are_too_long():
    """A message is bounded, not only its lines; so is one of very many empty lines."""
    for line in (b"data: " + b"x" * 70_000 + b"\n", b"data:\n" * 70_000):
        reader = SseReader()
        for _ in range(16):
            reader.feed(line)
        assert sum(map(len, reader._data)) <= sse.MAX_MESSAGE
        assert len(reader._data) <= sse.MAX_MESSAGE
        reader.feed(b"\n")
        assert 1 == reader.skipped


def test_a_line_without_end_is_not_kept():
    """Memory is bounded while it lasts."""
    reader = SseReader()
    for _ in range(40):
        reader.feed(b"data: " + b"x" * 65536)
    assert not reader._lines._held
    assert [END] == [*reader.feed(b"\n\n"), *reader.feed(DONE)]


# --- recognised without parsing -------------------------------------------------------------------------------------


def test_chunks_that_differ_only_in_their_text_are_parsed_once(monkeypatch):
    """Each choice's chunks are recognised after its first one."""
    chunks = [chat(text, index=index) for text in (" tok", " a", "", "é") for index in (0, 1)]
    reader = SseReader()
    seen = [reader.feed(chunk) for chunk in chunks[:2]]

    def fail(_data):
        raise AssertionError("parsed")

    monkeypatch.setattr(sse, "_parse", fail)
    seen += [reader.feed(chunk) for chunk in chunks[2:]]
    seen.append(reader.feed(chunks[0] + chunks[1]))
    assert [(TOKEN,), (Seen("token", 1),)] * 4 + [(TOKEN, Seen("token", 1))] == seen


def test_the_ids_of_a_long_prompt_are_not_kept():
    """A chunk that is long for what stands beside its text is told, and kept no longer; the next ones are learned."""
    reader = SseReader()
    ids = list(range(100_000))

    assert (TOKEN,) == reader.feed(event({"choices": [{"index": 0, "text": "a", "prompt_token_ids": ids}]}))
    assert (TOKEN, TOKEN) == reader.feed(completion() + completion())
    assert [len(completion(""))] == [len(b"".join(template.whole)) for template in reader._templates]


@pytest.mark.parametrize(
    "text",
    ['"},"finish_reason":"stop"}]}', '","finish_reason":"stop', '\\"', "\\", "\\\\", "data: [DONE]\n\n", "\r\n", "]}"],
)
def test_text_is_never_taken_for_structure(text):
    """What a user's answer quotes ends nothing."""
    assert [TOKEN, TOKEN, TOKEN, LAST] == read(chat(), chat(text), completion(text), chat(text, "stop"))


def test_text_that_decides_whether_a_message_is_a_chunk_is_not_learned():
    """A role with text is a chunk, the same with empty text is none."""
    assert [TOKEN] == read(chat("a", role="assistant"), chat("", role="assistant"))


TEXTS = st.text(
    alphabet=st.sampled_from('ab"\\{}[]:,\n\r\u2028é😀\x00\x1f') | st.characters(codec="utf-8"), max_size=12
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS, lambda inner: st.lists(inner, max_size=3), max_leaves=4
)
FINISH = st.sampled_from([None, None, None, "stop"])
MESSAGES = st.one_of(
    st.builds(chat, TEXTS, FINISH, st.integers(0, 2)),
    st.builds(chat, TEXTS, role=st.sampled_from(["assistant", ""])),
    st.builds(chat, TEXTS, reasoning_content=TEXTS),
    st.builds(chat, st.none(), tool_calls=st.lists(st.builds(dict, arguments=TEXTS), max_size=2)),
    st.builds(completion, TEXTS, FINISH, st.integers(0, 2)),
    st.builds(lambda text: event({"type": "content_block_delta", "index": 1, "delta": {"text": text}}, "x"), TEXTS),
    st.builds(lambda text: event({"type": "response.x.delta", "output_index": 1, "delta": text}), TEXTS),
    st.builds(lambda index: event({"type": "content_block_stop", "index": index}), st.integers(0, 2)),
    st.builds(lambda given: event({"choices": given}), JSON),
    st.builds(event, JSON),
    st.sampled_from([b": x\n\n", b"id: 1\n", b"\n", b"event: error\n", b"data: x\n", b"data: " + b"y" * 70 + b"\n\n"]),
    st.sampled_from([DONE, event({"error": 1}), b"\xef\xbb\xbf", b"\r", b"\xff\xfe\n\n"]),
)
STREAMS = st.lists(MESSAGES, max_size=12).flatmap(
    lambda messages: st.sampled_from([b"\n", b"\n", b"\r", b"\r\n"]).map(
        lambda end: b"".join(messages).replace(b"\n", end)
    )
)


def cut(stream, places):
    """The pieces of a stream that is cut at these places."""
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


@given(STREAMS, st.lists(st.integers(0, 10_000), max_size=12))
@example(chat() + chat("x"), [0])
def test_the_same_happens_however_a_stream_is_cut(stream, places):
    """Into whatever pieces, and byte by byte; and whether messages are parsed or recognised."""
    expected = read(stream)
    slow = Slow()
    assert expected == read(*cut(stream, places))
    assert expected == read(*(bytes([byte]) for byte in stream))
    assert expected == [seen for piece in cut(stream, places) for seen in slow.feed(piece)]


@given(st.lists(MESSAGES | st.binary(max_size=20), max_size=12))
def test_message_by_message_recognised_and_parsed_are_the_same(messages):
    """As vLLM writes them: a message in each piece, which is where recognition works at its fastest."""
    fast, slow = SseReader(), Slow()
    for message in messages:
        assert slow.feed(message) == fast.feed(message)
        assert (slow.open, slow.over, slow.model) == (fast.open, fast.over, fast.model)


@given(chunk=st.sampled_from([chat(), completion(), chat("x", role="a")]), data=st.data())
def test_a_learned_chunk_with_other_bytes_in_its_text_is_the_same_as_parsed(chunk, data):
    """Any bytes at all where the text stood, valid or not."""
    middle = data.draw(st.binary(max_size=8) | st.text(alphabet='"\\nu0', max_size=8).map(str.encode))
    where = chunk.find(b"tok") if b"tok" in chunk else chunk.find(b'"x"') + 1
    other = chunk[:where] + middle + chunk[where + 1 :]
    fast, slow = SseReader(), Slow()
    for piece in (chunk, other, chunk, DONE):
        assert slow.feed(piece) == fast.feed(piece)


def test_at_most_one_end_and_nothing_after_it():
    """Whatever follows."""
    reader = SseReader()
    assert (TOKEN, END) == reader.feed(chat() + DONE + DONE + chat())
    assert reader.over
    assert () == reader.feed(chat())
    assert () == reader.feed(DONE)
    assert set() == reader.open
