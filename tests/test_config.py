"""Settings: each tiny invalid file has its exact sentence, and what is good is read as it was meant."""

import re
from pathlib import Path

import pytest

from kvpressure.config import SECTIONS, Config, load, settings
from kvpressure.settings import ConfigError, duration, shown, split_address

FIXTURES = Path(__file__).parent / "fixtures" / "config"

NO_URL = "is not a URL like http://127.0.0.1:8000/metrics (http or https, no user name in it)"
SENTENCES = {
    "section": "unknown section 'kvcache'; known are vllm, sample, kv, stream, tap, regime, verdict, web, log",
    "key": "unknown key kv.pin_threshold; known under kv are pin-threshold, nearly-full",
    "key-number": "unknown key stream.1; known under stream are pause-threshold, idle-timeout, max-tracked",
    "section-value": "kv must be a mapping of settings, not '0.9'",
    "section-list": "kv must be a mapping of settings, not 'list'",
    "top-level": "must be a mapping, not 'list'",
    "yaml": "is not YAML in line 2: expected the node content, but found '<stream end>'",
    "tab": "is not YAML in line 2: found character '\\t' that cannot start any token",
    "control-character": "is not YAML: cannot be parsed",
    "unsafe-tag": "is not YAML in line 1: could not determine a constructor for the tag '!python/name:os.getcwd'",
    "ratio": "kv.pin-threshold: '95' is too large; the most is 1",
    "ratio-text": "kv.pin-threshold: 'high' is not a number",
    "ratio-switch": "kv.pin-threshold: 'True' is not a number",
    "nan": "verdict.long-gaps: 'nan' is not a number",
    "huge-number": "verdict.long-gaps: '1" + "0" * 76 + "...' is not a number",
    "duration": 'sample.interval: \'1 minute\' is not a duration like "1s", "500ms" or "5m"',
    "duration-short": "sample.interval: '1ms' is too small; the least is 0.05s",
    "count": "regime.churn-count: '2.5' is not a whole number",
    "count-zero": "regime.churn-count: '0' is too small; the least is 1",
    "switch": "vllm.insecure-skip-verify: 'maybe' is not true or false",
    "text": "vllm.unix-socket: 'a' is not the path of a file",
    "url": f"vllm.url: 'localhost:8000' {NO_URL}",
    "url-user": f"vllm.url: the value {NO_URL}",
    "url-port": f"vllm.url: 'http://vllm:99999/metrics' {NO_URL}",
    "origin": (
        "tap.upstream: 'http://127.0.0.1:8000/v1' is not a URL like http://127.0.0.1:8000 (http or https, "
        "without a path)"
    ),
    "files": "log.path: '' is not the path of a file or a pattern like /var/log/vllm/*.log",
    "header": 'vllm.header: the value is not a header like "Name: value"',
    "address": 'web.listen-address: \'10938\' is not an address like ":10938" or "127.0.0.1:10938"',
    "address-port": 'web.listen-address: \':70000\' is not an address like ":10938" or "127.0.0.1:10938"',
    "address-none": 'web.listen-address: \'\' is not an address like ":10938" or "127.0.0.1:10938"',
    "path": "web.telemetry-path: 'metrics' is not a path like /metrics (not under /-/ or /api/)",
    "path-reserved": "web.telemetry-path: '/-/metrics' is not a path like /metrics (not under /-/ or /api/)",
    "level": "log.level: 'loud' is not one of debug, info, warn, error",
    "format": "log.format: 'xml' is not logfmt or json",
}
"""What follows the file's name, by the reason in the fixture's."""

TOGETHER = {
    "intervals": "sample.max-interval (5 s) is shorter than sample.interval (10 s); raise it or sample more often",
    "basic-auth": "vllm.basic-auth-user and vllm.basic-auth-password-file go together; set both or neither",
    "two-credentials": "vllm.bearer-token-file and vllm.basic-auth-user exclude each other; keep one",
    "tap-loop": (
        "tap.listen (:8000) is where tap.upstream (http://127.0.0.1:8000) leads; the tap needs a port of its own"
    ),
    "certificate": "vllm.cert-file and vllm.key-file go together; set both or neither",
}
"""Sentences on settings that do not go together, wherever each of them was given."""


def refused(path, flags=None):
    with pytest.raises(ConfigError) as fault:
        load(str(path), flags)
    return str(fault.value)


@pytest.mark.parametrize("reason", SENTENCES)
def test_invalid(reason):
    """An invalid file is refused with one sentence that names the file, the setting and what is wrong with it."""
    path = FIXTURES / f"invalid-{reason}.yml"

    assert f"{path}: {SENTENCES[reason]}" == refused(path)


@pytest.mark.parametrize("reason", TOGETHER)
def test_invalid_together(reason):
    """Settings that do not go together are refused with one sentence that names both."""
    assert TOGETHER[reason] == refused(FIXTURES / f"invalid-{reason}.yml")


