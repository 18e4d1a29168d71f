"""
Every setting, with its default, meaning and bounds, as frozen dataclasses.

A section's field ``pin_threshold`` of ``kv`` is the flag ``--kv.pin-threshold`` and the YAML key ``pin-threshold``
under ``kv``. Flags win over the file. Anything that is not understood is an error with one sentence that names it.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from kvpressure import sections
from kvpressure.settings import ConfigError, port_of, setting, split_address


@dataclass(frozen=True, slots=True)
class VllmConfig:
    """How to reach vLLM's metrics."""

    url: str = setting("http://127.0.0.1:8000/metrics", "URL of vLLM's metrics.", "url")
    timeout: float = setting(10.0, "Give up a sample after this time.", "duration", low=0.1, high=300)
    unix_socket: str = setting("", "Reach the URL over this Unix socket (vllm serve --uds).", "file")
    header: tuple[str, ...] = setting((), 'Send this header, as "Name: value"; repeatable.', "headers")
    bearer_token_file: str = setting("", "Send the token in this file, read at each sample.", "file")
    basic_auth_user: str = setting("", "User name for basic authentication.", "text")
    basic_auth_password_file: str = setting("", "File with the password for basic authentication.", "file")
    ca_file: str = setting("", "Trust the certificate authorities in this file (PEM).", "file")
    cert_file: str = setting("", "Client certificate (PEM).", "file")
    key_file: str = setting("", "Key of the client certificate (PEM).", "file")
    server_name: str = setting("", "Name to expect in vLLM's certificate, if not the URL's host.", "text")
    insecure_skip_verify: bool = setting(default=False, text="Accept any certificate.", kind="switch")
    max_body_bytes: int = setting(
        16 * 1024 * 1024, "Refuse a longer answer; 64 engines say about 3 MB.", "count", low=1024
    )


@dataclass(frozen=True, slots=True)
class SampleConfig:
    """How often vLLM is read. vLLM renders its metrics on the event loop that streams tokens, so this has a budget."""

    interval: float = setting(
        1.0,
        "Time between samples. Raise it where fewer details will do; below 1 s memory grows, for 15 minutes are kept.",
        "duration",
        low=0.05,
        high=60,
    )
    duty_budget: float = setting(
        0.02,
        "Share of wall time that vLLM may spend on answering; samples are spread out to keep it.",
        "ratio",
        low=0.0001,
        high=1,
    )
    max_interval: float = setting(5.0, "Never sample less often than this.", "duration", low=0.05, high=60)


@dataclass(frozen=True, slots=True)
class KvConfig:
    """When the cache counts as full."""

    pin_threshold: float = setting(
        0.95,
        "KV usage from which the cache counts as pinned. Lower it for pools of fewer than 40 blocks, where one block "
        "is more than the remaining 5 %.",
        "ratio",
        low=0,
        high=1,
    )
    nearly_full: float = setting(
        0.85,
        "KV usage, before or after, from which a request that falls back into the queue is taken for a preemption. "
        "A client that aborts while another arrives looks the same: lower values mistake more of them.",
        "ratio",
        low=0,
        high=1,
    )


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """What a user feels as a pause."""

    pause_threshold: float = setting(
        1.0,
        "A gap between two tokens longer than this is a pause. Choose an edge of vLLM's histogram, else the next "
        "lower edge is used for it.",
        "duration",
        low=0.01,
        high=600,
    )
    idle_timeout: float = setting(
        600.0,
        "A stream without a chunk and without an end for this long is forgotten and counted as abandoned.",
        "duration",
        low=1,
    )
    max_tracked: int = setting(
        20_000, "Streams followed at a time, per source; those beyond it are counted and not followed.", "count", low=1
    )


@dataclass(frozen=True, slots=True)
class TapConfig:
    """A reverse proxy in the token stream that times what users get. Off unless it is told where to listen."""

    listen: tuple[str, ...] = setting(
        (), "Pass requests that come to this address on to vLLM, and time their streams; repeatable.", "addresses"
    )
    upstream: str = setting("http://127.0.0.1:8000", "Where the tap passes requests on to.", "origin")
    ca_file: str = setting("", "Trust the certificate authorities in this file (PEM) upstream.", "file")
    server_name: str = setting("", "Name to expect in the upstream certificate, if not the URL's host.", "text")
    connect_timeout: float = setting(
        5.0, "Answer 502 where the upstream takes no connection for this long.", "duration", low=0.1, high=300
    )
    stop_delay: float = setting(
        0.0,
        "At a stop, keep accepting for this long before anything else. For an ordinary container, which is told to "
        "stop while its Service still leads to it; a native sidecar needs none.",
        "duration",
        high=3600,
    )
    drain_timeout: float = setting(
        25.0,
        "At a stop, let streams that pass through come to their end for this long. Keep it, with tap.stop-delay, "
        "under the pod's terminationGracePeriodSeconds.",
        "duration",
        high=3600,
    )
    max_requests: int = setting(
        4096, "Requests passed through at a time; those beyond it are answered 503.", "count", low=1
    )
    max_header_bytes: int = setting(
        64 * 1024, "Requests whose headers are longer are answered 503.", "count", low=1024, high=1024 * 1024
    )


@dataclass(frozen=True, slots=True)
class RegimeConfig:
    """What tells preemption that goes on (churn) from the burst when load arrives (onset)."""

    churn_spread: float = setting(
        240.0,
        "Preemptions spread over more than this are churn. Raise it where arrivals come in waves longer than this.",
        "duration",
        low=1,
    )
    churn_pause: float = setting(
        300.0,
        "A pause in preemptions longer than this ends churn. Raise it for very low traffic, where even a storm "
        "preempts less often.",
        "duration",
        low=1,
    )
    churn_count: int = setting(5, "Fewer preemptions than this are never churn.", "count", low=1)
    onset_hold: float = setting(180.0, "Onset lasts this long after its last preemption.", "duration", low=1)


