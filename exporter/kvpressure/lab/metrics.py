"""
vLLM 0.32's own metrics, moved by what the engine does.

Like vLLM this uses prometheus-client, so text, number format and ``_created`` gauges are the same by construction;
names, HELP texts, labels and edges come from ``kvpressure.vllm.exposed``. As in vLLM everything moves when a step ends.
"""

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import choose_encoder, generate_latest

from kvpressure.lab.engine import Iteration, Token
from kvpressure.lab.model import Config
from kvpressure.vllm import exposed
from kvpressure.vllm.exposed import Exposed
from kvpressure.vllm.names import ENGINE_LABEL, MODEL_LABEL, PREFIX

_ENGINE = "0"
"""The lab has one engine."""


def length_edges(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... up to ``most`` (vLLM's ``build_1_2_5_buckets``)."""
    edges: list[float] = []
    power = 1
    while power <= most:
        edges += [float(digit * power) for digit in (1, 2, 5) if digit * power <= most]
        power *= 10
    return tuple(edges)


def cache_config_labels(config: Config) -> dict[str, str]:
    """The label values of ``cache_config_info`` that a server with these settings reports."""
    tokens = config.num_gpu_blocks * config.block_size
    return dict(exposed.CACHE_CONFIG_LABELS) | {
        ENGINE_LABEL: _ENGINE,
        "block_size": str(config.block_size),
        "effective_attention_block_size": str(config.block_size),
        "enable_prefix_caching": str(config.prefix_caching),
        "kv_cache_max_concurrency": str(tokens / config.max_model_len),
        "kv_cache_size_tokens": str(tokens),
        "num_gpu_blocks": str(config.num_gpu_blocks),
        "num_gpu_blocks_override": str(config.num_gpu_blocks),
    }


class ServerMetrics:
    """
    The registry of one server.

    Args:
        config: the server's settings.
        model: the served model name.
    """

    def __init__(self, config: Config, model: str) -> None:
        self.registry = CollectorRegistry()
        GCCollector(self.registry)
        PlatformCollector(self.registry)
        ProcessCollector(registry=self.registry)
        self._config = config
        self._labels = {MODEL_LABEL: model, ENGINE_LABEL: _ENGINE}
        self._gauges: dict[Exposed, dict[str, Gauge]] = {}
        self._counters: dict[Exposed, dict[str, Counter]] = {}
        self._histograms: dict[Exposed, Histogram] = {}
        for family in exposed.EXPOSED:
            self._register(family)
        self._gauges[exposed.ENGINE_SLEEP_STATE]["awake"].set(1)

    def render(self) -> bytes:
        """The exposition, in the text format 0.0.4 that vLLM's ``/metrics`` always answers."""
        return generate_latest(self.registry)

    def negotiate(self, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type as ``/metrics/`` answers them, which honours ``Accept``."""
        encode: Callable[[CollectorRegistry], bytes]
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def record(self, iteration: Iteration) -> None:
        """Count one finished step."""
        result = iteration.result
        self._set(exposed.NUM_REQUESTS_RUNNING, result.running)
        self._set(exposed.NUM_REQUESTS_WAITING, result.waiting)
        self._set(exposed.NUM_REQUESTS_WAITING_BY_REASON, result.waiting, "capacity")
        self._set(exposed.KV_CACHE_USAGE_PERC, result.usage)
        self._add(exposed.NUM_PREEMPTIONS, iteration.preemptions)
        for sequence in result.admitted:
            # Since 0.11.1 the look-up of a resumed request is not counted.
            if not sequence.preemptions and self._config.prefix_caching:
                self._add(exposed.PREFIX_CACHE_QUERIES, sequence.request.prompt_tokens)
                self._add(exposed.PREFIX_CACHE_HITS, sequence.cached_tokens)
                self._add(exposed.PROMPT_TOKENS_CACHED_BY_SOURCE, sequence.cached_tokens, "device")
        # A step that only computed part of a prompt puts nothing out, and vLLM counts no iteration for it.
        if not iteration.tokens:
            return
        self._add(exposed.GENERATION_TOKENS, len(iteration.tokens))
        prompt_tokens = 0
        for token in iteration.tokens:
            if token.gap is None:
                prompt_tokens += token.sequence.request.prompt_tokens
                self._record_first(token)
            else:
                self._observe(exposed.INTER_TOKEN_LATENCY_SECONDS, token.gap)
            if token.finished:
                self._record_finished(token, token.finished)
        self._add(exposed.PROMPT_TOKENS, prompt_tokens)
        self._observe(exposed.ITERATION_TOKENS_TOTAL, prompt_tokens + len(iteration.tokens))

    def _record_first(self, token: Token) -> None:
        sequence, times = token.sequence, token.times
        self._observe(exposed.TIME_TO_FIRST_TOKEN_SECONDS, _since(times.arrival, times.first_token))
        self._add(
            exposed.PROMPT_TOKENS_BY_SOURCE, sequence.request.prompt_tokens - sequence.cached_tokens, "local_compute"
        )
        self._add(exposed.PROMPT_TOKENS_BY_SOURCE, sequence.cached_tokens, "local_cache_hit")
        self._add(exposed.PROMPT_TOKENS_CACHED, sequence.cached_tokens)

    def _record_finished(self, token: Token, reason: str) -> None:
        sequence, times = token.sequence, token.times
        request = sequence.request
        decode = _since(times.first_token, times.last_token)
        self._add(exposed.REQUEST_SUCCESS, 1, reason)
        for family, value in (
            (exposed.REQUEST_PROMPT_TOKENS, request.prompt_tokens),
            (exposed.REQUEST_GENERATION_TOKENS, sequence.generated),
            (exposed.REQUEST_MAX_NUM_GENERATION_TOKENS, sequence.generated),
            (exposed.REQUEST_PARAMS_N, 1),
            (exposed.REQUEST_PARAMS_MAX_TOKENS, request.max_tokens),
            # vLLM observes 0 where there is no second token to wait for.
            (exposed.REQUEST_TIME_PER_OUTPUT_TOKEN_SECONDS, decode / max(1, sequence.generated - 1)),
            (exposed.E2E_REQUEST_LATENCY_SECONDS, _since(times.arrival, times.last_token)),
            (exposed.REQUEST_QUEUE_TIME_SECONDS, _since(times.queued, times.scheduled)),
            (exposed.REQUEST_INFERENCE_TIME_SECONDS, _since(times.scheduled, times.last_token)),
            (exposed.REQUEST_PREFILL_TIME_SECONDS, _since(times.scheduled, times.first_token)),
            (exposed.REQUEST_DECODE_TIME_SECONDS, decode),
            (exposed.REQUEST_NUM_PREEMPTIONS, sequence.preemptions),
            (exposed.REQUEST_PREFILL_KV_COMPUTED_TOKENS, request.prompt_tokens - sequence.cached_tokens),
        ):
            self._observe(family, value)

    def _register(self, family: Exposed) -> None:
        """Create one family with all its series, at 0."""
        labels = self._labels_of(family)
        names = [*labels, family.label] if family.label else list(labels)
        series = [labels | {family.label: value} for value in family.values] if family.label else [labels]
        keys = family.values or ("",)
        name = PREFIX + family.name
        if family.kind == "counter":
            counter = Counter(name, family.help, names, registry=self.registry)
            self._counters[family] = {k: counter.labels(**s) for k, s in zip(keys, series, strict=True)}
        elif family.kind == "histogram":
            edges = length_edges(self._config.max_model_len) if family.by_model_length else family.edges
            histogram = Histogram(name, family.help, names, registry=self.registry, buckets=edges)
            self._histograms[family] = histogram.labels(**labels)
        else:
            gauge = Gauge(name, family.help, names, registry=self.registry)
            self._gauges[family] = {k: gauge.labels(**s) for k, s in zip(keys, series, strict=True)}
            if family is exposed.CACHE_CONFIG:
                self._set(family, 1)

    def _labels_of(self, family: Exposed) -> dict[str, str]:
        if family is exposed.CACHE_CONFIG:
            return cache_config_labels(self._config)
        return self._labels if family.per_engine else {MODEL_LABEL: self._labels[MODEL_LABEL]}

    def _set(self, family: Exposed, value: float, label: str = "") -> None:
        self._gauges[family][label].set(value)

    def _add(self, family: Exposed, value: float, label: str = "") -> None:
        self._counters[family][label].inc(value)

    def _observe(self, family: Exposed, value: float) -> None:
        self._histograms[family].observe(value)


def _since(start: float | None, end: float | None) -> float:
    """Seconds between two times of a request that has both."""
    if start is None or end is None:
        raise ValueError("a token came from a request that was never scheduled")
    return end - start
