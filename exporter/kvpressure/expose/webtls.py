"""The server's side of TLS: each connection is made of the settings and the certificate files as they are then."""

import ipaddress
import logging
import ssl
from typing import Any, Self

from kvpressure.credentials import FileFault, Stamp, identify, stamp, trust
from kvpressure.expose.webconfig import TlsSettings
from kvpressure.expose.webfile import WebFile
from kvpressure.log import RateLimitedLog
from kvpressure.settings import ConfigError

_log = logging.getLogger(__name__)

# For TLS 1.2; whoever speaks 1.3 has better anyway. Level 2 is OpenSSL's own measure of 112 bits: it refuses,
# of clients too, RSA keys under 2048 bits, EC keys under 224 bits and certificates signed over MD5 or SHA-1.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:@SECLEVEL=2"


class ServerTls:
    """
    TLS for a listening socket. What changes, in the section or in a file that it names, holds from the next handshake.

    Args:
        file: the web configuration file; it has a TLS section.

    Raises:
        ConfigError: there is no TLS section, or a file that it names cannot be used.
    """

    def __init__(self, file: WebFile) -> None:
        self._file = file
        self._faults = RateLimitedLog(_log)
        settings, now = self._now()
        try:
            self._current = _make(settings)
        except FileFault as fault:
            raise ConfigError(f"{file.path}: {fault}") from fault
        self._made_of = settings, now
        self.context: ssl.SSLContext = _EachConnection(self)
        """For the listening socket, for good."""

    def current(self) -> ssl.SSLContext:
        """For the next handshake."""
        now = self._now()
        if now != self._made_of:
            # Remembered before the attempt: what is broken is tried again when it changes, not each time.
            self._made_of = now
            try:
                self._current = _make(now[0])
            except FileFault as fault:
                self._faults.warning("tls", "keeping the earlier TLS settings", detail=f"{self._file.path}: {fault}")
            else:
                _log.info("certificate files read again")
        return self._current

    def _now(self) -> tuple[TlsSettings, Stamp]:
        """Everything that a context is made of."""
        settings = self._file.settings.tls
        if settings is None:
            raise ConfigError(f"{self._file.path}: tls_server_config is missing")
        return settings, stamp(settings.cert_file, settings.key_file, settings.client_ca_file)


class _EachConnection(ssl.SSLContext):
    """
    Leaves every connection to the newest context.

    OpenSSL can move a connection to another context when the client's hello has come, but then takes only the
    certificates of it: not who must show one, and not the lowest version. So the choice is made before.
    """

    _tls: ServerTls

    def __new__(cls, _tls: ServerTls) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:  # noqa: ANN401  # as it is declared below us
        """Begin a connection."""
        return self._tls.current().wrap_bio(*args, **kwargs)


class _Connection(ssl.SSLObject):
    """A connection that ends with the handshake where the client's certificate has none of the allowed names."""

    allowed: frozenset[str]

    def do_handshake(self) -> None:
        """As it is declared below us."""
        super().do_handshake()
        if self.allowed.isdisjoint(_names(self.getpeercert())):
            raise ssl.SSLError("no alternative name of the client's certificate is allowed")


def _make(settings: TlsSettings) -> ssl.SSLContext:
    """
    A context.

    Raises:
        FileFault: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = settings.minimum, settings.maximum
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.verify_mode = settings.client_auth
    section = "tls_server_config"
    identify(context, (f"{section}.cert_file", settings.cert_file), (f"{section}.key_file", settings.key_file))
    if settings.client_ca_file:
        trust(context, f"{section}.client_ca_file", settings.client_ca_file)
    if settings.allowed_sans:
        kind = type("_Connection", (_Connection,), {"allowed": settings.allowed_sans})
        context.sslobject_class = kind
    return context


def _names(certificate: Any) -> set[str]:  # noqa: ANN401  # of nested tuples, as ssl gives it
    """A certificate's alternative names, IP addresses spelled as Go spells them."""
    names = set()
    for kind, name in (certificate or {}).get("subjectAltName", ()):
        try:
            names.add(str(ipaddress.ip_address(name.strip())) if kind == "IP Address" else name)
        except ValueError:  # not an address, whatever the certificate says
            continue
    return names
