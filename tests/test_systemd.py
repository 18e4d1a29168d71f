"""deploy/systemd: what systemd says of the unit, and its very command line, for two instances side by side."""

import contextlib
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from commands import ENVIRONMENT, get, running, wait_for

from kvpressure import signals_exporter, signals_streams
from kvpressure.config import TapConfig
from kvpressure.settings import duration

HERE = Path(__file__).parents[1] / "deploy" / "systemd"
UNIT = HERE / "kvpressure@.service"
DROP_INS = HERE / "kvpressure@.service.d"
PROGRAM = "/opt/kvpressure/bin/kvpressure"

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")


def settings(*files: Path) -> dict[str, list[str]]:
    """Every key of these files with its values, in the order in which systemd reads them."""
    found: dict[str, list[str]] = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            if line and not line.startswith(("#", "[")):
                key, _, value = line.partition("=")
                found.setdefault(key, []).append(value)
    return found


def command(port: int, *files: Path) -> list[str]:
    """The words that systemd would start an instance with."""
    unit = settings(UNIT, *files)
    variables: dict[str, str] = {}
    for line in unit["Environment"]:
        variables |= dict(word.partition("=")[::2] for word in shlex.split(line.replace("%i", str(port))))
    words = []
    for word in unit["ExecStart"][0].split():
        if whole := re.fullmatch(r"\$\{(\w+)\}", word):
            words.append(variables[whole[1]])
        elif split := re.fullmatch(r"\$(\w+)", word):
            words += variables[split[1]].split()
        else:
            words.append(word)
    return words


def copied(folder: Path, *drop_ins: Path) -> Path:
    """The unit as it would be installed, but for the program, which is not here."""
    text = UNIT.read_text(encoding="utf-8")
    assert PROGRAM in text
    unit = folder / UNIT.name
    unit.write_text(text.replace(PROGRAM, "/bin/true"), encoding="utf-8")
    for file in drop_ins:
        (folder / DROP_INS.name).mkdir(exist_ok=True)
        shutil.copy(file, folder / DROP_INS.name)
    return unit


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    """What systemd-analyze says."""
    return subprocess.run(["systemd-analyze", "--no-pager", *words], check=False, capture_output=True, text=True)


def test_vllm_writes_where_the_log_is_followed():
    """The README's line makes vLLM's logging configuration write the file that log.conf names, and rotate it."""
    line = re.search(r"^(sed .+) > \S+$", (HERE / "README.md").read_text(encoding="utf-8"), re.MULTILINE)[1]
    text = subprocess.run(shlex.split(line), check=True, capture_output=True, text=True, cwd=HERE.parents[1]).stdout

    words = command(8000, DROP_INS / "log.conf")
    handler = json.loads(text)["handlers"]["requests"]
    assert words[words.index("--log.path") + 1] == handler["filename"]
    assert ("logging.handlers.RotatingFileHandler", 1) == (handler["class"], handler["backupCount"])


@needs_systemd
@pytest.mark.parametrize("drop_ins", [(), tuple(sorted(DROP_INS.iterdir()))], ids=["alone", "with every drop-in"])
def test_systemd_knows_every_line(tmp_path, drop_ins):
    """The unit loads without a complaint, alone and with all that lies beside it; a misspelt key is a complaint."""
    unit = copied(tmp_path, *drop_ins)

    said = analyze("verify", str(unit))
    assert (said.returncode, [line for line in said.stderr.splitlines() if "kvpressure" in line]) == (0, [])

    unit.write_text(unit.read_text(encoding="utf-8").replace("UMask=", "UMaks="), encoding="utf-8")
    assert "UMaks" in analyze("verify", str(unit)).stderr


@needs_systemd
def test_it_is_locked_up(tmp_path):
    """`systemd-analyze security` rates its exposure at 2.0 or less, and 3.0 or more without the sandbox's half."""
    unit = copied(tmp_path)

    assert exposure(unit) <= 2.0

    lines = unit.read_text(encoding="utf-8").splitlines()
    unit.write_text("\n".join(line for line in lines if "Restrict" not in line and "System" not in line), "utf-8")
    assert exposure(unit) >= 3.0


def exposure(unit: Path) -> float:
    said = analyze("security", "--offline=true", str(unit)).stdout
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert found, said
    return float(found[1])


def test_a_stop_waits_for_the_streams_in_the_tap():
    """systemd kills an instance only when the tap's own patience is over, and then some."""
    stop = duration(settings(UNIT)["TimeoutStopSec"][0] + "s")

    assert stop >= TapConfig().drain_timeout + 5


def test_the_tap_has_files_for_all_its_requests():
    """Each request takes two connections, and the tap takes half of the open files that it may have."""
    allowed = int(settings(DROP_INS / "tap.conf")["LimitNOFILE"][0])

    assert allowed >= 4 * TapConfig().max_requests


