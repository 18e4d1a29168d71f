"""`kvpressure serve`: sampler, pipeline and server put together, until a signal ends it."""

import asyncio
import dataclasses
import gc
import logging
import signal
from collections.abc import Coroutine

from prometheus_client import CollectorRegistry, ProcessCollector

from kvpressure import __version__, files, log
from kvpressure.config import Config, TapConfig, settings
from kvpressure.derive.snapshot import EngineSnapshot, Snapshot, StreamSnapshot
from kvpressure.derive.target import Target
from kvpressure.expose import guard, server
from kvpressure.expose.families import SnapshotCollector, render
from kvpressure.observe.logtail import LogTail
from kvpressure.observe.scraper import Scraper
from kvpressure.observe.tap import Tap
from kvpressure.settings import ConfigError
from kvpressure.threads import Threads
from kvpressure.vllm.stream import Source

_LAST_LINES = 4.0  # seconds; with the 25 s of the tap they stay under the 30 s that a pod has by default

_log = logging.getLogger(__name__)


def check(config: Config) -> None:
    """
    Look at every file that the settings name, and start nothing.

    Raises:
        ConfigError: one of them cannot be used.
    """
    for name, what in settings():
        section, _, _ = name.partition(".")
        path = getattr(getattr(config, section), what.name)
        # A socket comes with vLLM; every other file must be there.
        if what.metadata["kind"] == "file" and path and what.name != "unix_socket":
            try:
                files.read(path)
            except OSError as fault:
                raise ConfigError(f"{name}: {path}: cannot be read: {fault.strerror}") from fault
    asyncio.run(_check(config))


def run(config: Config) -> None:
    """
    Sample and serve until SIGTERM or SIGINT.

    Raises:
        ConfigError: a file that the settings name cannot be used, or an address cannot be listened on.
    """
    log.setup(config.log)
    asyncio.run(_run(config))


async def _check(config: Config) -> None:
    scraper = Scraper(config.vllm, target := Target(config, sources=sources_of(config)))
    if config.tap.listen:
        Tap(config.tap, target.streams["tap"], scraper.now)
    await scraper.close()
    server.make_app(config, metrics=lambda _: (b"", ""), state=dict, snapshot=lambda: Snapshot(t=0.0, up=None))


def sources_of(config: Config) -> tuple[Source, ...]:
    """The observers of streams that the settings ask for."""
    asked: dict[Source, tuple[str, ...]] = {"tap": config.tap.listen, "log": config.log.path}
    return tuple(source for source, where in asked.items() if where)


async def _run(config: Config) -> None:
    asyncio.get_running_loop().set_default_executor(Threads())
    target = Target(config, sources=sources_of(config))
    scraper = Scraper(config.vllm, target)
    elsewhere = guard.places(config.web.max_connections)
    tap = Tap(config.tap, target.streams["tap"], scraper.now, elsewhere) if config.tap.listen else None
    tail = LogTail(config.log.path, target.streams["log"], scraper.now) if config.log.path else None

    def snapshot() -> Snapshot:
        seen = target.snapshot(
            scraper.now(), log=tail.facts() if tail is not None else None, tap=tap.facts() if tap is not None else None
        )
        return dataclasses.replace(seen, refused=server.refused(app))

    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(snapshot))
    ProcessCollector(registry=registry)
    app = server.make_app(
        config,
        metrics=lambda accept: render(registry, accept),
        state=lambda: state_of(snapshot()),
        snapshot=snapshot,
    )
    signals = _Signals()
    runner = await server.serve(app, config)
    if tap is not None:
        await tap.start()
    # What exists now lives until the end: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    running: list[asyncio.Task[None]] = [asyncio.create_task(scraper.run())]
    follow = asyncio.create_task(_follow(tail, scraper)) if tail is not None else None
    if follow is not None:
        running.append(follow)
    try:
        await signals.stop.wait()
        _log.info("stopping")
        # Until both have come to their end, sampler and server go on: a scrape sees what happens meanwhile. Then nobody
        # waits for one more scrape: it may be a minute away, and the end of the pod waits for this process.
        if tap is not None:
            await signals.unless_hurried(_end_streams(tap, config.tap))
        if tail is not None and follow is not None and scraper.tried.is_set():
            await signals.unless_hurried(_read_to_end(tail, follow))
    finally:
        if tap is not None:
            await tap.close(0.0)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await runner.cleanup()
    _log.info("stopped", extra={"fields": _counted(snapshot())})


