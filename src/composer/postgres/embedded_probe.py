"""A few lines of PostgreSQL's protocol: whether a server answers on a socket, and with which SQLSTATE.

`embedded.py` asks this before there is a server, while one starts or stops, and after one was killed. It blocks, and
runs where there is no event loop, which the driver needs. "Running" means that the socket answers, so that the whole
of an answer here is one word: that nothing listens, or the SQLSTATE of a login and of at most one statement.
"""

from __future__ import annotations

import pathlib
import socket
import struct

# SQLSTATEs the server answers a login with.
WELCOME, FULL, NO_DATABASE, NOT_NOW = "00000", "53300", "3D000", "57P03"


def ask(address: str, database: str, sql: str = "") -> str | None:
    """The SQLSTATE a server answers a login and then `sql` with; NOT_NOW for silence, None when nothing listens."""
    words = b"user\0composer\0database\0%b\0\0" % database.encode()
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60 if sql else 5)
        try:
            line.connect(address)
            line.sendall(struct.pack("!II", len(words) + 8, 3 << 16) + words)
            with line.makefile("rb") as stream:
                while len(head := stream.read(5)) == 5:
                    kind, length = head[:1], int.from_bytes(head[1:], "big")
                    body = stream.read(length - 4)
                    if kind == b"E":
                        return next(field[1:].decode() for field in body.split(b"\0") if field[:1] == b"C")
                    if kind == b"Z" and sql:
                        query = sql.encode() + b"\0"
                        line.sendall(b"Q" + struct.pack("!I", len(query) + 4) + query)
                        sql = ""
                    elif kind == b"Z":
                        line.sendall(b"X\0\0\0\4")
                        return WELCOME
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except (TimeoutError, ConnectionError, BlockingIOError):
            pass  # no answer in time, ended while we spoke, or more callers than its queue holds
    return NOT_NOW


def socket_in(folder: pathlib.Path) -> str:
    return str(folder / ".s.PGSQL.5432")
