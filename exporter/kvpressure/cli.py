"""
The command line: with serve.py and demo.py the only place where the parts are put together.

Each command imports what it needs when it runs: `serve` never loads the generators, the lab or requests.
"""

import argparse
import dataclasses
import errno
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from kvpressure import __version__, config, settings

_OUTPUT_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

_REPEATABLE = {"headers": "HEADER", "addresses": "ADDRESS", "files": "FILE"}
"""Kinds of settings whose flag can be given again, with what stands for the value in the help."""

_COMPLAINTS = 20
"""Lines of a recording that are complained of one by one."""

OK, PROBLEM, USAGE = 0, 1, 2
"""Exit statuses: fine; something was found or failed; the command line or the configuration is wrong."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    if os.getpid() == 1:
        # In a container: the kernel drops a signal that process 1 does not handle yet, and imports take a moment.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(OK))
    words = list(sys.argv[1:] if argv is None else argv)
    _prepare_output()
    if words[:1] in (["-h"], ["--help"], ["help"]):
        sys.stdout.write(_overview())
        return OK
    if words[:1] == ["--version"]:
        sys.stdout.write(f"kvpressure {__version__}\n")
        return OK
    if not words or words[0].startswith("-"):
        words.insert(0, "serve")
    name, *rest = words
    if name not in _COMMANDS:
        return _usage(f"kvpressure: there is no command {settings.shown(name)}; there are {', '.join(_COMMANDS)}")
    command = _COMMANDS[name]
    parser = _Parser(prog=f"kvpressure {name}", description=command.text, allow_abbrev=False)
    command.flags(parser)
    try:
        args, unknown = parser.parse_known_args(rest)
        if unknown:
            flag = _FLAG.match(unknown[0])
            parser.error(f"there is no flag {flag[0]}" if flag else "an argument belongs to no flag")
        return _flushed(command.run(args))
    except settings.ConfigError as fault:
        return _usage(f"kvpressure {name}: {fault}")
    except BrokenPipeError:
        # The reader of our output went away, as `head` does.
        sys.stderr.close()
        return OK
    except OSError as fault:
        what = "cannot write its output: " if fault.errno in _OUTPUT_FAULTS else ""
        sys.stderr.write(f"kvpressure {name}: {what}{fault.strerror or fault}\n")
        return PROBLEM


def _prepare_output() -> None:
    """Have somewhere to write to, and no text that cannot be written."""
    # Started with its output closed, it has none.
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The name of a model can have letters that the terminal does not.
        sys.stdout.reconfigure(errors="replace")


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")  # until the process ends


def _flushed(status: int) -> int:
    """The status, once all output is written: a full disk shows only then."""
    if sys.stdout is not None:
        sys.stdout.flush()
    return status


# Nothing that stands behind a flag's name: that may be a header with a key in it.
_FLAG = re.compile(r"--[a-z][a-z0-9.-]*|-[A-Za-z]")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence instead of printing the whole usage before it."""

    def error(self, message: str) -> NoReturn:
        sys.exit(_usage(f"{self.prog}: {message}; see {self.prog} --help"))


@dataclasses.dataclass(frozen=True, slots=True)
class _Command:
    text: str
    flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _usage(sentence: str) -> int:
    sys.stderr.write(sentence + "\n")
    return USAGE


def _overview() -> str:
    lines = [f"  {name:8s} {command.text}" for name, command in _COMMANDS.items()]
    return (
        "usage: kvpressure [command] [flags]\n\n"
        "Makes vLLM's KV-cache pressure visible to Prometheus.\n\n"
        + "\n".join(lines)
        + "\n\nWithout a command it serves. `kvpressure COMMAND --help` lists the flags of one.\n"
    )


# --- flags that are settings -----------------------------------------------------------------------------------


