"""`kvpressure check`: one look at a vLLM, by requests, as two tables and what to change."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import requests
import urllib3

from kvpressure import client, tables
from kvpressure.config import Config, VllmConfig
from kvpressure.credentials import FileFault
from kvpressure.derive.availability import reasons, unavailable
from kvpressure.family import PREFIX
from kvpressure.settings import ConfigError
from kvpressure.signals import CATALOGUE
from kvpressure.transport import TlsAdapter, UnixAdapter, within
from kvpressure.vllm import advice
from kvpressure.vllm.metrics import ExpositionReader
from kvpressure.vllm.reading import EngineKey, EngineReading, Exposition, ExpositionError

_CHUNK = 65536
_VERSION_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Report:
    """
    What one look found.

    Args:
        text: for a person.
        reached: whether vLLM answered with an exposition.
        headlines_available: whether every headline signal can be derived.
    """

    text: str
    reached: bool
    headlines_available: bool


def look(config: Config) -> Report:
    """
    Read vLLM's metrics once and say what can be made of them.

    Raises:
        ConfigError: a file that the settings name cannot be read, or the settings ask for what this cannot do.
    """
    with requests.Session() as session:
        _prepare(session, config.vllm)
        try:
            began = time.monotonic()
            body = within(config.vllm.timeout, lambda: _fetch(session, config.vllm))
            took = time.monotonic() - began
        except (requests.exceptions.InvalidURL, urllib3.exceptions.LocationParseError):
            return _unreachable(config.vllm.url, "its host cannot be the name of one")
        except requests.RequestException as fault:
            return _unreachable(config.vllm.url, _reason(fault, config.vllm))
        except urllib3.exceptions.TimeoutError:
            return _unreachable(config.vllm.url, "it did not answer in time (vllm.timeout)")
        except urllib3.exceptions.HTTPError:
            return _unreachable(config.vllm.url, "the answer was broken off")
        except _Refused as fault:
            return _unreachable(config.vllm.url, str(fault))
        version = _version(session, config.vllm)
    if f"# HELP {PREFIX}" in body:
        return _unreachable(config.vllm.url, "this is kvpressure itself; give the URL of vLLM's metrics")
    try:
        exposition = ExpositionReader().read(body)
    except ExpositionError as fault:
        return _unreachable(config.vllm.url, f"{fault}; is this the URL of vLLM's metrics?")
    return _report(config.vllm.url, exposition, version, took)


class _Refused(Exception):  # noqa: N818
    """An answer that is not the metrics; the message says which."""


def _prepare(session: requests.Session, config: VllmConfig) -> None:
    """Credentials, certificates and headers, as the sampler sends them."""
    client.check(config)
    try:
        headers = client.headers(config)
        session.mount("https://", TlsAdapter(client.context(config), config.server_name))
    except FileFault as fault:
        raise ConfigError(str(fault)) from fault
    if config.unix_socket:
        session.mount("http://", UnixAdapter(config.unix_socket))
    # Neither a proxy nor a .netrc of the environment: vLLM is next door, and so is the sampler's way to it.
    session.trust_env = False
    for name in dict.fromkeys(name for name, _ in headers):
        session.headers[name] = ", ".join(value for other, value in headers if other == name)
    session.verify = not config.insecure_skip_verify


def _fetch(session: requests.Session, config: VllmConfig) -> str:
    """The body, capped."""
    with session.get(config.url, timeout=config.timeout, stream=True, allow_redirects=False) as answer:
        if answer.status_code != requests.codes.ok:
            raise _Refused(f"it answered with status {answer.status_code}")
        body = bytearray()
        while chunk := answer.raw.read1(_CHUNK, decode_content=True):
            body += chunk
            if len(body) > config.max_body_bytes:
                raise _Refused(f"it answered with more than {config.max_body_bytes} bytes (vllm.max-body-bytes)")
    return body.decode("utf-8", "replace")


def _version(session: requests.Session, config: VllmConfig) -> str:
    """vLLM's version from /version; empty where it is not told, as behind Ray."""
    parts = urlsplit(config.url)
    url = f"{parts.scheme}://{parts.netloc}/version"

    def ask() -> str:
        with session.get(url, timeout=config.timeout, stream=True, allow_redirects=False) as answer:
            said: bytes = answer.raw.read1(_VERSION_BYTES, decode_content=True)
        return said.decode("utf-8", "replace")

    try:
        text = within(config.timeout, ask)
    except (requests.RequestException, urllib3.exceptions.HTTPError):
        return ""
    found = re.search(r'"version"\s*:\s*"([0-9A-Za-z.+_-]{1,64})"', text)
    return found[1] if found else ""


