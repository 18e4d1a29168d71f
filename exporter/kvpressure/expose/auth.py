"""Basic auth with bcrypt hashes, cheap for the scraper that comes back and slow for whoever guesses."""

import asyncio
import base64
import binascii
import hmac
import logging
import secrets
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from functools import partial
from importlib import import_module
from typing import Any

from kvpressure.expose.webfile import WebFile
from kvpressure.log import RateLimitedLog
from kvpressure.settings import ConfigError

_log = logging.getLogger(__name__)

MAX_REMEMBERED = 256
"""Successful logins remembered; the oldest is forgotten first."""
MAX_CHECKS = 32
"""Logins that are being checked or wait for it; with bcrypt's usual cost of 10 the last of them waits two seconds."""
MAX_CHECKS_EACH = 4
"""Of them, those of one client: whoever guesses from one place leaves room for others."""
_BCRYPT_BYTES = 72  # what bcrypt looks at; htpasswd and exporter-toolkit ignore the rest too

Check = Callable[[bytes, bytes], bool]
"""Password and hash -> whether they belong together."""


class Answer(Enum):
    """What becomes of a request."""

    ALLOWED = auto()
    REFUSED = auto()
    """There is no login, or a wrong one."""
    BUSY = auto()
    """Too many logins wait to be checked; whether this one is right is not known."""


class BasicAuth:
    """
    Checks the Authorization header against the users of a web configuration file. While it has none, all are let in.

    Args:
        file: the web configuration file.

    Raises:
        ConfigError: there are users, but the bcrypt library is not installed.
    """

    def __init__(self, file: WebFile) -> None:
        self.refused = 0
        """Requests without a login or with a wrong one, so far."""
        self.busy = 0
        """Requests that were sent away because too many logins waited, so far."""
        self._file = file
        self._faults = RateLimitedLog(_log)
        self._users = file.settings.users
        self._check_password = _bcrypt(file.path) if self._users else None
        # A key of this process alone: what is remembered is of no use to whoever reads its memory elsewhere.
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, None] = {}
        self._checks: dict[bytes, asyncio.Future[bool]] = {}
        self._clients: Counter[str] = Counter()
        # One thread: guessing passwords may burn one core of the pod at most, and never the event loop's.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bcrypt")

    async def answer(self, header: str, client: str) -> Answer:
        """
        Whether a request is let in.

        Args:
            header: the value of Authorization, empty where there is none.
            client: where it comes from; kept while its login is checked, and told to nobody.
        """
        self._take_over_users()
        if not self._users or self._check_password is None:
            return Answer.ALLOWED
        login = _parse(header)
        if login is None:
            self.refused += 1
            return Answer.REFUSED
        user, password = login
        known = user in self._users
        hashed = self._users[user] if known else self._stand_in(user)
        seen = self._digest("login", user, hashed, password)
        # For a user whose name is gone the stand-in may be the very hash that he had: after he was renamed, for one.
        if known and seen in self._remembered:
            return Answer.ALLOWED
        check = self._checks.get(seen)
        if check is None:
            if len(self._checks) >= MAX_CHECKS or self._clients[client] >= MAX_CHECKS_EACH:
                self.busy += 1
                self._faults.warning("busy", "logins were sent away, as too many wait to be checked")
                return Answer.BUSY
            check = self._begin(self._check_password, password, hashed, client, seen)
        # Shielded: the same login may come once more meanwhile, and the first of its senders go.
        if not await asyncio.shield(check) or not known:
            self.refused += 1
            self._faults.warning("login", "a request with a wrong user name or password was refused")
            return Answer.REFUSED
        while len(self._remembered) >= MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[seen] = None
        return Answer.ALLOWED

    def close(self) -> None:
        """Give up checks that have not begun."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(
        self, check_password: Check, password: bytes, hashed: bytes, client: str, seen: bytes
    ) -> asyncio.Future[bool]:
        """Have a login checked when its turn comes."""
        check = asyncio.get_running_loop().run_in_executor(self._thread, _check, check_password, password, hashed)
        self._checks[seen] = check
        self._clients[client] += 1
        check.add_done_callback(partial(self._end, client, seen))
        return check

    def _end(self, client: str, seen: bytes, _done: asyncio.Future[bool]) -> None:
        del self._checks[seen]
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]

    def _stand_in(self, user: str) -> bytes:
        """
        Somebody's hash, for a user who does not exist.

        It takes as long to check, and always the same for the same name: not even where hashes differ in cost does the
        time tell who exists.
        """
        number = int.from_bytes(self._digest("stand-in", user), "big")
        return list(self._users.values())[number % len(self._users)]

    def _digest(self, *what: object) -> bytes:
        return hmac.digest(self._key, repr(what).encode(), "sha256")

    def _take_over_users(self) -> None:
        """Take over changed users, unless there are some and nothing that could check them."""
        users = self._file.settings.users
        if users is self._users:
            return
        try:
            self._check_password = _bcrypt(self._file.path) if users else None
        except ConfigError as fault:
            self._faults.warning("bcrypt", "keeping the earlier users", detail=str(fault))
        else:
            self._users = users


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


def _check(check_password: Check, password: bytes, hashed: bytes) -> bool:
    try:
        return check_password(password[:_BCRYPT_BYTES], hashed)
    except ValueError:  # a password that bcrypt cannot take is a wrong one
        return False


def _bcrypt(path: str) -> Check:
    try:
        library: Any = import_module("bcrypt")  # an extra: most exporters in a pod have no users
    except ImportError as fault:
        raise ConfigError(
            f"{path}: basic_auth_users needs the bcrypt library; install it with: pip install bcrypt"
        ) from fault
    check: Check = library.checkpw
    return check
