"""A headless Chromium, and the exporter's server on a thread beside it."""

import asyncio
import contextlib
import shutil
import threading

import pytest

from kvpressure.config import Config, WebConfig
from kvpressure.expose.page import routes
from kvpressure.expose.server import make_app, serve
from kvpressure.serve import state_of

WIDTHS = {"phone": (390, 844), "desk": (1440, 900)}
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@contextlib.contextmanager
def chromium():
    """A browser; a test that needs it is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright to drive a browser with")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("there is no Chromium: install the package chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield browser
        browser.close()


class Stage:
    """
    What the server shows: the last of some snapshots, with the others as its history.

    Args:
        snapshots: oldest first.
    """

    def __init__(self, snapshots):
        self.snapshots = snapshots
        self.now = snapshots[-1]
        self.url = ""

    @contextlib.contextmanager
    def served(self):
        """Serve it on a free port, until the block ends."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        runner = asyncio.run_coroutine_threadsafe(self._start(), loop).result(10)
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _start(self):
        config = Config(web=WebConfig(listen_address=("127.0.0.1:0",)))
        app = make_app(
            config,
            metrics=lambda _: (b"", "text/plain"),
            state=lambda: state_of(self.now),
            snapshot=lambda: self.now,
        )
        for snapshot in self.snapshots:
            app[routes._LIVE]._memory.record(snapshot)
        return await serve(app, config)
