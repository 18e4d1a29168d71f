"""``kvpressure advise``: its flags, and how the parts are put together."""

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kvpressure import settings
from kvpressure.advise import (
    access,
    build,
    config_json,
    memory,
    recorded,
    report_html,
    report_json,
    report_text,
    workload,
)
from kvpressure.advise.advice import Advice
from kvpressure.advise.build import Options
from kvpressure.advise.changes import Targets
from kvpressure.advise.progress import Progress
from kvpressure.advise.seen import AdviseError, Figure, Seen, Server
from kvpressure.advise.told import Told, added

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 and the number of the signal."""
_NAMES = ("--prometheus", "--recording", "--workload", "--range", "--model-config", "--html", "--json")
"""Flags that mean nothing without a text."""
_MOST_SEEDS = 100
_MOST_COUNT = 100_000_000
_MOST_PER_THOUSAND = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags, in the order in which a reader asks for them."""
    source = parser.add_argument_group("what was observed", "One of them must be given.").add_mutually_exclusive_group(
        required=True
    )
    source.add_argument("--prometheus", metavar="URL", help="a Prometheus that scrapes kvpressure, vLLM or both")
    source.add_argument("--recording", metavar="DIR", help="a recording, as for `kvpressure replay`")
    source.add_argument("--workload", metavar="FILE", help="YAML: traffic and server described instead of observed")

    access.add_arguments(parser)

    which = parser.add_argument_group("which engine, and when")
    which.add_argument("--range", metavar="DURATION", help="up to now, with --prometheus. Default: 24h.")
    which.add_argument("--model", default="", help="model_name. Default: that of the engine with most preemptions.")
    which.add_argument("--engine", default="", help="its rank. Default: the one with most preemptions.")

    server = parser.add_argument_group("what vLLM does not tell of itself")
    server.add_argument("--max-num-seqs", type=_count, metavar="N", help="as vLLM has it")
    server.add_argument("--max-num-batched-tokens", type=_count, metavar="N", help="as vLLM has it")
    server.add_argument("--max-model-len", type=_count, metavar="N", help="as vLLM has it")
    server.add_argument("--replicas", type=_count, metavar="N", help="engines that share the traffic")

    cache = parser.add_argument_group(
        "the KV cache by arithmetic",
        "Where the server does not tell its size, or for another server: all but --kv-dtype and --tensor-parallel are "
        "needed. --model-config alone gives the bytes per token.",
    )
    cache.add_argument("--model-config", metavar="FILE", help="the model's config.json")
    cache.add_argument("--gpu-memory", metavar="SIZE", help="of one GPU, as 48GB")
    cache.add_argument("--utilization", type=float, metavar="SHARE", help="as --gpu-memory-utilization of vLLM")
    cache.add_argument("--weights", metavar="SIZE", help="of the model, as 13.5GB")
    cache.add_argument("--overhead", metavar="SIZE", help="activations and all else on a GPU, as 2GB")
    cache.add_argument("--tensor-parallel", type=_count, metavar="N", help="GPUs per engine. Default: 1.")
    cache.add_argument(
        "--kv-dtype",
        choices=memory.KV_DTYPES,
        metavar="TYPE",
        help=f"as --kv-cache-dtype of vLLM: {', '.join(memory.KV_DTYPES)}. Default: auto.",
    )

    aims = parser.add_argument_group("what is to hold")
    aims.add_argument(
        "--target-per-thousand",
        type=float,
        default=Targets().per_thousand,
        metavar="N",
        help="fewer preemptions per thousand requests count as none. Default: 5.",
    )
    aims.add_argument("--target-ttft", default="2s", metavar="DURATION", help="p95 until the first token. Default: 2s.")
    aims.add_argument("--seeds", type=_count, default=10, metavar="N", help="runs of each setting. Default: 10.")

    out = parser.add_argument_group("where it is told, beside the terminal")
    out.add_argument("--html", metavar="FILE", help="a page with plots")
    out.add_argument("--json", metavar="FILE", help="everything, for programs; - for the terminal, instead of the text")