def _add_settings(parser: argparse.ArgumentParser, *sections: str) -> None:
    """A flag for every setting of these sections, and for the file that can hold them."""
    parser.add_argument("--config.file", dest="config_file", default="", metavar="FILE", help="YAML file of settings")
    groups = {name: parser.add_argument_group(name, config.SECTIONS[name].__doc__) for name in sections}
    for name, what in config.settings():
        section = name.partition(".")[0]
        if section not in groups:
            continue
        text = f"{what.metadata['help']} Default: {_default(what)}".replace("%", "%%")
        options: dict[str, Any] = {"dest": name, "default": None, "help": text}
        if what.metadata["kind"] == "switch":
            options |= {"action": "store_const", "const": True}
        elif what.metadata["kind"] in _REPEATABLE:
            options |= {"action": "append", "metavar": _REPEATABLE[what.metadata["kind"]]}
        else:
            options |= {"metavar": what.metadata["kind"].upper()}
        groups[section].add_argument(f"--{name}", **options)


def _default(what: dataclasses.Field[Any]) -> str:
    if what.metadata["kind"] == "duration":
        return f"{what.default:g}s."
    if isinstance(what.default, tuple):
        return f"{', '.join(what.default) or 'none'}."
    if isinstance(what.default, bool):
        return "on." if what.default else "off."
    return f"{what.default}." if what.default != "" else "none."


def _load(args: argparse.Namespace) -> config.Config:
    return config.load(args.config_file, {name: getattr(args, name, None) for name, _ in config.settings()})


# --- commands ---------------------------------------------------------------------------------------------------


def _serve_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config.check", dest="config_check", action="store_true", help="check the settings and exit")
    parser.add_argument("--version", action="version", version=f"kvpressure {__version__}")
    _add_settings(parser, *config.SECTIONS)


def _serve(args: argparse.Namespace) -> int:
    loaded = _load(args)
    from kvpressure import serve  # noqa: PLC0415

    if args.config_check:
        serve.check(loaded)
        sys.stdout.write("the configuration is good\n")
        return OK
    serve.run(loaded)
    return OK


def _check_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", nargs="?", help="URL of vLLM's metrics, instead of --vllm.url")
    _add_settings(parser, "vllm")


def _check(args: argparse.Namespace) -> int:
    if args.url is not None:
        setattr(args, "vllm.url", args.url)
    loaded = _load(args)
    from kvpressure import check  # noqa: PLC0415

    report = check.look(loaded)
    (sys.stdout if report.reached else sys.stderr).write(report.text)
    return OK if report.headlines_available else PROBLEM


def _replay_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recording", metavar="RECORDING", help="a folder with metrics.jsonl.gz, or such a file")
    parser.add_argument(
        "--step",
        metavar="DURATION",
        help='print {"t": seconds, "body": exposition} for every so much of the recording\'s time, and at its end',
    )
    _add_settings(parser, "sample", "kv", "stream", "regime", "verdict")


def _replay(args: argparse.Namespace) -> int:
    loaded = _load(args)
    from kvpressure import recording, replay  # noqa: PLC0415

    step = settings.some_time("--step", args.step, "15s") if args.step is not None else None
    complaints = 0

    def complain(sentence: str) -> None:
        nonlocal complaints
        complaints += 1
        if complaints <= _COMPLAINTS:
            sys.stderr.write(f"kvpressure replay: {sentence}\n")
        elif complaints == _COMPLAINTS + 1:
            sys.stderr.write("kvpressure replay: and more of the kind\n")

    try:
        path = recording.find(args.recording)
    except recording.RecordingError as fault:
        raise settings.ConfigError(str(fault)) from fault
    interval = recording.interval(path, loaded.sample.interval)
    rows = recording.rows(path, complain)
    log_path = recording.find_log(args.recording)
    log = recording.blocks(log_path, complain) if log_path else None
    if log_path and replay.untimed(recording.blocks(log_path, lambda _: None)):
        # No fault of the recording: what its metrics say stands.
        sys.stderr.write(
            f"kvpressure replay: {log_path} is left out: its lines are stamped to the second, which measures no gap; "
            "record it through a container runtime, or as JSON\n"
        )
        log = None
    if step is None:
        summary = replay.summarise(rows, loaded, interval, log)
        if summary.last is None:
            complain(f"{path}: the recording has no rows")
        else:
            sys.stdout.write(replay.describe(summary) + "\n")
    else:
        from kvpressure.expose import families  # noqa: PLC0415

        for snapshot in replay.steps(rows, loaded, interval, step, log):
            body = families.exposition(snapshot).decode()
            sys.stdout.write(json.dumps({"t": round(snapshot.t, 6), "body": body}) + "\n")
    sys.stdout.flush()
    return PROBLEM if complaints else OK