def test_prometheus_scrapes_the_eight_that_are_started():
    """The targets are the addresses at which the instances 8000 to 8007 listen, under the job that alerts look for."""
    (job,) = yaml.safe_load((HERE / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]

    listening = [command(port)[command(port).index("--web.listen-address") + 1] for port in range(8000, 8008)]
    assert listening == job["static_configs"][0]["targets"]
    assert job["job_name"] == "kvpressure"


def test_promtool_takes_the_scrape_configuration():
    """What stands there is a configuration of Prometheus."""
    subprocess.run(["promtool", "check", "config", str(HERE / "prometheus.yml")], check=True, capture_output=True)


def test_the_example_changes_nothing():
    """Whoever copies it and edits nothing has the defaults; what it shows are variables of the unit."""
    lines = (HERE / "example.env").read_text(encoding="utf-8").splitlines()
    shown = re.findall(r"^#([A-Z]+)=(\S+)", "\n".join(lines), re.MULTILINE)
    unit = settings(UNIT)["Environment"][0].replace("%i", "8000").split()

    assert [line for line in lines if line and not line.startswith("#")] == []
    assert {name for name, _ in shown} <= {word.partition("=")[0] for word in unit}
    assert {f"{name}={value}" for name, value in shown if name != "FLAGS"} <= set(unit)


@contextlib.contextmanager
def instance(port: int, *files: Path) -> Iterator[None]:
    """An instance, started as systemd would, from when it is ready until the block ends."""
    program, *words = command(port, *files)
    assert program == PROGRAM
    with subprocess.Popen(
        [sys.executable, "-m", "kvpressure", *words], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        try:
            wait_for(lambda: process.poll() is not None or get(f"http://127.0.0.1:1{port}/-/ready")[0] == 200, 20)
            yield
        finally:
            process.terminate()
            _, said = process.communicate(timeout=10)
        assert process.returncode == 0, said


def free_ports(count: int) -> list[int]:
    """Ports of four digits that are free, with a 1 and with a 2 before them too."""
    found = []
    for port in range(5000, 10000):
        with contextlib.ExitStack() as stack:
            try:
                for one in (port, 10000 + port, 20000 + port):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", one))
            except OSError:
                continue
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


def value(port: int, metric: str) -> dict[str, float]:
    """A metric's series at an instance: labels and value."""
    lines = get(f"http://127.0.0.1:1{port}/metrics")[1].splitlines()
    found = (re.fullmatch(rf"{metric}(?:\{{(.*)\}})? (\S+)", line) for line in lines)
    return {one[1] or "": float(one[2]) for one in found if one}


def test_two_instances_live_side_by_side(tmp_path):
    """
    Each reads its own vLLM and no other, with the command line of the unit and nothing else.

    The second has the drop-ins of the log and of the tap, and sees a request through both.
    """
    first, second = free_ports(2)
    log = tmp_path / f"{second}.log"
    own = tmp_path / "log.conf"
    text = (DROP_INS / "log.conf").read_text(encoding="utf-8")
    own.write_text(text.replace("/var/log/vllm", str(tmp_path)), encoding="utf-8")
    first_lab = ("--model", "one", "--no-load", "--log.file", str(tmp_path / "first.log"))
    second_lab = ("--model", "two", "--no-load", "--log.file", str(log), "--log.requests")
    with (
        running("lab", *first_lab, ready="/health", port=first),
        running("lab", *second_lab, ready="/health", port=second),
        instance(first),
        instance(second, own, DROP_INS / "tap.conf"),
    ):
        up = signals_exporter.UP.metric
        wait_for(lambda: value(first, up) == value(second, up) == {"": 1.0}, 20)
        wait_for(lambda: value(second, signals_exporter.LOG_FILES.metric) == {"": 1.0}, 20)
        ask(f"http://127.0.0.1:2{second}/v1/chat/completions", "two")
        streamed = signals_streams.REQUESTS_STREAMED.metric
        wait_for(lambda: set(value(second, streamed).values()) == {1.0}, 20)

        assert set(value(second, streamed)) == {f'model_name="two",source="{source}"' for source in ("tap", "log")}
        assert value(first, streamed) == {}
        assert (model_of(first), model_of(second)) == ("one", "two")


def model_of(port: int) -> str:
    """The model of the engine that an instance reads."""
    (engine,) = json.loads(get(f"http://127.0.0.1:1{port}/api/v1/state")[1])["engines"]
    return str(engine["model_name"])


def ask(url: str, model: str) -> None:
    """A streamed answer, read to its end."""
    body = {"model": model, "messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "stream": True}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert b"[DONE]" in answer.read()
