"""Log lines as vLLM 0.32 prints them to a file or pipe: whole seconds, no year, no colour, never a user's text."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO

from kvpressure.lab.engine import Iteration
from kvpressure.lab.model import Config

STATS_SECONDS = 10.0
"""vLLM's ``VLLM_LOG_STATS_INTERVAL``; here of model time, like all that the lab's metrics say."""

# File names and lines of 0.32.0. A reader must not match them: they change with every release.
_ADDED = "async_llm.py:578"
_ABORTED = "async_llm.py:820"
_ENTRY = "entry.py:140"
_GENERATED = "request_logger.py:108"
_KV_CACHE = "kv_cache_utils.py:2327"
_RECEIVED = "request_logger.py:65"
_STATS = "loggers.py:335"


class VllmLog:
    """
    The log of one server.

    Args:
        out: where lines go.
        requests: print one line per request event and per token, as vLLM does with ``--enable-log-requests
            --enable-log-outputs --enable-log-deltas --max-log-len 0``.
    """

    def __init__(self, out: TextIO, *, requests: bool) -> None:
        self.requests = requests
        self._out = out
        self._prefix = f"(APIServer pid={os.getpid()}) INFO "

    def started(self, config: Config, address: str) -> None:
        """The lines that matter of a start."""
        tokens = config.num_gpu_blocks * config.block_size
        self._line(
            _KV_CACHE,
            f"GPU KV cache size: {tokens:,} tokens, "
            f"Maximum concurrency for {config.max_model_len:,} tokens per request: "
            f"{tokens / config.max_model_len:.2f}x",
        )
        self._line(_ENTRY, f"Starting vLLM server on http://{address}")
        self._out.write("INFO:     Application startup complete.\n")
        self.flush()

    def received(self, request_id: str, internal_id: str, max_tokens: int, *, ignore_eos: bool) -> None:
        """A request was accepted. Output lines name it ``request_id``, engine lines ``internal_id``."""
        if not self.requests:
            return
        self._line(
            _RECEIVED,
            f"Received request {request_id}: params: SamplingParams(n=1, presence_penalty=0.0, frequency_penalty=0.0, "
            "repetition_penalty=1.0, temperature=1.0, watermarking=None, top_p=1.0, top_k=0, min_p=0.0, seed=None, "
            "stop=[], stop_token_ids=[], bad_words=[], thinking_token_budget=None, include_stop_str_in_output=False, "
            f"ignore_eos={ignore_eos}, max_tokens={max_tokens}, min_tokens=0, logprobs=None, prompt_logprobs=None, "
            "skip_special_tokens=True, spaces_between_special_tokens=True, structured_outputs=None, extra_args=None), "
            "lora_request: None.",
        )
        self._line(_ADDED, f"Added request {internal_id}.")

    def delta(self, request_id: str, finish_reason: str | None) -> None:
        """One token of a streamed chat answer; its last token ends the stream."""
        if not self.requests:
            return
        self._line(
            _GENERATED, f"Generated response {request_id} (streaming delta): output: '', finish_reason: {finish_reason}"
        )
        if finish_reason:
            self._line(
                _GENERATED,
                f"Generated response {request_id} (streaming complete): output: '', finish_reason: streaming_complete",
            )

    def complete(self, request_id: str, finish_reason: str) -> None:
        """A whole answer that was not streamed."""
        if self.requests:
            self._line(_GENERATED, f"Generated response {request_id}: output: '', finish_reason: {finish_reason}")

    def aborted(self, internal_ids: Iterable[str]) -> None:
        """Users left."""
        ids = ",".join(internal_ids)
        if self.requests and ids:
            self._line(_ABORTED, f"Aborted request(s) {ids}.")

    def access(self, peer: str, method: str, path: str, status: int, reason: str) -> None:
        """Uvicorn's access line, printed when the response begins."""
        self._out.write(f'INFO:     {peer} - "{method} {path} HTTP/1.1" {status} {reason}\n')

    def stats(self, line: str) -> None:
        """The periodic line of ``PeriodicStats``."""
        self._line(_STATS, line)

    def flush(self) -> None:
        """Hand over what was written, so that a reader that follows the log sees it now."""
        self._out.flush()

    def _line(self, where: str, message: str) -> None:
        self._out.write(f"{self._prefix}{time.strftime('%m-%d %H:%M:%S')} [{where}] {message}\n")


@dataclass(slots=True)
class PeriodicStats:
    """
    What vLLM's periodic line sums up.

    It never prints preemptions: in 0.32 that clause is dead, because the number is reset before it is read.

    Args:
        caching: print the prefix cache's hit rate, once something was looked up.
    """

    caching: bool
    _since: float = 0.0
    _prompt_tokens: int = 0
    _generated: int = 0
    _queries: int = 0
    _hits: int = 0
    _was_idle: bool = True
    _running: int = 0
    _waiting: int = 0
    _usage: float = 0.0

    def record(self, iteration: Iteration) -> None:
        """Count one finished step."""
        result = iteration.result
        self._running, self._waiting, self._usage = result.running, result.waiting, result.usage
        self._generated += len(iteration.tokens)
        self._prompt_tokens += sum(t.sequence.request.prompt_tokens for t in iteration.tokens if t.gap is None)
        fresh = [sequence for sequence in result.admitted if not sequence.preemptions]
        self._queries += sum(sequence.request.prompt_tokens for sequence in fresh)
        self._hits += sum(sequence.cached_tokens for sequence in fresh)

    def line(self, now: float) -> str | None:
        """The line that is due at ``now`` (model seconds), or None: too early, or idle twice running."""
        seconds = now - self._since
        if seconds < STATS_SECONDS:
            return None
        prompt, generated = self._prompt_tokens / seconds, self._generated / seconds
        idle = not self._prompt_tokens and not self._generated
        silent = idle and self._was_idle
        self._since, self._prompt_tokens, self._generated, self._was_idle = now, 0, 0, idle
        if silent:
            return None
        text = (
            f"Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, "
            f"Avg generation throughput: {generated:.1f} tokens/s, "
            f"Running: {self._running} reqs, Waiting: {self._waiting} reqs, "
            f"GPU KV cache usage: {self._usage * 100:.1f}%"
        )
        if self.caching and self._queries:
            text += f", Prefix cache hit rate: {100 * self._hits / self._queries:.1f}%"
        return text
