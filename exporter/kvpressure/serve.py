"""`kvpressure serve`: sampler, pipeline and server put together, until a signal ends it."""

import asyncio
import contextlib
import dataclasses
import gc
import logging
import signal

from prometheus_client import CollectorRegistry, ProcessCollector

from kvpressure import __version__, files, log
from kvpressure.config import Config, settings
from kvpressure.derive.snapshot import Snapshot
from kvpressure.derive.target import Target
from kvpressure.expose import server
from kvpressure.expose.families import SnapshotCollector, render
from kvpressure.observe.scraper import Scraper
from kvpressure.settings import ConfigError

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
    await Scraper(config.vllm, Target(config)).close()
    server.make_app(config, metrics=lambda _: (b"", ""), state=dict)


async def _run(config: Config) -> None:
    target = Target(config)
    scraper = Scraper(config.vllm, target)

    def snapshot() -> Snapshot:
        return target.snapshot(scraper.now())

    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(snapshot))
    ProcessCollector(registry=registry)
    app = server.make_app(config, metrics=lambda accept: render(registry, accept), state=lambda: state_of(snapshot()))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _say_that_nothing_is_reloaded)
    runner = await server.serve(app, config)
    # What exists now lives until the end: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    sampling = asyncio.create_task(scraper.run())
    try:
        await stop.wait()
        _log.info("stopping")
    finally:
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling
        await runner.cleanup()


def _say_that_nothing_is_reloaded() -> None:
    _log.warning("SIGHUP is ignored: restart to load a changed configuration")


def state_of(snapshot: Snapshot) -> dict[str, object]:
    """The snapshot as plain values for JSON, with the version that made it."""
    return {"version": __version__, **dataclasses.asdict(snapshot)}
