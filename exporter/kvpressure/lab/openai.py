"""The shapes of vLLM's OpenAI API: what a request body means, and the bodies that answer it."""

import json
import uuid
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

JsonObject = dict[str, Any]

DONE = b"data: [DONE]\n\n"
"""The end of every stream."""

WORD = " tok"
"""What every token of the lab says."""

_COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions; chat completions default to all that fits."""

_TOKENS_PER_MESSAGE = 4
"""What a chat template adds to each message: role and separators, as an estimate."""


class ApiError(Exception):
    """
    An error that the client gets in vLLM's shape.

    Args:
        message: one sentence.
        param: the parameter at fault, if one is.
        status: the HTTP status.
        kind: vLLM's error type.
    """

    def __init__(
        self, message: str, *, param: str | None = None, status: int = 400, kind: str = "BadRequestError"
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: JsonObject = {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, slots=True)
class Ask:
    """
    What a request body asks for.

    Args:
        chat: chat completion or plain completion.
        prompt: the prompt as tokens; words of a text stand for tokens.
        max_tokens: most answer tokens.
        min_tokens: fewest.
        ignore_eos: answer with ``max_tokens`` tokens.
        stream: answer token by token.
        include_usage: end the stream with a usage chunk.
    """

    chat: bool
    prompt: tuple[Hashable, ...]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool

    def block_keys(self, block_size: int) -> tuple[Hashable, ...]:
        """What the prompt's full blocks contain: each key stands for its block and all before it, as vLLM's hashes."""
        keys: list[Hashable] = []
        before = 0
        for start in range(0, len(self.prompt) - block_size + 1, block_size):
            before = hash((before, self.prompt[start : start + block_size]))
            keys.append(("content", before))
        return tuple(keys)


def read_ask(body: object, *, chat: bool, model: str, limit: int) -> Ask:
    """
    Understand a request body.

    Args:
        body: the parsed JSON.
        chat: whether it came to the chat endpoint.
        model: the served model name.
        limit: most tokens of prompt and answer that model and cache can hold for one request.

    Raises:
        ApiError: what vLLM would answer instead.
    """
    if not isinstance(body, dict):
        raise ApiError("The body must be a JSON object.")
    asked = body.get("model") or model
    if asked != model:
        raise ApiError(f"The model `{asked}` does not exist.", param="model", status=404, kind="NotFoundError")
    if _integer(body, "n", 1) != 1:
        raise ApiError("The lab answers with one choice only.", param="n")
    prompt = _chat_prompt(body) if chat else _completion_prompt(body)
    room = limit - len(prompt)
    default = max(1, room) if chat else _COMPLETION_MAX_TOKENS
    max_tokens = _integer(body, "max_completion_tokens", _integer(body, "max_tokens", default))
    if max_tokens < 1:
        raise ApiError(f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens")
    if max_tokens > room:
        raise ApiError(
            f"This model's maximum context length is {limit} tokens. However, you requested {max_tokens} output tokens "
            f"and your prompt contains at least {len(prompt)} input tokens, for a total of at least "
            f"{len(prompt) + max_tokens} tokens. Please reduce the length of the input prompt or the number of "
            f"requested output tokens. (parameter=input_tokens, value={len(prompt)})",
            param="input_tokens",
        )
    min_tokens = _integer(body, "min_tokens", 0)
    if not 0 <= min_tokens <= max_tokens:
        raise ApiError(
            f"min_tokens must be between 0 and max_tokens={max_tokens}, got {min_tokens}.", param="min_tokens"
        )
    options = body.get("stream_options")
    return Ask(
        chat=chat,
        prompt=prompt,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=bool(body.get("ignore_eos", False)),
        stream=bool(body.get("stream", False)),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage", False)),
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """
    The bodies that answer one request.

    Args:
        ask: what was asked.
        id: the response id, as the client and the log's output lines see it.
        model: the served model name.
        created: unix seconds.
    """

    ask: Ask
    id: str
    model: str
    created: int

    def role_chunk(self) -> bytes:
        """The first chunk of a chat stream: a role and no text."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None)

    def token_chunk(self, finish_reason: str | None) -> bytes:
        """The chunk of one token."""
        return self._chunk({"delta": {"content": WORD}} if self.ask.chat else {"text": WORD}, finish_reason)

    def usage_chunk(self, generated: int) -> bytes:
        """The chunk without a choice that ``include_usage`` asks for."""
        return _event(self._head(chunk=True) | {"choices": [], "usage": self._usage(generated)})

    def whole(self, generated: int, finish_reason: str) -> JsonObject:
        """The answer that is not streamed."""
        text = WORD * generated
        choice: JsonObject = {"message": {"role": "assistant", "content": text}} if self.ask.chat else {"text": text}
        choice |= {"index": 0, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
        return self._head(chunk=False) | {"choices": [choice], "usage": self._usage(generated)}

    def _chunk(self, what: JsonObject, finish_reason: str | None) -> bytes:
        choice = {"index": 0} | what | {"logprobs": None, "finish_reason": finish_reason}
        if finish_reason or not self.ask.chat:
            choice["stop_reason"] = None
        body = self._head(chunk=True) | {"choices": [choice]}
        return _event(body if self.ask.chat else body | {"usage": None})

    def _head(self, *, chunk: bool) -> JsonObject:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.ask.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _usage(self, generated: int) -> JsonObject:
        prompt = len(self.ask.prompt)
        return {"prompt_tokens": prompt, "total_tokens": prompt + generated, "completion_tokens": generated}


@dataclass(frozen=True, slots=True)
class Ids:
    """
    The names of one request, as vLLM 0.32 builds them.

    Args:
        response: in the answer's ``id``.
        logged: in "Received" and "Generated" lines.
        internal: in the engine, with a suffix of its own, so that clients cannot make two requests collide.
    """

    response: str
    logged: str
    internal: str

    @classmethod
    def make(cls, header: str | None, *, chat: bool) -> "Ids":
        """Names for a request with this ``X-Request-Id``, or none."""
        base = header or uuid.uuid4().hex
        response = f"chatcmpl-{base}" if chat else f"cmpl-{base}"
        # A completion can hold several prompts, so vLLM numbers them.
        logged = response if chat else f"{response}-0"
        return cls(response, logged, f"{logged}-{uuid.uuid4().hex[:8]}")


def models_body(model: str, max_model_len: int, created: int) -> JsonObject:
    """The answer of ``/v1/models``."""
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": model,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [],
    }
    return {"object": "list", "data": [card]}


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def _integer(body: JsonObject, name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ApiError(f"{name} must be an integer.", param=name)
    return value


def _completion_prompt(body: JsonObject) -> tuple[Hashable, ...]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list | str):
        prompt = prompt[0]
    tokens: Sequence[Hashable] | None = None
    if isinstance(prompt, str):
        tokens = prompt.split()
    elif isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        tokens = prompt
    if tokens is None:
        raise ApiError("prompt must be one text or one list of token ids.", param="prompt")
    return tuple(tokens) or ("",)


def _chat_prompt(body: JsonObject) -> tuple[Hashable, ...]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise ApiError("messages must be a list of at least one message.", param="messages")
    tokens: list[Hashable] = []
    for message in messages:
        tokens += [("template", str(message.get("role")), part) for part in range(_TOKENS_PER_MESSAGE)]
        tokens += _text(message.get("content")).split()
    return tuple(tokens)


def _text(content: object) -> str:
    """A message's words: plain content, or the text parts of a list."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return " ".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""
