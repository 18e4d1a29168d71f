"""Listening on a configured address, and saying in one sentence why that cannot be."""

import errno
import os
import socket

from aiohttp import web

from kvpressure.settings import ConfigError, shown, split_address


async def listen(runner: web.BaseRunner, address: str, setting: str, backlog: int = 128) -> None:
    """
    Listen for a runner.

    Args:
        runner: is set up.
        address: as `split_address` takes it.
        setting: where it was configured, for the sentence.
        backlog: connections that may wait to be accepted.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    host, port = split_address(address)
    try:
        try:
            await web.TCPSite(runner, host or None, port, backlog=backlog).start()
        except OSError as fault:
            # Every interface, in a pod whose IPv6 is switched off.
            if host or fault.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            await web.TCPSite(runner, "0.0.0.0", port, backlog=backlog).start()  # noqa: S104
    # A label that is empty or too long is refused before anybody is asked for it.
    except (socket.gaierror, UnicodeError) as fault:
        raise ConfigError(f"{setting}: the host of {shown(address)} cannot be resolved") from fault
    except OSError as fault:
        # From 3.13 on asyncio gives no number where no address of the host can be assigned.
        why = os.strerror(fault.errno or errno.EADDRNOTAVAIL).lower()
        raise ConfigError(f"{setting}: cannot listen on {shown(address)}: {why}") from fault
