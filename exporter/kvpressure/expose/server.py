"""The web server: the metrics, a state in JSON for people and tools, the page, and the two probes."""

import json
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from kvpressure.config import Config
from kvpressure.derive.snapshot import Snapshot
from kvpressure.expose import webconfig
from kvpressure.expose.auth import BasicAuth
from kvpressure.expose.page import routes
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
# aiohttp reports whatever a port scanner sends, in its own words and with a traceback; what a handler of ours
# raises is caught and logged by _errors below.
_http_log = logging.getLogger(f"{__name__}.http")
_http_log.setLevel(logging.CRITICAL + 1)

_METRICS: web.AppKey[MetricsSource] = web.AppKey("metrics")
_STATE: web.AppKey[StateSource] = web.AppKey("state")
_AUTH = web.AppKey("auth", BasicAuth)
_TLS = web.AppKey("tls", webconfig.ServerTls)
_FAULTS = web.AppKey("faults", RateLimitedLog)

_MAX_REQUEST_BODY = 64 * 1024  # bytes; no route reads one
_KEEP_ALIVE = 75.0  # seconds; longer than a usual scrape interval
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
    settings = webconfig.load(path)
    app = web.Application(middlewares=[_errors, _authenticate], client_max_size=_MAX_REQUEST_BODY)
    app[_METRICS], app[_STATE], app[_FAULTS] = metrics, state, RateLimitedLog(_log)
    if settings.tls is not None:
        app[_TLS] = webconfig.ServerTls(path, settings.tls)
    if path:
        app[_AUTH] = BasicAuth(path, settings.users)
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


async def serve(app: web.Application, config: Config) -> web.AppRunner:
    """
    Listen on every configured address until the runner's ``cleanup`` is awaited, which takes well under a second.

    Raises:
        ConfigError: an address cannot be listened on.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_http_log,
        keepalive_timeout=_KEEP_ALIVE,
        lingering_time=1.0,
        shutdown_timeout=_SHUTDOWN,
    )
    await runner.setup()
    tls = app[_TLS].context if _TLS in app else None
    try:
        for address in config.web.listen_address:
            await listen(runner, address, "web.listen-address", tls)
            _log.info("listening", extra={"fields": {"address": address, "tls": tls is not None}})
    except BaseException:
        await runner.cleanup()
        raise
    return runner


async def _get_metrics(request: web.Request) -> web.Response:
    body, content_type = request.app[_METRICS](",".join(request.headers.getall("Accept", [])))
    response = web.Response(body=body, headers={"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"})
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        response.enable_compression(web.ContentCoding.gzip)
    return response


async def _get_state(request: web.Request) -> web.Response:
    text = json.dumps(request.app[_STATE](), allow_nan=False)
    return web.Response(text=text + "\n", content_type="application/json")


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
    """Let in whom the web configuration file names; this covers every path, as in other exporters."""
    auth = request.app.get(_AUTH)
    if auth is None or await auth.allows(request.headers.get("Authorization", "")):
        return await handler(request)
    challenge = {"WWW-Authenticate": 'Basic realm="kvpressure", charset="UTF-8"'}
    return web.Response(status=401, text="unauthorized\n", headers=challenge)


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


async def _close_auth(app: web.Application) -> None:
    app[_AUTH].close()
