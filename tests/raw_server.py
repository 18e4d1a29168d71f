"""A server on a raw socket, for what no HTTP library would say or take."""

import socket
import threading


class RawServer:
    """Listens on a free port of the loopback, each connection on a thread of its own, until `stop`."""

    def __init__(self) -> None:
        self.connections = 0
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._server.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._serve, daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        """Talk on a connection until its end; what its other side does to it is no fault."""
        raise NotImplementedError

    def stop(self) -> None:
        """Accept nothing more."""
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            try:
                self.answer(connection)
            except OSError:
                return
