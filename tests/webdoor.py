# small helpers, named for what they do
"""A real server behind a web configuration file, and clients of it, for the tests of TLS and basic auth."""

import asyncio
import base64
import contextlib
import itertools
import os
import ssl
from pathlib import Path

import bcrypt

from kvpressure.config import Config, WebConfig
from kvpressure.derive.snapshot import Snapshot
from kvpressure.expose.server import make_app, serve

_ages = itertools.count(1)


def write(path, text):
    """Write a file that has stood still for long, and differs in its age from every one before."""
    path = Path(path)
    path.write_text(text)
    then = 1_700_000_000 + next(_ages)
    os.utime(path, (then, then))


def issued(authority, name, *hosts):
    """The files of a new certificate and its key; the key is nobody else's."""
    cert, key = authority.issue(name, *hosts)
    Path(key).chmod(0o600)
    return cert, key


def hashed(password, cost=4):
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@contextlib.asynccontextmanager
async def running(path):
    """A server with this web configuration; gives its application and its port."""
    config = Config(web=WebConfig(listen_address=("127.0.0.1:0",), config_file=str(path)))
    app = make_app(
        config,
        metrics=lambda _accept: (b"# metrics\n", "text/plain"),
        state=dict,
        snapshot=lambda: Snapshot(t=1_800_000_000.0, up=None),
    )
    runner = await serve(app, config)
    try:
        yield app, runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def ask(port, path="/-/healthy", *, method="GET", login="", tls=None, body=False):  # noqa: PLR0913
    """
    Status and headers of the answer to a request that is sent as it stands, on a connection of its own.

    0 where there is no answer: the handshake was refused, or the connection was closed.
    """
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    except (OSError, ssl.SSLError):
        return 0, {}
    try:
        authorization = f"Authorization: {login}\r\n" if login else ""
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{authorization}\r\n".encode())
        head, _, rest = (await reader.read() if body else await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n\r\n")
    except (OSError, ssl.SSLError, asyncio.IncompleteReadError):
        return 0, {}
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(first.split()[1]), headers | ({"body": rest.decode()} if body else {})


async def status(port, path="/-/healthy", **how):
    return (await ask(port, path, **how))[0]


def trusting(authority, *, shows=None, lowest=None, highest=None):
    """A client's context that trusts an authority, and shows a certificate if one is given."""
    context = ssl.create_default_context(cafile=authority.file)
    context.check_hostname = False
    if shows is not None:
        context.load_cert_chain(*shows)
    if lowest is not None:
        context.minimum_version = lowest
    if highest is not None:
        context.maximum_version = highest
    return context