def test_every_invalid_file_has_its_sentence():
    """No fixture is left without a sentence."""
    assert {path.stem.removeprefix("invalid-") for path in FIXTURES.glob("invalid-*")} == {*SENTENCES, *TOGETHER}


def test_defaults():
    """Without a file and without flags every setting has its default."""
    assert load("") == Config()


def test_good_file():
    """A good file sets what it names and leaves the rest at its default; an empty section is none."""
    config = load(str(FIXTURES / "good.yml"))

    assert config.vllm.url == "https://vllm.example:8443/metrics"
    assert (config.vllm.header, config.vllm.insecure_skip_verify) == (("X-Tenant: a",), True)
    assert (config.sample.interval, config.sample.duty_budget, config.sample.max_interval) == (0.5, 0.05, 5.0)
    assert (config.regime.churn_count, config.regime.churn_spread) == (7, 90.0)
    assert config.web.listen_address == ("[::1]:9000", ":9001")
    assert (config.kv, config.log.level) == (Config().kv, "debug")


@pytest.mark.parametrize(
    ("upstream", "address"),
    [("http://127.0.0.1", "127.0.0.1:80"), ("http://localhost", ":80"), ("https://localhost", ":443")],
)
def test_a_tap_that_leads_to_itself_by_the_port_of_its_scheme(upstream, address):
    """A tap is refused where its upstream names no port, and the port that this means is its own."""
    with pytest.raises(ConfigError, match="the tap needs a port of its own"):
        load("", {"tap.upstream": upstream, "tap.listen": [address]})


def test_a_query_is_not_lost():
    """A URL without a path gets that of the metrics and keeps its query; an origin with a query is refused."""
    assert load("", {"vllm.url": "http://vllm:8000?key=a"}).vllm.url == "http://vllm:8000/metrics?key=a"
    with pytest.raises(ConfigError, match="without a path"):
        load("", {"tap.upstream": "http://vllm:8000?key=a"})


def test_flags_win():
    """A flag wins over the file, and a flag that was not given does not."""
    config = load(str(FIXTURES / "good.yml"), {"sample.interval": "2s", "log.level": None})

    assert (config.sample.interval, config.log.level) == (2.0, "debug")


def test_bad_flag():
    """A flag's sentence names the flag."""
    assert refused("", {"kv.pin-threshold": "2"}) == "--kv.pin-threshold: '2' is too large; the most is 1"


def test_flag_text():
    """The text of a flag becomes a switch, a count and a list as YAML's own values do."""
    config = load(
        "", {"vllm.insecure-skip-verify": "true", "regime.churn-count": "6", "web.listen-address": ["127.0.0.1:1"]}
    )

    assert (config.vllm.insecure_skip_verify, config.regime.churn_count) == (True, 6)
    assert config.web.listen_address == ("127.0.0.1:1",)


def test_empty_file(tmp_path):
    """A file with nothing but comments is no settings."""
    path = tmp_path / "empty.yml"
    path.write_text("# nothing\n", encoding="utf-8")

    assert load(str(path)) == Config()


def test_unreadable_file(tmp_path):
    """A file that is not there, is a folder or is no text is refused with one sentence."""
    binary = tmp_path / "binary.yml"
    binary.write_bytes(b"\xff\xfe\x00")

    assert refused(tmp_path / "none.yml") == f"{tmp_path}/none.yml: cannot be read: No such file or directory"
    assert refused(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
    assert refused(binary) == f"{binary}: is not UTF-8 text"


def test_settings():
    """Every setting has a dotted name with dashes, a help text and a default that its own bounds allow."""
    found = dict(settings())

    assert {name.partition(".")[0] for name in found} == set(SECTIONS)
    assert not [name for name in found if "_" in name]
    for name, what in found.items():
        low, high = what.metadata["low"], what.metadata["high"]

        assert what.metadata["help"].endswith("."), name
        assert low is None or what.default >= low, name
        assert high is None or what.default <= high, name


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1", 1.0), ("0.5", 0.5), (".5", 0.5), ("500ms", 0.5), ("1m30s", 90.0), ("1h", 3600.0), ("1d", 86400.0)],
)
def test_duration(text, seconds):
    """A duration is written as Prometheus writes it, or as bare seconds."""
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "1x", "-1s", "1s 2s", "1,5s", "1e3", "1ss", "\u0661s"])
def test_no_duration(text):
    """What is neither is refused."""
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":80", ("", 80)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
    ],
)
def test_split_address(text, expected):
    """An address is a host, which may be empty or in brackets, and a port."""
    assert split_address(text) == expected


def test_shown():
    """A long value is cut to eighty characters in a sentence."""
    assert shown("x" * 80) == repr("x" * 80)
    assert shown("x" * 81) == repr("x" * 77 + "...")
