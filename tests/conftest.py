# small helpers, named for what they do
"""A certificate authority for the tests of both sides of TLS, and a log that can be read back."""

import datetime as dt
import io
import ipaddress
import logging
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kvpressure import log
from kvpressure.config import LogConfig


class Authority:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test authority")
        self._own = self._build(self._name, self._key, [], authority=True)
        self.file = str(folder / "ca.pem")
        Path(self.file).write_bytes(_pem(self._own))

    def issue(self, name: str, *hosts: str) -> tuple[str, str]:
        """The PEM files of a new certificate and its key; `hosts` are host names and IP addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        cert = self._build(_name(name), key, [_host(host) for host in hosts], authority=False)
        files = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        files[0].write_bytes(_pem(cert))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return str(files[0]), str(files[1])

    def _build(self, subject, key, hosts, *, authority):
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if authority:
            builder = builder.add_extension(_SIGNS, critical=True)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        return builder.sign(self._key, hashes.SHA256())


_SIGNS = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def _name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text):
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(cert):
    return cert.public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="session")
def authority(tmp_path_factory) -> Authority:
    """An authority that nobody trusts unless told to."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def logged():
    """Everything the process logs, at debug, as the exporter writes it."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.getLogger("asyncio").level
    stream = io.StringIO()
    log.setup(LogConfig(level="debug"), stream)
    yield stream
    root.handlers[:], level, asyncio_level = before
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel(asyncio_level)
