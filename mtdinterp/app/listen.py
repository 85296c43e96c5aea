"""The socket of the workbench, open to this machine only.

Imports nothing heavy, so that a port in use is reported at once.
"""

import socket
import sys

ADDRESS = "127.0.0.1"
MOST_WAITING = 64
"""Connections that may wait to be accepted."""


def listen(port: int) -> socket.socket:
    """Open a listening socket that only this machine can reach; port 0 takes any free port."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if sys.platform != "win32":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
    except OSError:
        listener.close()
        raise ValueError(
            f"--port: port {port} is in use or not allowed; choose another, or 0 for any free port"
        ) from None
    listener.listen(MOST_WAITING)
    return listener
