"""``kvpressure lab``: its flags, and the life of its process."""

import argparse
import asyncio
import contextlib
import os
import re
import signal
import sys
from dataclasses import replace
from typing import TextIO

from aiohttp import web

from kvpressure.lab import users_cli
from kvpressure.lab.flags import UsageError, cause, count, not_negative, positive
from kvpressure.lab.host import Options
from kvpressure.lab.logs import VllmLog
from kvpressure.lab.model import Config
from kvpressure.lab.scenarios import SCENARIOS, STORM, Scenario
from kvpressure.lab.server import LabServer

_SHUTDOWN_SECONDS = 0.25
"""How long open connections may take to end when the lab is told to stop."""

_USAGE_ERROR = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``kvpressure lab``."""
    add = parser.add_argument
    add("--scenario", choices=list(SCENARIOS), default=STORM.name, help="server and load (default: %(default)s)")
    add("--list", action="store_true", help="list the scenarios and exit")
    add("--web.listen-address", dest="listen_address", default="127.0.0.1:8000", metavar="HOST:PORT")
    add("--seed", type=int, default=0, help="decides all that is random (default: %(default)s)")
    add(
        "--speed",
        type=positive,
        default=1.0,
        help="model seconds per real second; metrics tell model time (default: %(default)s)",
    )
    add("--no-load", action="store_true", help="no built-in users: only HTTP clients ask")
    add("--model", default="lab-8b", help="served model name (default: %(default)s)")
    add("--log.file", dest="log_file", metavar="FILE", help="append vLLM's log to FILE instead of printing it")
    add(
        "--log.requests",
        dest="log_requests",
        action="store_true",
        help="log every request and every token, without text",
    )
    server = parser.add_argument_group("server settings", "each replaces the scenario's own")
    add = server.add_argument
    add("--num-gpu-blocks", type=count(2), help="KV blocks, of which one is the null block")
    add("--block-size", type=count(1), help="tokens per block")
    add("--max-model-len", type=count(2), help="most tokens of one request")
    add("--max-num-seqs", type=count(1), help="most requests that run at once")
    add("--max-num-batched-tokens", type=count(1), help="token budget of one step")
    add("--step.base", dest="step_base", type=positive, metavar="SECONDS", help="time of an empty step")
    add("--step.decode", dest="step_decode", type=not_negative, metavar="SECONDS", help="more per decoding request")
    add("--step.prefill", dest="step_prefill", type=not_negative, metavar="SECONDS", help="more per prompt token")
    add("--no-prefix-caching", action="store_true", help="never reuse blocks of equal prefixes")
    add("--async-scheduling", action="store_true", help="count a preemption one step after it, not at resume")
    users_cli.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve, or ask, until SIGINT or SIGTERM; return the exit code."""
    if args.list:
        for scenario in SCENARIOS.values():
            print(f"{scenario.name:14}{scenario.summary}")  # noqa: T201 - what was asked for
        return 0
    try:
        users_cli.check(args)
        if args.users is not None:
            return users_cli.run(args)
        host, port = _address(args.listen_address)
        options = _options(args)
        with contextlib.ExitStack() as stack:
            out: TextIO = sys.stdout
            if args.log_file:
                out = stack.enter_context(_open_log(args.log_file))
            log = VllmLog(out, requests=args.log_requests)
            asyncio.run(_serve(options, log, host, port))
    except UsageError as error:
        print(f"kvpressure lab: {error}", file=sys.stderr)  # noqa: T201 - a user's mistake, not a log line
        return _USAGE_ERROR
    except BrokenPipeError:
        # Whoever read our log has gone (`kvpressure lab | head`). Nothing can be flushed into that pipe at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


async def _serve(options: Options, log: VllmLog, host: str, port: int) -> None:
    """Run engine and HTTP server until a signal comes."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = LabServer(options, log)
    runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    tasks: list[asyncio.Task[object]] = []
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise UsageError(f"cannot listen on {_join(host, port)}: {cause(error)}.") from error
        bound = runner.addresses[0]
        log.started(options.scenario.server, _join(bound[0], bound[1]))
        tasks += [asyncio.create_task(server.host.run()), asyncio.create_task(stop.wait())]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()


def _options(args: argparse.Namespace) -> Options:
    scenario = SCENARIOS[args.scenario]
    return Options(
        scenario=replace(scenario, server=_config(scenario, args)),
        model=args.model,
        seed=args.seed,
        speed=args.speed,
        load=not args.no_load,
    )


def _config(scenario: Scenario, args: argparse.Namespace) -> Config:
    """The scenario's server with the flags' changes."""
    base = scenario.server
    time = base.step_time
    config = replace(
        base,
        num_gpu_blocks=args.num_gpu_blocks or base.num_gpu_blocks,
        block_size=args.block_size or base.block_size,
        max_num_seqs=args.max_num_seqs or base.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens or base.max_num_batched_tokens,
        prefix_caching=base.prefix_caching and not args.no_prefix_caching,
        async_scheduling=base.async_scheduling or args.async_scheduling,
        step_time=replace(
            time,
            base=time.base if args.step_base is None else args.step_base,
            decode=time.decode if args.step_decode is None else args.step_decode,
            prefill=time.prefill if args.step_prefill is None else args.step_prefill,
        ),
    )
    fits = (config.num_gpu_blocks - 1) * config.block_size
    if args.max_model_len is None:
        return replace(config, max_model_len=min(base.max_model_len, fits))
    if args.max_model_len > fits:
        # vLLM refuses to start, too.
        raise UsageError(f"--max-model-len {args.max_model_len} does not fit the KV cache of {fits} usable tokens.")
    return replace(config, max_model_len=args.max_model_len)


def _address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; an empty host is every interface."""
    host, colon, port = text.rpartition(":")
    # Of thousands of digits Python makes no number.
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:  # noqa: PLR2004 - the highest TCP port
        raise UsageError(f"--web.listen-address {text!r} is not HOST:PORT.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _open_log(path: str) -> TextIO:
    try:
        return open(path, "a", encoding="utf-8")  # noqa: PTH123 - the caller's stack closes it
    except OSError as error:
        raise UsageError(f"cannot write --log.file {path}: {cause(error)}.") from error
