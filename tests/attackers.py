"""
Clients that mean harm, as a process of its own at the lowest priority: `attackers.py NAME PORT SECONDS NUMBER`.

It prints how often what it does could be done. A canary is in all that it sends.
"""

import asyncio
import base64
import contextlib
import os
import resource
import ssl
import subprocess
import sys
import time
from collections import Counter

CANARY = "canary7Zq"
"""Part of every path, header, user name and body that is sent."""

HEAD = f"GET /{CANARY} HTTP/1.1\r\nHost: {CANARY}\r\nCookie: {CANARY}\r\nX-{CANARY}: ".encode()
SCRAPE = (
    f"GET /metrics?{CANARY} HTTP/1.1\r\nHost: {CANARY}\r\nAccept-Encoding: gzip\r\n"
    f"Authorization: Bearer {CANARY}\r\n\r\n"
).encode()
ALLOWED = asyncio.TimeoutError, OSError, asyncio.IncompleteReadError, ssl.SSLError


def begun(name: str, port: int, seconds: float, number: int) -> subprocess.Popen[str]:
    """An attack that runs in the background."""
    words = [sys.executable, __file__, name, str(port), str(seconds), str(number)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


class Attack:
    """
    One kind of client, many at a time.

    Args:
        port: the victim's.
        seconds: how long it lasts.
        number: clients at a time.
    """

    def __init__(self, port: int, seconds: float, number: int) -> None:
        self.port, self.number = port, number
        self.end = time.monotonic() + seconds
        self.did: Counter[str] = Counter()

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.end

    async def rest(self) -> None:
        await asyncio.sleep(max(0.0, self.end - time.monotonic()))

    async def connect(self, **options):
        return await asyncio.open_connection("127.0.0.1", self.port, **options)

    async def ask(self, reader, writer, request: bytes) -> int:
        """The status of the answer, after all of it."""
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((line for line in lines if line.startswith(b"content-length:")), b":0")
        await reader.readexactly(int(length.split(b":")[1]))
        return int(head.split(b" ")[1])

    async def again_and_again(self, once, pause: float = 0.0) -> None:
        while self.goes_on:
            try:
                await once()
            except ALLOWED:
                self.did["closed"] += 1
                await asyncio.sleep(0.05)
            await asyncio.sleep(pause)

    # Each of these is one client.

    async def idle(self) -> None:
        """Says nothing."""

        async def once():
            reader, _ = await self.connect()
            self.did["connections"] += 1
            # Whoever is thrown out does not come back: then all of them have been there.
            with contextlib.suppress(*ALLOWED):
                await asyncio.wait_for(reader.read(1), max(0.0, self.end - time.monotonic()))
            await self.rest()

        await self.again_and_again(once)

    async def slowloris(self) -> None:
        """Sends a head, a byte now and then."""

        async def once():
            reader, writer = await self.connect()
            self.did["connections"] += 1
            writer.write(HEAD)
            while self.goes_on and not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.5)

        await self.again_and_again(once)

    async def headers(self) -> None:
        """Sends heads of over 64 KB, with one long line or with many, and some that never end."""

        async def once():
            for rest in (b"x" * 65536, b"\r\n".join([b"X-A: " + b"y" * 1000] * 70), b"\r\nA: b" * 20_000):
                for end in (b"\r\n\r\n", b""):
                    reader, writer = await self.connect()
                    writer.write(HEAD + rest + end)
                    with contextlib.suppress(*ALLOWED):
                        line = await asyncio.wait_for(reader.readline(), 2)
                        self.did[line.decode()[9:12] or "closed"] += 1
                    writer.transport.abort()

        await self.again_and_again(once, 0.1)

    async def flood(self) -> None:
        """Scrapes at full speed."""

        async def once():
            reader, writer = await self.connect()
            try:
                while self.goes_on:
                    self.did[str(await self.ask(reader, writer, SCRAPE))] += 1
            finally:
                writer.close()

        await self.again_and_again(once)

    async def deaf(self) -> None:
        """Asks for all metrics many times over, and reads nothing."""

        async def once():
            _, writer = await self.connect(limit=1)
            writer.write(SCRAPE.replace(b"Accept-Encoding", b"X") * 500)
            self.did["connections"] += 1
            await self.rest()
            writer.transport.abort()

        await self.again_and_again(once)

    async def deaf_pages(self) -> None:
        """Opens the page's stream of events, and reads nothing."""

        async def once():
            _, writer = await self.connect(limit=1)
            writer.write(SCRAPE.replace(b"/metrics", b"/api/v1/events"))
            self.did["connections"] += 1
            await self.rest()
            writer.transport.abort()

        await self.again_and_again(once)

    async def guess(self) -> None:
        """Tries passwords at full speed, over TLS."""
        tls = _careless()

        async def once():
            reader, writer = await self.connect(ssl=tls, local_addr=(f"127.77.0.{1 + self.did['guessers'] % 200}", 0))
            self.did["guessers"] += 1
            try:
                while self.goes_on:
                    login = base64.b64encode(f"{CANARY}:{time.monotonic_ns()}".encode()).decode()
                    request = SCRAPE.replace(f"Bearer {CANARY}".encode(), b"Basic " + login.encode())
                    self.did[str(await self.ask(reader, writer, request))] += 1
            finally:
                writer.transport.abort()

        await self.again_and_again(once)

    async def old_tls(self) -> None:
        """Offers TLS 1.0 and nothing better."""
        hello = _hello_of_tls_1_0()

        async def once():
            reader, writer = await self.connect()
            writer.write(hello)
            # A record of type 22 would go on with the handshake; one of type 21 is an alert.
            said = await asyncio.wait_for(reader.read(64), 2)
            self.did["refused" if said[:1] in (b"", b"\x15") else "spoken"] += 1
            writer.transport.abort()

        await self.again_and_again(once, 0.01)


def _careless() -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


def _hello_of_tls_1_0() -> bytes:
    """As a client of 1999 would say it; Python's own would have to be talked into it."""
    suites = b"\xc0\x13\xc0\x14\x00\x2f\x00\x35"
    body = b"\x03\x01" + b"\x00" * 32 + b"\x00" + len(suites).to_bytes(2, "big") + suites + b"\x01\x00"
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message


async def _main(name: str, port: str, seconds: str, number: str) -> None:
    os.nice(19)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attack = Attack(int(port), float(seconds), min(int(number), hard - 200))
    await asyncio.gather(*(getattr(attack, name)() for _ in range(attack.number)))
    print(dict(attack.did))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