def run(args: argparse.Namespace) -> int:
    """
    Advise; the exit status.

    Raises:
        ConfigError: what was given cannot be used, or a file cannot be written.
    """
    try:
        _check_source(args)
        _check_places(args)
        _tell(args, _advice(args))
    except AdviseError as fault:
        raise settings.ConfigError(str(fault)) from fault
    except KeyboardInterrupt:
        sys.stderr.write("kvpressure advise: interrupted\n")
        return INTERRUPTED
    return 0


def _tell(args: argparse.Namespace, advice: Advice) -> None:
    """All that was asked for; one place that fails costs none of the others."""
    try:
        faults = list(_written(args, advice))
    finally:
        sys.stdout.write(report_json.text(advice) if args.json == "-" else report_text.text(advice))
    if faults:
        raise AdviseError("; ".join(faults))


def _written(args: argparse.Namespace, advice: Advice) -> Iterator[str]:
    """Write the files; what went wrong, in words."""
    for path, form in ((args.html, report_html.page), (args.json, report_json.text)):
        if not path or path == "-":
            continue
        try:
            Path(path).write_text(form(advice), encoding="utf-8")
        except OSError as fault:
            yield f"{path} cannot be written: {fault.strerror}"


def _check_source(args: argparse.Namespace) -> None:
    """
    Whether all that was given is read with the source that was given.

    Raises:
        AdviseError: a flag would be passed over, or has no value.
    """
    for flag in _NAMES:
        if getattr(args, flag.removeprefix("--").replace("-", "_")) == "":
            raise AdviseError(f"{flag} is given without a value, as by a variable that is not set; give one")
    observed = {"--model": args.model, "--engine": args.engine}
    asked = {"--range": args.range, **access.given(args)}
    unread = (("--prometheus or --recording", observed if args.workload else {}), ("--prometheus", asked))
    for sources, flags in () if args.prometheus else unread:
        for flag, value in flags.items():
            if value:
                raise AdviseError(f"{flag} is of use only with {sources}; leave it out")


def _check_places(args: argparse.Namespace) -> None:
    """
    Whether files can be written where they are asked for: before minutes of simulation, not after.

    Raises:
        AdviseError: one cannot.
    """
    if args.html == "-":
        raise AdviseError("--html writes a page into a file: give its name in the place of -")
    if args.html and args.html == args.json:
        raise AdviseError(f"--html and --json both name {args.html}: give two files")
    for path in (args.html, args.json):
        if not path or path == "-":
            continue
        folder = Path(path).parent
        if Path(path).is_dir():
            raise AdviseError(f"{path} cannot be written: it is a folder; give the name of a file")
        if not folder.is_dir():
            raise AdviseError(f"{path} cannot be written: there is no folder {folder}; make it, or give another place")
        if not os.access(path if Path(path).exists() else folder, os.W_OK):
            raise AdviseError(f"{path} cannot be written: whoever runs this may not write there; give another place")


def _advice(args: argparse.Namespace) -> Advice:
    if args.seeds > _MOST_SEEDS:
        raise AdviseError(f"--seeds {args.seeds} is more than {_MOST_SEEDS}; ten are enough for most questions")
    if not args.target_per_thousand > 0.0:
        raise AdviseError("--target-per-thousand must be over 0; preemption is never ruled out, only made rare")
    if args.target_per_thousand > _MOST_PER_THOUSAND:
        raise AdviseError(
            f"--target-per-thousand must be at most {_MOST_PER_THOUSAND:,}, which is each request a thousand times"
        )
    targets = Targets(args.target_per_thousand, settings.some_time("--target-ttft", args.target_ttft, "2s"))
    token = _token(args)
    if args.workload:
        described = workload.read(args.workload)
        server = _with(added(described.server, _told(args)), args, token)
        each = token.bytes if token else described.token_bytes
        notes = (*described.notes, *(token.notes if token else ()))
        with Progress("Simulating", build.RUNS * args.seeds) as progress:
            options = Options(targets, args.seeds, each, done=progress.step)
            return build.advise_on(replace(described, server=server, notes=notes), options)
    seen = _seen(args)
    notes = (*seen.notes, *(token.notes if token else ()))
    seen = replace(seen, server=_with(seen.server, args, token), notes=notes)
    with Progress("Simulating", build.RUNS * args.seeds) as progress:
        each = token.bytes if token else Options().token_bytes
        return build.advise(seen, Options(targets, args.seeds, each, done=progress.step))


