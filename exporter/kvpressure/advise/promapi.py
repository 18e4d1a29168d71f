"""Prometheus' HTTP API, as far as advice needs it: queries at one moment and over a range."""

import base64
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import requests
import urllib3

from kvpressure import __version__
from kvpressure.advise.access import Access
from kvpressure.advise.seen import AdviseError
from kvpressure.credentials import FileFault, read_secret, trust
from kvpressure.transport import within

_CHUNK = 65536
_MAX_BODY = 64 * 1024 * 1024
"""Bytes of one answer; a histogram over a day has some 3 MB."""
_SHOWN = 300
"""Characters of what Prometheus says of an error."""

Point = tuple[float, float]
"""Seconds since 1970, and the value."""


@dataclass(frozen=True, slots=True)
class Series:
    """
    One series of an answer.

    Args:
        labels: all of them, the name among them where the query kept it.
        points: in order of time; values can be NaN or infinite.
    """

    labels: Mapping[str, str]
    points: tuple[Point, ...]


class Prometheus:
    """
    One Prometheus, or whatever has its API: Thanos, Mimir, VictoriaMetrics.

    Close it, or use it in a ``with`` statement.

    Args:
        url: where its API is, without ``/api/v1``.
        access: what it wants to see.

    Raises:
        AdviseError: the URL or a file cannot be used.
    """

    def __init__(self, url: str, access: Access) -> None:
        self.url = _checked(url)
        self.notes: list[str] = []
        """What Prometheus warned of, and the proxy that was used, in whole sentences, each once."""
        self._timeout = access.timeout
        self._session = requests.Session()
        # Of the environment only a proxy is taken, and told of: a Prometheus is often far away. A .netrc is not, it
        # would send a password that nobody meant for it.
        self._session.trust_env = False
        self._session.proxies.update(self._proxies())
        self._session.headers["User-Agent"] = f"kvpressure/{__version__}"
        self._session.headers.update(dict(access.headers))
        self._session.verify = False if access.insecure else access.ca_file or True
        if access.insecure:
            # requests would say so on the terminal, once for each query.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            self._note("The certificate of Prometheus was not checked, as the flag says.")
        try:
            authorization = _authorization(access)
            if access.ca_file:
                trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "prometheus-ca-file", access.ca_file)
        except FileFault as fault:
            raise AdviseError(str(fault)) from fault
        if authorization:
            self._session.headers["Authorization"] = authorization
        # A proxy made for looking for faults answers with what it was sent.
        secrets = {authorization, authorization.partition(" ")[2], *(value for _, value in access.headers)}
        if access.user:
            secrets.add(read_secret("prometheus-password-file", access.password_file))
        self._secrets = sorted(secrets - {""}, key=len, reverse=True)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self._session.close()

    def at(self, query: str, t: float) -> list[Series]:
        """
        What a query gives at one moment: a vector, or the samples of a range selector.

        Raises:
            AdviseError: Prometheus does not answer, or refuses.
        """
        return self._ask("query", {"query": query, "time": f"{t:.3f}"})

    def over(self, query: str, start: float, end: float, step: float) -> list[Series]:
        """
        What a query gives every `step` seconds from `start` to `end`.

        Raises:
            AdviseError: Prometheus does not answer, or refuses.
        """
        span = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        return self._ask("query_range", {"query": query, **span})

    def _ask(self, what: str, parameters: dict[str, str]) -> list[Series]:
        try:
            status, body = self._fetch(f"{self.url}/api/v1/{what}", parameters)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as fault:
            raise AdviseError(f"{self.url}: {_reason(fault, self._timeout)}") from None
        answer = _json(body)
        if answer is None or answer.get("status") not in ("success", "error"):
            raise AdviseError(f"{self.url}: {_odd(status)}")
        if answer["status"] == "error":
            raise AdviseError(
                f"{self.url} refused a query: {self._said(answer.get('error'))} (query: {parameters['query']})"
            )
        warnings = answer.get("warnings")
        for warning in warnings if isinstance(warnings, list) else ():
            self._note(f"Prometheus warned: {self._said(warning)}.")
        try:
            return [series for series in map(_series, answer["data"]["result"]) if series.points]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise AdviseError(f"{self.url}: its answer is not what Prometheus' API gives") from None

    def _fetch(self, url: str, parameters: dict[str, str]) -> tuple[int, bytes]:
        """Status and body, which is bounded in bytes and in time."""
        return within(self._timeout, lambda: self._read(url, parameters))

    def _read(self, url: str, parameters: dict[str, str]) -> tuple[int, bytes]:
        with self._session.get(
            url, params=parameters, timeout=self._timeout, stream=True, allow_redirects=False
        ) as answer:
            body = bytearray()
            while chunk := answer.raw.read1(_CHUNK, decode_content=True):
                body += chunk
                if len(body) > _MAX_BODY:
                    raise AdviseError(f"{self.url} answered with more than {_MAX_BODY} bytes; choose a shorter range")
        return answer.status_code, bytes(body)

    def _said(self, text: object) -> str:
        """What Prometheus says, without what it was told in confidence."""
        said = str(text)
        for secret in self._secrets:
            said = said.replace(secret, "***")
        return _plain(said)

    def _proxies(self) -> dict[str, str]:
        """The proxy that the environment names for this address, if any."""
        found = requests.utils.get_environ_proxies(self.url)
        scheme = urlsplit(self.url).scheme
        proxy = found.get(scheme) or found.get("all")
        if not proxy:
            return {}
        self._note(
            f"Prometheus was asked through the proxy {_host(proxy)}, as the environment says; set no_proxy to go "
            "without it."
        )
        return {scheme: proxy}

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


