"""A network between a client and a server that can be cut and mended."""

import contextlib
import socket
from threading import Thread

CHUNK = 65_536


class Relay:
    """Passes connections on `address` to a server, until it is cut; mended, it is at the same address again."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._connections: list[socket.socket] = []
        self._listener = self._listen(0)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Nothing listens any more, and every connection is gone."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._connections:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._connections.clear()

    def mend(self) -> None:
        """Listen again."""
        self._listener = self._listen(int(self.address.rpartition(":")[2]))

    def _listen(self, port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
                server = socket.create_connection(self._server)
            except OSError:
                return
            self._connections += [client, server]
            for source, target in ((client, server), (server, client)):
                Thread(target=_pass_on, args=(source, target), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(CHUNK):
            target.sendall(chunk)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
