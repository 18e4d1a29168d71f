# small helpers, named for what they do
import io
import json
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure import log
from kvpressure.config import LogConfig


def record(message="hello", level=logging.INFO, error=None, **fields):
    made = logging.LogRecord("kvpressure.observe.scraper", level, "f.py", 1, message, (), None)
    made.fields = fields
    made.exc_info = (type(error), error, error.__traceback__) if error else None
    made.created = 1764489600.25
    return made


def raised():
    try:
        raise ValueError("bad\nthing")  # noqa: TRY301
    except ValueError as fault:
        return fault


def test_logfmt_line():
    """A logfmt line has time in UTC, level, logger, message and fields, quoted only where that is needed."""
    line = log.LogfmtFormatter().format(
        record("it works", n=3, url="http://a/b", empty="", q='a "b"', eq="a=b", up=True)
    )

    assert line == (
        'time=2025-11-30T08:00:00.250Z level=INFO logger=observe.scraper msg="it works" '
        'n=3 url=http://a/b empty="" q="a \\"b\\"" eq="a=b" up=true'
    )


def test_json_line():
    """A JSON line has the same keys, and numbers stay numbers."""
    assert json.loads(log.JsonFormatter().format(record("it works", logging.WARNING, n=3))) == {
        "time": "2025-11-30T08:00:00.250Z",
        "level": "WARN",
        "logger": "observe.scraper",
        "msg": "it works",
        "n": 3,
    }


@given(st.text())
def test_one_line_per_record(text):
    """No message or value, whatever it holds, breaks a line or puts a control character on a terminal."""
    for formatter in (log.LogfmtFormatter(), log.JsonFormatter()):
        line = formatter.format(record(text.replace("%", ""), key=text))

        assert len(line.splitlines()) == 1
        assert not re.search(r"[\x00-\x1f]", line)
    assert log.LogfmtFormatter().format(record(text.replace("%", ""), key=text)).isprintable()


@pytest.mark.parametrize("formatter", [log.LogfmtFormatter, log.JsonFormatter])
def test_error_is_one_value(formatter):
    """An exception is one value of kind and message; its traceback is added only when asked for."""
    short = formatter().format(record(error=raised()))
    full = formatter(tracebacks=True).format(record(error=raised()))

    assert r"ValueError: bad\nthing" in short
    assert "Traceback" not in short
    assert "Traceback" in full
    assert len(full.splitlines()) == 1


def test_long_values_are_cut():
    """A value longer than the limit is cut."""
    assert len(log.LogfmtFormatter().format(record("x" * 100_000))) < log.MAX_VALUE + 200


def test_fields_cannot_replace_the_message():
    """A field named like one of the fixed keys does not replace it."""
    assert json.loads(log.JsonFormatter().format(record("true", msg="false")))["msg"] == "true"


@pytest.mark.parametrize(
    ("level", "words"),
    [("debug", "DEBUG INFO WARN ERROR"), ("info", "INFO WARN ERROR"), ("warn", "WARN ERROR"), ("error", "ERROR")],
)
@pytest.mark.usefixtures("logged")
def test_setup_levels(level, words):
    """The level of the configuration is the lowest that is written, and setting up twice writes each line once."""
    stream = io.StringIO()
    log.setup(LogConfig(level=level), io.StringIO())
    log.setup(LogConfig(level=level), stream)
    logger = logging.getLogger("kvpressure.test")
    for tell in (logger.debug, logger.info, logger.warning, logger.error):
        tell("x")

    assert re.findall(r"level=(\w+)", stream.getvalue()) == words.split()


@pytest.mark.usefixtures("logged")
def test_setup_json():
    """The format of the configuration is used."""
    stream = io.StringIO()
    log.setup(LogConfig(format="json"), stream)
    logging.getLogger("kvpressure.test").warning("x", extra={"fields": {"reason": "dns"}})

    assert json.loads(stream.getvalue())["reason"] == "dns"


def test_rate_limit(logged):
    """A key is logged at most once a minute, and the next line says how many were held back; keys do not mix."""
    now = [0.0]
    limited = log.RateLimitedLog(logging.getLogger("kvpressure.test"), clock=lambda: now[0])
    told = []
    for now[0] in (0.0, 1.0, 59.9, 60.0, 61.0):
        told.append(limited.warning("a", "alpha"))
    told.append(limited.warning("b", "beta"))
    lines = logged.getvalue().splitlines()

    assert told == [True, False, False, True, False, True]
    assert [re.sub(r".*msg=", "", line) for line in lines] == ["alpha", "alpha held_back=2", "beta"]


def test_a_fault_is_told_without_its_words(logged):
    """Of a fault its kind and its place are told, once a minute, and nothing of what it says."""
    limited = log.RateLimitedLog(logging.getLogger("kvpressure.x"))
    for _ in range(2):
        limited.fault("it failed", raised())

    (line,) = logged.getvalue().splitlines()
    assert re.search(r'msg="it failed" error_type=ValueError where=test_log\.py:[0-9]+$', line)


def test_asyncio_cannot_flood_the_log():
    """A message that asyncio repeats, as when files run out, is let through once a minute; ours all are."""
    stream = io.StringIO()
    log.setup(LogConfig(), stream)

    for _ in range(1000):
        logging.getLogger("asyncio").error("socket.accept() out of system resource")
        logging.getLogger("kvpressure.x").warning("ours")

    lines = stream.getvalue().splitlines()
    assert len([line for line in lines if "out of system resource" in line]) == 1
    assert len([line for line in lines if "ours" in line]) == 1000
