"""A server whose answers come by the byte, and never end."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

BEGINNINGS = (
    b"HTTP/1.1 200 OK\r\nX: ",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
    b"HTTP/1.1 200 OK\r\n\r\n",
)
"""Of answers that then drip in their head, in the length of a chunk and in their body."""
_LONGEST = 20.0  # seconds: a fault must not hold up all tests


@contextlib.contextmanager
def dripping(begin: bytes) -> Iterator[str]:
    """The address of one that answers once, with `begin` and then a byte fifty times a second."""
    over = threading.Event()
    until = time.monotonic() + _LONGEST

    def drip() -> None:
        with contextlib.suppress(OSError), listening.accept()[0] as asking:
            asking.recv(65536)
            asking.sendall(begin)
            while not over.wait(0.02) and time.monotonic() < until:
                asking.sendall(b"a")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(_LONGEST)
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            over.set()
            thread.join()
