"""
exporter-toolkit's web configuration file: TLS and basic auth, as operators know them from other exporters.

Keys that Python's ssl cannot honour are refused, never ignored: a lock that does not lock is worse than none.
"""

import logging
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kvpressure import yamlfile
from kvpressure.credentials import FileFault, identify, stamp, trust
from kvpressure.log import RateLimitedLog
from kvpressure.settings import ConfigError, shown

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_SECTIONS = ("tls_server_config", "http_server_config", "basic_auth_users")
_UNSUPPORTED_SECTIONS = ("rate_limit",)
_TLS_KEYS = ("cert_file", "key_file", "client_auth_type", "client_ca_file", "min_version")
_UNSUPPORTED_TLS_KEYS = (
    "cert",
    "key",
    "client_ca",
    "client_allowed_sans",
    "max_version",
    "cipher_suites",
    "prefer_server_cipher_suites",
    "curve_preferences",
)
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
# Python's ssl cannot ask for a certificate without verifying it.
_UNSUPPORTED_CLIENT_AUTH = ("RequestClientCert", "RequireAnyClientCert")
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_BCRYPT = re.compile(r"\$2[aby]\$(?:0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """
    The section ``tls_server_config``.

    Args:
        cert_file: PEM certificate and chain, absolute or relative to the working directory, like all paths here.
        key_file: its PEM key.
        client_ca_file: PEM authorities that client certificates are checked against; empty for none.
        client_auth: whether a client must show a certificate.
        minimum: the lowest TLS version accepted.
    """

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2


@dataclass(frozen=True, slots=True)
class WebSettings:
    """
    The whole file.

    Args:
        tls: None for plain HTTP.
        users: bcrypt hashes by user name; empty for no authentication.
    """

    tls: TlsSettings | None = None
    users: Mapping[str, bytes] = field(default_factory=dict)


def load(path: str) -> WebSettings:
    """
    Read a web configuration file; an empty path gives plain HTTP without authentication.

    Raises:
        ConfigError: the file cannot be read, or a key or value is unknown or not supported.
    """
    if not path:
        return WebSettings()
    document = yamlfile.read(path)
    _check_keys(path, "", document, _SECTIONS, _UNSUPPORTED_SECTIONS)
    http = _section(path, document, "http_server_config")
    _check_keys(path, "http_server_config.", http, ("http2",), ("headers",))
    if http.get("http2", False) is not False:
        raise ConfigError(f"{path}: http_server_config.http2: only false is supported")
    users = _section(path, document, "basic_auth_users")
    return WebSettings(
        tls=_tls(path, _section(path, document, "tls_server_config")),
        users={_user(path, name): _hash(path, name, hashed) for name, hashed in users.items()},
    )


class ServerTls:
    """
    The server's side of TLS; files that change are read again at the next handshake.

    Args:
        path: the web configuration file, for messages.
        settings: its TLS section.

    Raises:
        ConfigError: a file cannot be used.
    """

    def __init__(self, path: str, settings: TlsSettings) -> None:
        self._path = path
        self._settings = settings
        self._faults = RateLimitedLog(_log)
        self._stamp = self._stamp_now()
        try:
            self._current = self._make()
        except FileFault as fault:
            raise ConfigError(f"{path}: {fault}") from fault
        self.context = self._current
        """For the listening socket. It stays the same object: each connection is moved on to the newest files."""
        self.context.sni_callback = self._on_handshake

    def _on_handshake(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called at every client hello, also without a server name in it."""
        now = self._stamp_now()
        if now != self._stamp:
            # Remembered before the attempt: a file that is broken is tried again when it changes, not each time.
            self._stamp = now
            try:
                self._current = self._make()
            except FileFault as fault:
                self._faults.warning("tls", "keeping the earlier certificate", detail=f"{self._path}: {fault}")
            else:
                _log.info("certificate files read again")
        connection.context = self._current

    def _stamp_now(self) -> object:
        return stamp(self._settings.cert_file, self._settings.key_file, self._settings.client_ca_file)

    def _make(self) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = settings.minimum
        context.verify_mode = settings.client_auth
        section = "tls_server_config"
        identify(context, (f"{section}.cert_file", settings.cert_file), (f"{section}.key_file", settings.key_file))
        if settings.client_ca_file:
            trust(context, f"{section}.client_ca_file", settings.client_ca_file)
        return context


def _section(path: str, document: dict[Any, Any], name: str) -> dict[Any, Any]:
    section = document.get(name)
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise ConfigError(f"{path}: {name} must be a mapping, not {type(section).__name__}")
    return section


def _check_keys(
    path: str, prefix: str, section: dict[Any, Any], known: tuple[str, ...], unsupported: tuple[str, ...]
) -> None:
    for key in section:
        if key in unsupported:
            raise ConfigError(f"{path}: {prefix}{key} is not supported by kvpressure; remove it")
        if key not in known:
            raise ConfigError(f"{path}: unknown key {prefix}{shown(key)[1:-1]}; known are {', '.join(known)}")


def _tls(path: str, section: dict[Any, Any]) -> TlsSettings | None:
    if not section:
        return None
    prefix = "tls_server_config."
    _check_keys(path, prefix, section, _TLS_KEYS, _UNSUPPORTED_TLS_KEYS)
    for key, value in section.items():
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{path}: {prefix}{key} must be text, not {shown(value)}")
    for key in ("cert_file", "key_file"):
        if key not in section:
            raise ConfigError(f"{path}: {prefix}{key} is missing")
    auth = section.get("client_auth_type", "NoClientCert")
    if auth in _UNSUPPORTED_CLIENT_AUTH:
        raise ConfigError(
            f"{path}: {prefix}client_auth_type: {auth} is not supported, as it verifies nothing; "
            "use RequireAndVerifyClientCert"
        )
    client_auth = _one_of(path, f"{prefix}client_auth_type", auth, _CLIENT_AUTH)
    if client_auth is not ssl.CERT_NONE and "client_ca_file" not in section:
        raise ConfigError(f"{path}: {prefix}client_auth_type: {auth} needs client_ca_file")
    if client_auth is ssl.CERT_NONE and "client_ca_file" in section:
        raise ConfigError(f"{path}: {prefix}client_ca_file has no effect without client_auth_type")
    folder = Path(path).parent
    return TlsSettings(
        cert_file=str(folder / section["cert_file"]),
        key_file=str(folder / section["key_file"]),
        client_ca_file=str(folder / section["client_ca_file"]) if "client_ca_file" in section else "",
        client_auth=client_auth,
        minimum=_one_of(path, f"{prefix}min_version", section.get("min_version", "TLS12"), _VERSIONS),
    )


def _one_of(path: str, name: str, value: str, allowed: Mapping[str, _T]) -> _T:
    if value not in allowed:
        raise ConfigError(f"{path}: {name}: {shown(value)} is not one of {', '.join(allowed)}")
    return allowed[value]


def _user(path: str, name: object) -> str:
    if not isinstance(name, str) or not name or ":" in name:
        raise ConfigError(f"{path}: basic_auth_users: {shown(name)} must be a user name, as text without a colon")
    return name


def _hash(path: str, name: object, hashed: object) -> bytes:
    """The hash; it is a secret, so no message repeats it."""
    if not isinstance(hashed, str) or not _BCRYPT.fullmatch(hashed):
        raise ConfigError(f"{path}: basic_auth_users.{name} is not a bcrypt hash; make one with: htpasswd -nB {name}")
    return hashed.encode("ascii")
