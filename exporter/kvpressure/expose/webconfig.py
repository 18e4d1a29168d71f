"""
exporter-toolkit's web configuration file: TLS and basic auth, as operators know them from other exporters.

Keys that Python's ssl cannot honour are refused, never ignored: a lock that does not lock is worse than none.
"""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kvpressure import yamlfile
from kvpressure.settings import ConfigError, shown

_T = TypeVar("_T")

_SECTIONS = ("tls_server_config", "http_server_config", "basic_auth_users")
_UNSUPPORTED_SECTIONS = ("rate_limit",)
_TLS_TEXTS = ("cert_file", "key_file", "client_auth_type", "client_ca_file", "min_version", "max_version")
_TLS_KEYS = (*_TLS_TEXTS, "client_allowed_sans")
_UNSUPPORTED_TLS_KEYS = (
    # Python's ssl takes a certificate and its key from files only.
    "cert",
    "key",
    "client_ca",
    # Go's names and Go's order of preference; what is offered is chosen in webtls.py.
    "cipher_suites",
    "prefer_server_cipher_suites",
    "curve_preferences",
)
# exporter-toolkit's list, and the values that it takes where they are few.
_HEADERS: Mapping[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
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
        allowed_sans: a client's certificate must have one of these alternative names; empty for any.
        minimum: the lowest TLS version accepted.
        maximum: the highest.
    """

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    allowed_sans: frozenset[str] = frozenset()
    minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    maximum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3


@dataclass(frozen=True, slots=True)
class WebSettings:
    """
    The whole file.

    Args:
        tls: None for plain HTTP.
        users: bcrypt hashes by user name; empty for no authentication.
        headers: of every answer, in place of what the exporter would send by itself.
    """

    tls: TlsSettings | None = None
    users: Mapping[str, bytes] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


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
    _check_keys(path, "http_server_config.", http, ("http2", "headers"), ())
    if http.get("http2", False) is not False:
        raise ConfigError(f"{path}: http_server_config.http2: only false is supported")
    users = _section(path, document, "basic_auth_users")
    return WebSettings(
        tls=_tls(path, _section(path, document, "tls_server_config")),
        users={_user(path, name): _hash(path, name, hashed) for name, hashed in users.items()},
        headers=_headers(path, http.get("headers")),
    )


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
    for key in _TLS_TEXTS:
        value = section.get(key, "none")
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
    versions = [
        _one_of(path, prefix + key, section.get(key, default), _VERSIONS)
        for key, default in (("min_version", "TLS12"), ("max_version", "TLS13"))
    ]
    if versions[0] > versions[1]:
        raise ConfigError(f"{path}: {prefix}max_version must not be lower than min_version")
    folder = Path(path).parent
    return TlsSettings(
        cert_file=str(folder / section["cert_file"]),
        key_file=str(folder / section["key_file"]),
        client_ca_file=str(folder / section["client_ca_file"]) if "client_ca_file" in section else "",
        client_auth=client_auth,
        allowed_sans=_allowed_sans(path, section, client_auth),
        minimum=versions[0],
        maximum=versions[1],
    )


def _allowed_sans(path: str, section: dict[Any, Any], client_auth: ssl.VerifyMode) -> frozenset[str]:
    name = "tls_server_config.client_allowed_sans"
    if "client_allowed_sans" not in section:
        return frozenset()
    names = section["client_allowed_sans"]
    # An empty list could be read as nobody or as everybody.
    if not isinstance(names, list) or not names or not all(isinstance(each, str) and each for each in names):
        raise ConfigError(f"{path}: {name} must be a list of at least one name, each as text")
    if client_auth is not ssl.CERT_REQUIRED:
        raise ConfigError(f"{path}: {name} needs client_auth_type: RequireAndVerifyClientCert")
    return frozenset(names)


def _headers(path: str, section: object) -> dict[str, str]:
    """The headers that are set; one that is left blank stays the exporter's own."""
    name = "http_server_config.headers"
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise ConfigError(f"{path}: {name} must be a mapping, not {type(section).__name__}")
    for key, value in section.items():
        if key not in _HEADERS:
            raise ConfigError(
                f"{path}: {name}.{shown(key)[1:-1]} cannot be configured; those that can are {', '.join(_HEADERS)}"
            )
        if not isinstance(value, str) or not value.isascii() or not (value.isprintable() or not value):
            raise ConfigError(f"{path}: {name}.{key} must be text of one line in ASCII")
        allowed = _HEADERS[key]
        if allowed and value not in allowed:
            raise ConfigError(f"{path}: {name}.{key}: {shown(value)} is not one of {', '.join(allowed)}")
    return {key: value for key, value in section.items() if value.strip()}


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
