"""A PostgreSQL server behind TLS: the test servers answer on a socket in a folder, where there is none."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import anyio


class TlsServer:
    """`url` leads to the same database, through TLS. Once `is_frozen`, it takes bytes and passes none on."""

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        self._target = urlsplit(url)
        self._context = context
        self.url = ""
        self.is_frozen = False
        self.handshakes = 0
        self._serving: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            assert (await reader.readexactly(8))[4:] == (80877103).to_bytes(4), "the client asks for TLS first"
            writer.write(b"S")
            await writer.start_tls(self._context)
            self.handshakes += 1
            folder = parse_qs(self._target.query).get("host")
            if folder:
                theirs, ours = await asyncio.open_unix_connection(f"{folder[0]}/.s.PGSQL.{self._target.port or 5432}")
            else:
                theirs, ours = await asyncio.open_connection(self._target.hostname, self._target.port or 5432)
            ways = [asyncio.create_task(self._pass(reader, ours)), asyncio.create_task(self._pass(theirs, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                ours.transport.abort()
        except asyncio.CancelledError:
            pass
        finally:
            writer.transport.abort()
            self._serving.discard(task)

    async def close(self) -> None:
        """Ends what is left."""
        for task in tuple(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ssl.SSLError):
            while data := await reader.read(65_536):
                if self.is_frozen:
                    await asyncio.Event().wait()
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def tls(url: str, folder: Path) -> AsyncIterator[TlsServer]:
    """The database at `url`, to be had through TLS only."""
    await anyio.run_process(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-keyout",
         str(folder / "key.pem"), "-out", str(folder / "cert.pem")],
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    made = TlsServer(url, context)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    target = urlsplit(url)
    port = server.sockets[0].getsockname()[1]
    made.url = f"postgresql://{target.username}@127.0.0.1:{port}{target.path}?sslmode=require"
    try:
        yield made
    finally:
        server.close()
        await made.close()
