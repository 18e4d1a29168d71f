"""The web server: the metrics, a state in JSON for people and tools, the page, and the two probes."""

import json
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from kvpressure.config import Config
from kvpressure.derive.snapshot import Snapshot
from kvpressure.expose.auth import Answer, BasicAuth
from kvpressure.expose.families import plainest
from kvpressure.expose.guard import Guard, Runner
from kvpressure.expose.page import routes
from kvpressure.expose.reuse import Answers, Kept
from kvpressure.expose.webfile import WebFile
from kvpressure.expose.webtls import ServerTls
from kvpressure.listening import listen
from kvpressure.log import RateLimitedLog

MetricsSource = Callable[[str], tuple[bytes, str]]
"""Accept header -> body and its content type."""
StateSource = Callable[[], dict[str, object]]
"""The state, of values that JSON knows (no NaN, no infinity)."""
SnapshotSource = Callable[[], Snapshot]
"""A snapshot of now, for the page."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

STATE_PATH = "/api/v1/state"
HEALTHY_PATH = "/-/healthy"
READY_PATH = "/-/ready"

_log = logging.getLogger(__name__)

_METRICS: web.AppKey[MetricsSource] = web.AppKey("metrics")
_STATE: web.AppKey[StateSource] = web.AppKey("state")
_AUTH = web.AppKey("auth", BasicAuth)
_TLS = web.AppKey("tls", ServerTls)
_FILE = web.AppKey("file", WebFile)
_FAULTS = web.AppKey("faults", RateLimitedLog)
_GUARD = web.AppKey("guard", Guard)
_ANSWERS = web.AppKey("answers", Answers)

_MAX_REQUEST_BODY = 64 * 1024  # bytes; no route reads one
_SHUTDOWN = 0.2  # seconds; aiohttp waits up to twice as long for requests that are being answered
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": routes.CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "Server": "kvpressure",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_SHORT = {404: "not found", 405: "method not allowed"}


def make_app(
    config: Config, *, metrics: MetricsSource, state: StateSource, snapshot: SnapshotSource
) -> web.Application:
    """
    The application, not yet listening.

    Args:
        config: the whole configuration; the web section's file is read here.
        metrics: gives the exposition; called on the event loop at each scrape.
        state: gives the state; called on the event loop at each request.
        snapshot: takes a snapshot for the page; called on the event loop every five seconds, and every second while
            somebody looks.

    Raises:
        ConfigError: the web configuration file or a file that it names cannot be used.
    """
    path = config.web.config_file
    app = web.Application(middlewares=[_errors, _authenticate, _limit], client_max_size=_MAX_REQUEST_BODY)
    app[_METRICS], app[_STATE], app[_FAULTS] = metrics, state, RateLimitedLog(_log)
    app[_GUARD], app[_ANSWERS] = Guard(config.web), Answers()
    if path:
        app[_FILE] = file = WebFile(path)
        if file.settings.tls is not None:
            app[_TLS] = ServerTls(file)
        app[_AUTH] = BasicAuth(file)
        app.on_cleanup.append(_close_auth)
    app.on_response_prepare.append(_add_headers)
    app.add_routes(
        [
            web.get(config.web.telemetry_path, _get_metrics),
            web.get(STATE_PATH, _get_state),
            web.get(HEALTHY_PATH, _get_healthy),
            web.get(READY_PATH, _get_ready),
        ]
    )
    links = {
        config.web.telemetry_path: "the metrics, for Prometheus",
        STATE_PATH: "the state and the evidence behind the verdict, as JSON",
        HEALTHY_PATH: "answers while the exporter runs",
        READY_PATH: "answers once the configuration is loaded",
    }
    routes.add(app, config, snapshot, links)
    return app


def refused(app: web.Application) -> dict[str, int]:
    """What has been refused so far, by reason: connections, requests and logins."""
    counts = dict(app[_GUARD].refused)
    auth = app.get(_AUTH)
    return counts if auth is None else counts | {"login": auth.refused + auth.busy}


async def serve(app: web.Application, config: Config) -> web.AppRunner:
    """
    Listen on every configured address until the runner's ``cleanup`` is awaited, which takes well under a second.

    Raises:
        ConfigError: an address cannot be listened on.
    """
    tls = app[_TLS].context if _TLS in app else None
    runner = Runner(app, app[_GUARD], tls, _HEADERS, _SHUTDOWN)
    await runner.setup()
    try:
        for address in config.web.listen_address:
            await listen(runner, address, "web.listen-address")
            _log.info("listening", extra={"fields": {"address": address, "tls": tls is not None}})
    except BaseException:
        await runner.cleanup()
        raise
    return runner


async def _get_metrics(request: web.Request) -> web.Response:
    accept = plainest(",".join(request.headers.getall("Accept", [])))
    kept = request.app[_ANSWERS].get(f"metrics {accept}", lambda: Kept(*request.app[_METRICS](accept)))
    return kept.answer(request, vary="Accept, Accept-Encoding")


async def _get_state(request: web.Request) -> web.Response:
    return request.app[_ANSWERS].get(STATE_PATH, lambda: _state(request.app[_STATE]())).plain()


def _state(state: dict[str, object]) -> Kept:
    return Kept(f"{json.dumps(state, allow_nan=False)}\n".encode(), "application/json; charset=utf-8")


async def _get_healthy(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _get_ready(_request: web.Request) -> web.Response:
    """Ready means that the configuration is loaded. It never depends on vLLM: a sidecar's readiness gates its pod."""
    return web.Response(text="ready\n")


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer in a few plain words whatever goes wrong."""
    try:
        return await handler(request)
    except web.HTTPException as fault:
        allow = {"Allow": fault.headers["Allow"]} if "Allow" in fault.headers else None
        text = _SHORT.get(fault.status, fault.reason.lower())
        return web.Response(status=fault.status, text=text + "\n", headers=allow)
    except Exception as fault:  # noqa: BLE001  # a scrape that fails must not show the client our insides
        route = request.match_info.route.resource
        path = route.canonical if route else ""
        request.app[_FAULTS].warning(path, "a request could not be answered", path=path, error=fault)
        return web.Response(status=500, text="the exporter could not answer this; its log says why\n")


@web.middleware
async def _authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let in whom the web configuration file names, on every path but one: a kubelet cannot log in to its probe."""
    auth = request.app.get(_AUTH)
    if auth is None or request.match_info.handler is _get_healthy:
        return await handler(request)
    answer = await auth.answer(request.headers.get("Authorization", ""), request.remote or "")
    if answer is Answer.ALLOWED:
        return await handler(request)
    if answer is Answer.BUSY:
        text = "too many logins are being checked; try again\n"
        return web.Response(status=503, text=text, headers={"Retry-After": "1"})
    challenge = {"WWW-Authenticate": 'Basic realm="kvpressure", charset="UTF-8"'}
    return web.Response(status=401, text="unauthorized\n", headers=challenge)


@web.middleware
async def _limit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Make no more answers than are read. It comes after the login, so that whoever has none can hold nobody up."""
    # A probe's answer is a word, and without it the pod would be restarted.
    if request.match_info.handler in (_get_healthy, _get_ready) or request.app[_GUARD].admit():
        return await handler(request)
    text = "too many answers are not being read; try again\n"
    return web.Response(status=503, text=text, headers={"Retry-After": "1"})


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    file = request.app.get(_FILE)
    if file is not None:
        response.headers.update(file.settings.headers)


async def _close_auth(app: web.Application) -> None:
    app[_AUTH].close()