def _reason(fault: requests.RequestException, config: VllmConfig) -> str:
    """What went wrong, without the request's insides."""
    if isinstance(fault, requests.exceptions.SSLError):
        return "TLS failed: the certificate is not trusted, or the server does not speak TLS (vllm.ca-file)"
    if isinstance(fault, requests.Timeout):
        return "it did not answer in time (vllm.timeout)"
    if isinstance(fault, requests.ConnectionError):
        if config.unix_socket:
            return f"nothing accepts a connection on the Unix socket {config.unix_socket} (vllm.unix-socket)"
        if "NameResolutionError" in repr(fault):
            return "the host name cannot be resolved"
        if "NewConnectionError" in repr(fault):
            return "nothing accepts a connection there; is vLLM running, and is the port right?"
    return "the answer was broken off"


def _unreachable(url: str, why: str) -> Report:
    return Report(f"kvpressure check: {_without_query(url)}: {why}\n", reached=False, headlines_available=False)


def _without_query(url: str) -> str:
    """The URL without its query, which may hold a key."""
    return url.partition("?")[0]


def _report(url: str, exposition: Exposition, version: str, took: float) -> Report:
    readings = dict(sorted(exposition.readings.items()))
    missing = unavailable(list(readings.values()))
    facts = [
        ("address", _without_query(url)),
        ("answered in", f"{took * 1000:.0f} ms"),
        ("version", version or "not told"),
    ]
    for reason, count in sorted(exposition.problems.items()):
        facts.append(("skipped", f"{count} {reason}"))
    for key, reading in readings.items():
        facts.extend(_facts(key, reading))
    rows, changes = _signal_rows(readings, missing)
    parts = [tables.text(("what", "found"), facts), tables.text(("signal", "available", "why not"), rows)]
    if changes:
        parts.append("What to change:\n" + "\n".join(f"  * {change}" for change in changes))
    # What users see is not vLLM's to tell: those signals come with the tap or the request log.
    headlines = not any(signal.headline and signal.name in missing for signal in CATALOGUE)
    parts.append(
        "Every headline signal of vLLM's metrics can be derived; what users see needs the tap or the log."
        if headlines
        else "Headline signals are missing: see what to change."
    )
    return Report("\n\n".join(parts) + "\n", reached=True, headlines_available=headlines)


def _facts(key: EngineKey, reading: EngineReading) -> Iterator[tuple[str, str]]:
    model_name, engine = key
    name = f"{model_name or '(no name)'}, engine {engine}"
    capacity = reading.capacity_tokens
    yield name, f"{_ERAS[reading.era]}{', asleep' if reading.asleep else ''}"
    yield "  KV capacity", "not told" if capacity is None else f"{tables.number(capacity)} tokens"
    yield "  preemption", advice.preemption_mode(reading)


_ERAS = {
    "V0": "V0 engine",
    "V1": "V1 engine",
    "Ray": "through Ray",
    "Rust": "V1 engine behind the Rust front end",
}


def _signal_rows(
    readings: dict[EngineKey, EngineReading], missing: dict[str, tuple[str, ...]]
) -> tuple[list[tuple[str, str, str]], list[str]]:
    """A row per signal, and the changes that would make more of them available, each once."""
    rows: list[tuple[str, str, str]] = []
    changes: dict[str, None] = {}
    found = reasons(list(readings.values()), missing)
    for signal in CATALOGUE:
        if signal.scope == "stream":
            rows.append((signal.metric, "-", advice.NO_OBSERVER))
        if signal.scope != "engine" or not signal.needs:
            continue
        lacking = missing.get(signal.name, ())
        if not lacking:
            rows.append((signal.metric, "yes", ""))
            continue
        optional = bool(readings) and all(field in advice.OPTIONAL for field in lacking)
        whys: dict[str, None] = {}
        for why, change in (reason for field in lacking for reason in found[field]):
            whys[why] = None
            if change:
                changes[change] = None
        rows.append((signal.metric, "-" if optional else "no", "; ".join(whys)))
    return rows, list(changes)