def _host(proxy: str) -> str:
    """The host of a proxy's URL, or of an address without a scheme. What is wrong with it may hold a password."""
    try:
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    # SOCKS can be used where requests finds what it takes for that.
    if not host or not (parts.scheme in ("", "http", "https") or parts.scheme.startswith("socks")):
        raise AdviseError(
            "the proxy that the environment names for Prometheus is not the URL of one; correct it, or set no_proxy to "
            "go without it"
        )
    return host


def _checked(url: str) -> str:
    """The URL without a slash at its end."""
    # Before anything of it is shown: without a scheme, or with a slash in it, a password is not where it is looked for.
    if "@" in url:
        raise AdviseError("the URL of Prometheus holds a password, which others can see; give it in a file instead")
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises where it is none
    except ValueError:
        raise AdviseError("the URL of Prometheus cannot be read; give one like http://prometheus:9090") from None
    if parts.query or parts.fragment:
        raise AdviseError(
            "the URL of Prometheus must end with its path, without ? and #; give it as in http://host:9090"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AdviseError(f"{_plain(url)} is not the URL of a Prometheus; give one like http://prometheus:9090")
    return url.rstrip("/").removesuffix("/api/v1")


def _authorization(access: Access) -> str:
    if access.bearer_token_file:
        return f"Bearer {_ascii('prometheus-bearer-token-file', access.bearer_token_file)}"
    if access.user:
        password = read_secret("prometheus-password-file", access.password_file)
        return f"Basic {base64.b64encode(f'{access.user}:{password}'.encode()).decode()}"
    return ""


def _ascii(name: str, path: str) -> str:
    secret = read_secret(name, path)
    if not secret.isascii():
        raise FileFault(f"{name}: {path} must hold ASCII text")
    return secret


def _json(body: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _series(one: Mapping[str, Any]) -> Series:
    points = one["values"] if "values" in one else [one["value"]]
    # JSON can have halves of characters, which nothing can be asked for by.
    labels = {_whole(name): _whole(value) for name, value in one["metric"].items()}
    return Series(labels, tuple((float(t), float(value)) for t, value in points))


_STATUS = {
    401: "it wants a user or a token; see --help for the flags",
    403: "this user may not query it",
    404: "there is no Prometheus API there; is the path right?",
    405: "there is no Prometheus API there; is the path right?",
    429: "it has too many queries to answer; try again later",
    502: "a proxy before it cannot reach it",
    503: "it is not ready; try again later",
    504: "a proxy before it waited too long; choose a shorter range",
}
_REDIRECT = range(300, 400)


def _odd(status: int) -> str:
    """What an answer that is not the API's means."""
    if status in _REDIRECT:
        return f"it redirects elsewhere (status {status}); give the URL that it redirects to"
    if status == requests.codes.ok:
        return "its answer is not that of Prometheus' API; is this a Prometheus, and is the path right?"
    return f"it answered with status {status}: {_STATUS.get(status, 'is this a Prometheus?')}"


def _reason(fault: Exception, timeout: float) -> str:
    """What went wrong, without the request's insides."""
    if isinstance(fault, requests.exceptions.ProxyError | requests.exceptions.InvalidProxyURL):
        return "the proxy that the environment names cannot be used; set no_proxy to go without it"
    # The scheme of the URL itself is known to be one of HTTP.
    if isinstance(fault, requests.exceptions.InvalidSchema):
        return "the environment names a SOCKS proxy, which is not supported; set no_proxy to go without it"
    if isinstance(fault, requests.exceptions.InvalidURL | urllib3.exceptions.LocationValueError):
        return "its host, or that of the proxy which the environment names, has a name that no host can have"
    if isinstance(fault, requests.exceptions.SSLError):
        return "TLS failed: the certificate is not trusted, or the server does not speak TLS"
    if isinstance(fault, requests.Timeout | urllib3.exceptions.TimeoutError):
        return f"it did not answer within {timeout:g} s; choose a shorter range"
    if isinstance(fault, requests.ConnectionError):
        if "NameResolutionError" in repr(fault):
            return "the host name cannot be resolved"
        if "NewConnectionError" in repr(fault):
            return "nothing accepts a connection there; is Prometheus running, and is the port right?"
    return "the answer was broken off"


def _whole(text: object) -> str:
    return str(text).encode("utf-8", "replace").decode()


def _plain(text: object) -> str:
    """The beginning of a text, on one line and printable."""
    line = " ".join(str(text).split())[:_SHOWN]
    return "".join(letter if letter.isprintable() else "?" for letter in line)