async def _follow(tail: LogTail, scraper: Scraper) -> None:
    """Follow the log from the first sample on: before it, nobody knows whose streams they are."""
    await scraper.tried.wait()
    await tail.run()


async def _end_streams(tap: Tap, config: TapConfig) -> None:
    """Let what passes through the tap come to its end."""
    # An ordinary container is told to stop while clients still learn that its pod is leaving.
    await asyncio.sleep(config.stop_delay)
    await tap.close(config.drain_timeout)


async def _read_to_end(tail: LogTail, follow: asyncio.Task[None]) -> None:
    """Read what vLLM has written until now: as a native sidecar, this process is told to stop when vLLM has ended."""
    tail.finish()
    _, unfinished = await asyncio.wait((follow,), timeout=_LAST_LINES)
    if unfinished:
        _log.warning("log.path: what vLLM wrote last was not read to its end in time")


def _counted(snapshot: Snapshot) -> dict[str, int]:
    """How much was observed, for the last line of the log."""
    counted = {"samples": snapshot.samples}
    if snapshot.tap is not None:
        counted["responses"] = sum(snapshot.tap.responses.values())
    if snapshot.log is not None:
        counted |= {"log_lines": snapshot.log.lines, "log_lines_dropped": snapshot.log.dropped}
    return counted


class _Signals:
    """SIGTERM and SIGINT: the first one stops, the second one hurries."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self._hurry = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._came)
        loop.add_signal_handler(signal.SIGHUP, _say_that_nothing_is_reloaded)

    async def unless_hurried(self, work: Coroutine[object, object, None]) -> None:
        """Do something, but give it up at a second signal."""
        task, hurry = asyncio.create_task(work), asyncio.create_task(self._hurry.wait())
        await asyncio.wait((task, hurry), return_when=asyncio.FIRST_COMPLETED)
        for either in (task, hurry):
            either.cancel()
        await asyncio.gather(task, hurry, return_exceptions=True)

    def _came(self) -> None:
        if self.stop.is_set():
            self._hurry.set()
        self.stop.set()


def _say_that_nothing_is_reloaded() -> None:
    _log.warning("SIGHUP is ignored: restart to load a changed configuration")


def state_of(snapshot: Snapshot) -> dict[str, object]:
    """The snapshot as plain values for JSON, with the version that made it."""
    # Without the two that follow, which would be copied for nothing.
    state = {"version": __version__, **dataclasses.asdict(dataclasses.replace(snapshot, engines=(), streams=()))}
    state["engines"] = [_with_sums(engine) for engine in snapshot.engines]
    state["streams"] = [_without_histograms(streams) for streams in snapshot.streams]
    return state


def _with_sums(engine: EngineSnapshot) -> dict[str, object]:
    """Of lengths, how many and how many tokens."""
    plain = dataclasses.asdict(engine)
    for name, lengths in (("prompt_lengths", engine.prompt_lengths), ("output_lengths", engine.output_lengths)):
        plain[name] = None if lengths is None else {"count": lengths.count, "sum": lengths.sum}
    return plain


def _without_histograms(streams: StreamSnapshot) -> dict[str, object]:
    """JSON knows no infinite edge, and whoever wants a histogram reads the metrics."""
    plain = dataclasses.asdict(streams)
    del plain["gaps"], plain["longest_gaps"]
    return plain