@dataclass(frozen=True, slots=True)
class VerdictConfig:
    """What limits the engine, and the evidence that it takes to say so."""

    window: float = setting(300.0, "Look back this far. Longer is calmer and later.", "duration", low=10, high=900)
    blocked_ratio: float = setting(
        0.1, "KV-blocked for at least this share of the window is kv_memory.", "ratio", low=0, high=1
    )
    long_gaps: float = setting(
        10.0,
        "Gaps over the pause threshold per thousand requests from which pauses count. Raise it where long prompts "
        "are prefilled in one piece.",
        "number",
        low=0,
    )
    queue_seconds: float = setting(
        30.0, "A shorter queue than this is not a concurrency cap: a flood is still filling the cache.", "duration"
    )
    cap_share: float = setting(
        0.9, "Share of the queue's time at which running must stand at its maximum.", "ratio", low=0, high=1
    )
    cap_room: float = setting(
        1.5, "The cache must seat this many times the running requests to call it a concurrency cap.", "number", low=1
    )


@dataclass(frozen=True, slots=True)
class WebConfig:
    """Where the exporter listens."""

    listen_address: tuple[str, ...] = setting((":10938",), "Address to listen on; repeatable.", "addresses")
    telemetry_path: str = setting("/metrics", "Path of the metrics.", "path")
    max_requests: int = setting(
        40, "Answers that may wait for their clients to read them; requests beyond that get 503.", "count", low=1
    )
    max_connections: int = setting(
        256,
        "Connections at a time. For one more, that which has waited longest for a request is closed. The limit of open "
        "files may allow fewer.",
        "count",
        low=8,
        high=4096,
    )
    config_file: str = setting(
        "", "TLS and basic auth, in exporter-toolkit's web configuration format.", "file", name="config.file"
    )


@dataclass(frozen=True, slots=True)
class LogConfig:
    """vLLM's request log to read (path), and the exporter's own log on stderr (level and format)."""

    path: tuple[str, ...] = setting(
        (), "Follow vLLM's log in this file, or in all that match this pattern; repeatable.", "files"
    )

    level: str = setting("info", "debug, info, warn or error.", "level")
    format: str = setting("logfmt", "logfmt or json.", "format")


@dataclass(frozen=True, slots=True)
class Config:
    """All sections. Each is a top-level key of the YAML file and the first word of its flags."""

    vllm: VllmConfig = field(default_factory=VllmConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    kv: KvConfig = field(default_factory=KvConfig)
    stream: StreamConfig = field(default_factory=StreamConfig)
    tap: TapConfig = field(default_factory=TapConfig)
    regime: RegimeConfig = field(default_factory=RegimeConfig)
    verdict: VerdictConfig = field(default_factory=VerdictConfig)
    web: WebConfig = field(default_factory=WebConfig)
    log: LogConfig = field(default_factory=LogConfig)


SECTIONS: Mapping[str, Any] = {
    "vllm": VllmConfig,
    "sample": SampleConfig,
    "kv": KvConfig,
    "stream": StreamConfig,
    "tap": TapConfig,
    "regime": RegimeConfig,
    "verdict": VerdictConfig,
    "web": WebConfig,
    "log": LogConfig,
}
"""The sections by their key; the order is that of `--help`."""


def settings() -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Every setting with its dotted name, as in the flag and the file: ``("kv.pin-threshold", field)``."""
    return sections.named(SECTIONS)


def load(path: str, flags: Mapping[str, Any] | None = None) -> Config:
    """
    The settings from a YAML file (none where `path` is empty), with `flags` (dotted name -> text) over them.

    Raises:
        ConfigError: the file cannot be read, or a key or a value is not understood.
    """
    values = sections.values(SECTIONS, path, flags)
    sample = values["sample"]
    if "interval" in sample and "max_interval" not in sample:
        # Who asks for fewer samples need not say so twice.
        sample["max_interval"] = max(sample["interval"], SampleConfig().max_interval)
    config = Config(**{name: section(**values[name]) for name, section in SECTIONS.items()})
    _check_together(config)
    return config


def _check_together(config: Config) -> None:
    """What no single setting can tell."""
    if config.sample.max_interval < config.sample.interval:
        raise ConfigError(
            f"sample.max-interval ({config.sample.max_interval:g} s) is shorter than sample.interval "
            f"({config.sample.interval:g} s); raise it or sample more often"
        )
    vllm = config.vllm
    if bool(vllm.basic_auth_user) != bool(vllm.basic_auth_password_file):
        raise ConfigError("vllm.basic-auth-user and vllm.basic-auth-password-file go together; set both or neither")
    if vllm.bearer_token_file and vllm.basic_auth_user:
        raise ConfigError("vllm.bearer-token-file and vllm.basic-auth-user exclude each other; keep one")
    _check_tap(config.tap)
    if bool(vllm.cert_file) != bool(vllm.key_file):
        raise ConfigError("vllm.cert-file and vllm.key-file go together; set both or neither")


def _check_tap(tap: TapConfig) -> None:
    """A tap that passes requests on to itself would do so until it is out of connections."""
    upstream = urlsplit(tap.upstream)
    for address in tap.listen:
        host, port = split_address(address)
        same = upstream.hostname == host or (upstream.hostname in _LOOPBACK and host in (*_LOOPBACK, *_EVERYWHERE))
        if same and port_of(upstream) == port:
            raise ConfigError(
                f"tap.listen ({address}) is where tap.upstream ({tap.upstream}) leads; the tap needs a port of its own"
            )


_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104  # compared with what was configured
