"""Basic auth with bcrypt hashes, cheap for the scraper that comes back and slow for whoever guesses."""

import asyncio
import base64
import binascii
import hmac
import logging
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from kvpressure.credentials import stamp
from kvpressure.expose import webconfig
from kvpressure.log import RateLimitedLog
from kvpressure.settings import ConfigError

_log = logging.getLogger(__name__)

MAX_REMEMBERED = 256
"""Successful logins remembered; the oldest is forgotten first."""
_BCRYPT_BYTES = 72  # what bcrypt looks at; htpasswd and exporter-toolkit ignore the rest too


class BasicAuth:
    """
    Checks the Authorization header against the users of a web configuration file, which is read again when it changes.

    Args:
        path: the file.
        users: what the file holds now: bcrypt hashes by user name. While there are none, everybody is let in.

    Raises:
        ConfigError: there are users, but the bcrypt library is not installed.
    """

    def __init__(self, path: str, users: Mapping[str, bytes]) -> None:
        self._path = path
        self._stamp = stamp(path)
        self._users = users
        self._faults = RateLimitedLog(_log)
        self._check_password = _bcrypt(path) if users else None
        # A key of this process alone: what is remembered is of no use to whoever reads its memory elsewhere.
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, None] = {}
        # One thread: guessing passwords may burn one core of the pod at most, and never the event loop's.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bcrypt")

    async def allows(self, header: str) -> bool:
        """Whether the value of an Authorization header (empty where there is none) lets its sender in."""
        self._reread()
        if not self._users or self._check_password is None:
            return True
        login = _parse(header)
        if login is None:
            return False
        user, password = login
        # An unknown user is checked too, against somebody's hash: the answer takes as long as for a wrong password.
        hashed = self._users.get(user) or next(iter(self._users.values()))
        seen = hmac.digest(self._key, repr((user, hashed, password)).encode(), "sha256")
        if seen in self._remembered:
            return True
        loop = asyncio.get_running_loop()
        right = await loop.run_in_executor(self._thread, _check, self._check_password, password, hashed)
        if not right or user not in self._users:
            self._faults.warning("login", "a request with a wrong user name or password was refused")
            return False
        while len(self._remembered) >= MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[seen] = None
        return True

    def close(self) -> None:
        """Give up checks that have not begun."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _reread(self) -> None:
        """Take over changed users. A file that cannot be used changes nothing: locked stays locked."""
        now = stamp(self._path)
        if now == self._stamp:
            return
        self._stamp = now
        try:
            users = webconfig.load(self._path).users
            self._check_password = _bcrypt(self._path) if users else None
        except ConfigError as fault:
            self._faults.warning("reread", "keeping the earlier users", detail=str(fault))
        else:
            self._users = users
            _log.info("users read again")


def _parse(header: str) -> tuple[str, bytes] | None:
    """User and password of a Basic header, or None where it is none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode("utf-8"), password) if colon else None
    except (binascii.Error, ValueError):
        return None


def _check(check_password: Callable[[bytes, bytes], bool], password: bytes, hashed: bytes) -> bool:
    try:
        return check_password(password[:_BCRYPT_BYTES], hashed)
    except ValueError:  # a password that bcrypt cannot take is a wrong one
        return False


def _bcrypt(path: str) -> Callable[[bytes, bytes], bool]:
    try:
        library: Any = import_module("bcrypt")  # an extra: most exporters in a pod have no users
    except ImportError as fault:
        raise ConfigError(
            f"{path}: basic_auth_users needs the bcrypt library; install it with: pip install bcrypt"
        ) from fault
    check: Callable[[bytes, bytes], bool] = library.checkpw
    return check
