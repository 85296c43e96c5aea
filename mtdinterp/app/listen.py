"""Where the workbench listens: on this machine alone. No heavy imports: a port that is taken is
said at once."""

import socket
import sys

ADDRESS = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """A socket on this machine alone."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if sys.platform != "win32":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
    except OSError:
        listener.close()
        raise ValueError(
            f"--port: {port} is taken or not allowed; choose another, or 0 for any that is free"
        ) from None
    listener.listen(64)
    return listener
