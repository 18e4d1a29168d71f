"""
Files with secrets and certificates, for both sides: the client that reads vLLM and the server that Prometheus reads.

Every fault is a ``FileFault`` that names setting and file, and never repeats what the file holds.
"""

import os
import ssl

from kvpressure import files

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Tells one version of some files from another."""


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
    """What changes when one of the files is written or replaced (Kubernetes swaps a symbolic link)."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116  # at every sample: Path costs more than the call
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


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
        FileFault: a file cannot be read, or they are not a certificate and its key.
    """
    for name, path in (cert, key):
        _check_readable(name, path)
    try:
        # An empty password: without one OpenSSL would ask for it on the terminal, and wait for ever.
        context.load_cert_chain(cert[1], key[1], password="")
    except (OSError, ValueError) as fault:
        raise FileFault(
            f"{cert[0]}: {cert[1]} and {key[1]} are not a PEM certificate and its unencrypted key"
        ) from fault


def _check_readable(name: str, path: str) -> None:
    try:
        files.read(path)
    except OSError as fault:
        raise _unreadable(name, path, fault) from fault


def _unreadable(name: str, path: str, fault: OSError) -> FileFault:
    why = (fault.strerror or "unknown fault").lower()
    return FileFault(f"{name}: {path} cannot be read: {why}", missing=isinstance(fault, FileNotFoundError))
