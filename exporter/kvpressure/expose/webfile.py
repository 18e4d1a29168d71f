"""The web configuration file as it stands now: whoever asks for the settings gets those of its newest good version."""

import logging
import os
import stat
import time
from dataclasses import replace

from kvpressure.credentials import stamp
from kvpressure.expose import webconfig
from kvpressure.expose.webconfig import WebSettings
from kvpressure.log import RateLimitedLog
from kvpressure.settings import ConfigError

_log = logging.getLogger(__name__)

SETTLED = 1.0
"""
Seconds that a changed file must have stood still before it counts. A file that an editor is still writing can be good
YAML and lack its last lines: the users, or the demand for a client certificate.
"""


class WebFile:
    """
    Reads the file again when it changes. One that cannot be used changes nothing: locked stays locked.

    Args:
        path: the file.

    Raises:
        ConfigError: it cannot be read, or a key or value is unknown or not supported.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._faults = RateLimitedLog(_log)
        self._stamp = stamp(path)
        self._settings = webconfig.load(path)
        self._warned = False
        self._warn_of_readers()

    @property
    def settings(self) -> WebSettings:
        """What the file says. It is the same object until the file changes."""
        now = stamp(self.path)
        if now != self._stamp and not _may_be_half_written(now[0]):
            # Remembered before the attempt: a file that is broken is tried again when it changes, not each time.
            self._stamp = now
            self._read_again()
        return self._settings

    def _read_again(self) -> None:
        try:
            settings = webconfig.load(self.path)
        except ConfigError as fault:
            self._faults.warning("reread", "keeping the earlier web configuration", detail=str(fault))
            return
        if (settings.tls is None) != (self._settings.tls is None):
            self._faults.warning(
                "switch", "TLS cannot be switched on or off without a restart; it stays as it was", file=self.path
            )
            settings = replace(settings, tls=self._settings.tls)
        self._settings = settings
        self._warn_of_readers()
        _log.info("web configuration read again")

    def _warn_of_readers(self) -> None:
        """Say once that everybody can read the hashes. No reason to refuse: other exporters take such a file too."""
        if self._warned or not self._settings.users:
            return
        try:
            mode = os.stat(self.path).st_mode  # noqa: PTH116
        except OSError:
            return
        if mode & stat.S_IROTH:
            self._warned = True
            _log.warning(
                "everybody can read the hashes of passwords in the web configuration file; chmod 640 it "
                "(in Kubernetes: defaultMode: 0440 and fsGroup)",
                extra={"fields": {"file": self.path}},
            )


def _may_be_half_written(version: tuple[int, ...] | None) -> bool:
    """Whether a file was written just now. A time in the future is that of another clock and tells nothing."""
    return version is not None and 0 <= time.time() - version[0] / 1e9 < SETTLED