def _seen(args: argparse.Namespace) -> Seen:
    told = _told(args)
    if args.recording:
        return recorded.seen_in(args.recording, model=args.model, engine=args.engine, told=told)
    # requests is needed for this source alone.
    from kvpressure.advise import prometheus  # noqa: PLC0415

    return prometheus.seen_by(
        args.prometheus,
        range_seconds=settings.some_time("--range", args.range or "24h", "24h"),
        model=args.model,
        engine=args.engine,
        told=told,
        access=access.access_of(args),
    )


def _told(args: argparse.Namespace) -> Told:
    return Told(args.max_num_seqs, args.max_model_len, args.max_num_batched_tokens, args.replicas)


def _token(args: argparse.Namespace) -> memory.PerToken | None:
    """Bytes per token, where the model is told."""
    if args.model_config:
        return memory.per_token(config_json.read(args.model_config), args.kv_dtype or "auto")
    rest = {"--tensor-parallel": args.tensor_parallel, "--kv-dtype": args.kv_dtype}
    given = [flag for flag, value in {**_parts(args), **rest}.items() if value is not None]
    if given:
        raise AdviseError(f"{given[0]} is of use only together with --model-config; give the model's config.json")
    return None


def _parts(args: argparse.Namespace) -> dict[str, object]:
    """All that the arithmetic of a capacity takes, by its flags."""
    return {
        "--gpu-memory": args.gpu_memory,
        "--utilization": args.utilization,
        "--weights": args.weights,
        "--overhead": args.overhead,
    }


def _capacity(args: argparse.Namespace, token: memory.PerToken, block_size: int) -> memory.Capacity | None:
    """The capacity by arithmetic; None where nothing for it is given."""
    parts = _parts(args)
    given = [flag for flag, value in parts.items() if value is not None]
    if not given and args.tensor_parallel is not None:
        raise AdviseError(
            f"--tensor-parallel is of use only together with {', '.join(parts)}; give these or leave it out"
        )
    if not given:
        return None
    missing = next((flag for flag in parts if flag not in given), None)
    if missing:
        raise AdviseError(f"{given[0]} is given and {missing} is not; the capacity takes all of {', '.join(parts)}")
    whole = memory.Memory(
        gpu=memory.size(args.gpu_memory, "--gpu-memory"),
        utilization=args.utilization,
        weights=memory.size(args.weights, "--weights"),
        overhead=memory.size(args.overhead, "--overhead"),
        gpus=args.tensor_parallel or 1,
    )
    return memory.capacity(whole, token, block_size)


def _with(server: Server, args: argparse.Namespace, token: memory.PerToken | None) -> Server:
    """The server with the cache of the flags, where they give one, and with its type."""
    if token is None:
        return server
    if args.kv_dtype not in (None, "auto"):
        server = replace(server, cache_dtype=args.kv_dtype)
    size = round(server.block_size.value or build.BLOCK)
    cache = _capacity(args, token, size)
    if cache is None:
        return server
    block_size = server.block_size
    if block_size.value is None:
        block_size = Figure(size, "tokens", "vLLM's own default")
    return replace(server, capacity=cache.tokens, block_size=block_size)


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{settings.shown(text)} is not a whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{settings.shown(text)} is less than 1")
    if value > _MOST_COUNT:
        raise argparse.ArgumentTypeError(f"{settings.shown(text)} is more than {_MOST_COUNT:,}")
    return value
