"""
Files with secrets and certificates, for both sides: the client that reads vLLM and the server that Prometheus reads.

Every fault is a ``FileFault`` that names setting and file, and never repeats what the file holds.
"""

import os
import ssl
import stat

from kvpressure import files

Stamp = tuple[tuple[int, int, int, int] | None, ...]
"""Tells one version of some files from another. Each begins with the time of the last write, in ns since 1970."""

# OpenSSL's own measure of 112 bits. Where it ends for EC keys (224 bits) NIST ends too, so nothing is parsed here.
_STRENGTH = "DEFAULT:@SECLEVEL=2"
_WEAK = {
    "EE_KEY_TOO_SMALL": "has a key that is too weak",
    "CA_KEY_TOO_SMALL": "has an authority in its chain whose key is too weak",
    "CA_MD_TOO_WEAK": "is signed with a hash that is too weak",
}


class FileFault(Exception):  # noqa: N818  # a fault, like the other words for what goes wrong here
    """
    A file that cannot be used; the message is one sentence that names the setting and the file.

    Args:
        message: the sentence.
        missing: the file does not exist, so it may still come.
    """

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


def stamp(*paths: str) -> Stamp:
    """What changes when a file is written or replaced (Kubernetes swaps a symbolic link), or gets other permissions."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: str) -> tuple[int, int, int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116  # at every sample: Path costs more than the call
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def read_secret(name: str, path: str) -> str:
    """
    The secret in a file, without the white space around it.

    Args:
        name: the setting that the file belongs to.
        path: the file.

    Raises:
        FileFault: it cannot be read, is empty, or is not one line of UTF-8 text.
    """
    try:
        secret = files.read(path).decode("utf-8").strip()
    except OSError as fault:
        raise _unreadable(name, path, fault) from fault
    except UnicodeDecodeError:
        # Without its cause: that holds the bytes of the secret.
        raise FileFault(f"{name}: {path} is not UTF-8 text") from None
    if not secret:
        raise FileFault(f"{name}: {path} is empty")
    if not secret.isprintable():
        raise FileFault(f"{name}: {path} must hold one line of printable text")
    return secret


def trust(context: ssl.SSLContext, name: str, path: str) -> None:
    """
    Let `context` trust the certificate authorities in a PEM file.

    Raises:
        FileFault: it cannot be read, or holds no certificate.
    """
    _check_readable(name, path)
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as fault:
        raise FileFault(f"{name}: {path} holds no usable PEM certificate") from fault
    # As in Go: whatever is in the file is trusted, also a certificate that is not an authority.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN


def identify(context: ssl.SSLContext, cert: tuple[str, str], key: tuple[str, str]) -> None:
    """
    Let `context` show a certificate.

    Args:
        context: to be changed.
        cert: the setting's name and the PEM file with the certificate and its chain.
        key: the setting's name and the PEM file with the key, not encrypted.

    Raises:
        FileFault: a file cannot be read, they are not a certificate and its key, one of them is too weak, or everybody
            can read or write the key.
    """
    for name, path in (cert, key):
        _check_readable(name, path)
    # The strength of both is tried apart: how strong the other side has to be is not decided here.
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trial.set_ciphers(_STRENGTH)
    for each in (trial, context):
        _load(each, cert, key)
    _check_private(*key)


def _load(context: ssl.SSLContext, cert: tuple[str, str], key: tuple[str, str]) -> None:
    try:
        # An empty password: without one OpenSSL would ask for it on the terminal, and wait for ever.
        context.load_cert_chain(cert[1], key[1], password="")
    except (OSError, ValueError) as fault:
        weak = _WEAK.get(getattr(fault, "reason", None) or "")
        if weak:
            raise FileFault(
                f"{cert[0]}: {cert[1]} {weak}; make one with an RSA key of 2048 bits or an EC key of 256 bits or more, "
                "signed with SHA-256"
            ) from fault
        raise FileFault(
            f"{cert[0]}: {cert[1]} and {key[1]} are not a PEM certificate and its unencrypted key"
        ) from fault


def _check_private(name: str, path: str) -> None:
    """Refuse a key that everybody on the machine can read or replace; through symbolic links, as a Secret has them."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except OSError as fault:
        raise _unreadable(name, path, fault) from fault
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise FileFault(
            f"{name}: everybody can read or write the key {path}; chmod 640 it "
            "(in Kubernetes: defaultMode: 0440 and fsGroup)"
        )


def _check_readable(name: str, path: str) -> None:
    try:
        files.read(path)
    except OSError as fault:
        raise _unreadable(name, path, fault) from fault


def _unreadable(name: str, path: str, fault: OSError) -> FileFault:
    why = (fault.strerror or "unknown fault").lower()
    return FileFault(f"{name}: {path} cannot be read: {why}", missing=isinstance(fault, FileNotFoundError))