def _signals_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--markdown", action="store_true", help="as a Markdown table")


def _signals(args: argparse.Namespace) -> int:
    from kvpressure import tables  # noqa: PLC0415
    from kvpressure.expose import catalogue  # noqa: PLC0415

    if args.markdown:
        sys.stdout.write(tables.markdown(catalogue.MARKDOWN_HEADER, catalogue.markdown_rows()) + "\n")
    else:
        sys.stdout.write(tables.text(catalogue.HEADER, catalogue.rows()) + "\n")
    return OK


def _bundle_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, metavar="DIR", help="write alerts/, dashboards/ and deploy/ below it")
    parser.add_argument("--config", default="", metavar="FILE", help="YAML file of the bundle's settings")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is not as it would be")


def _bundle(args: argparse.Namespace) -> int:
    try:
        from kvpressure.bundle import config as bundle_config  # noqa: PLC0415
        from kvpressure.bundle import write  # noqa: PLC0415
    except ModuleNotFoundError as fault:
        raise settings.ConfigError(f"{fault.name} is not installed: in a checkout, pip install '.[bundle]'") from fault
    out, files = Path(args.out), write.bundle(bundle_config.load(args.config))
    try:
        if not args.check:
            write.write(out, files)
        stale = write.stale(out, files)
    except OSError as fault:
        sys.stderr.write(f"kvpressure bundle: {fault.filename or out}: {fault.strerror}\n")
        return PROBLEM
    for path in stale:
        sys.stderr.write(f"kvpressure bundle: {out / path} is not what the configuration gives; run without --check\n")
    return PROBLEM if stale else OK


def _advise_flags(parser: argparse.ArgumentParser) -> None:
    from kvpressure.advise import cli  # noqa: PLC0415

    cli.add_arguments(parser)


def _advise(args: argparse.Namespace) -> int:
    from kvpressure.advise import cli  # noqa: PLC0415

    return cli.run(args)


def _lab_flags(parser: argparse.ArgumentParser) -> None:
    from kvpressure.lab import cli  # noqa: PLC0415

    cli.add_arguments(parser)


def _lab(args: argparse.Namespace) -> int:
    from kvpressure.lab import cli  # noqa: PLC0415

    return cli.run(args)


def _demo_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scenario", default="storm", help="what the lab plays; `kvpressure lab --list` lists them")
    parser.add_argument("--seed", type=int, default=0, help="of the lab's users. Default: 0.")
    parser.add_argument("--every", default="3s", metavar="DURATION", help="time between two lines. Default: 3s.")
    parser.add_argument("--lab.port", dest="lab_port", type=int, default=8000, help="Default: 8000, or a free one.")
    parser.add_argument("--tap.port", dest="tap_port", type=int, default=8001, help="Default: 8001, or a free one.")
    parser.add_argument("--port", type=int, default=10938, help="of the sidecar. Default: 10938, or a free one.")


def _demo(args: argparse.Namespace) -> int:
    from kvpressure import demo  # noqa: PLC0415

    try:
        demo.run(
            args.scenario,
            args.seed,
            settings.some_time("--every", args.every, "15s"),
            args.lab_port,
            args.port,
            tap_port=args.tap_port,
        )
    except demo.DemoError as fault:
        sys.stderr.write(f"kvpressure demo: {fault}\n")
        return PROBLEM
    return OK


_COMMANDS = {
    "serve": _Command("Sample one vLLM and serve the derived signals (the default).", _serve_flags, _serve),
    "check": _Command("Look at a vLLM once: what can be derived, what cannot, what to change.", _check_flags, _check),
    "replay": _Command("Derive the signals from a recording.", _replay_flags, _replay),
    "signals": _Command("List every signal.", _signals_flags, _signals),
    "bundle": _Command(
        "Write alerts, recording rules, the Alertmanager's configuration and dashboards.", _bundle_flags, _bundle
    ),
    "advise": _Command(
        "Say what limits a vLLM and what each change would do, from what was seen.", _advise_flags, _advise
    ),
    "lab": _Command("Serve a stand-in for vLLM that fills a KV cache and preempts.", _lab_flags, _lab),
    "demo": _Command("Run the lab and the sidecar together, and tell what is seen.", _demo_flags, _demo),
}
