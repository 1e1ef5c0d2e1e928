"""A proxy in front of PostgreSQL that knows its protocol, and cuts connections around commits.

Every statement of the engine is a transaction of its own, so a commit is the Execute of a statement that changes runs.
Cut *before*, the server never sees that Execute and rolls back; cut *after*, the server has answered and the client does
not hear it. For the client the two look the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections import Counter, deque

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102
_CHUNK = 1 << 16


def kind_of(text: str) -> str:
    """What a statement of the engine does, as far as cuts are concerned."""
    if "as (\n  insert into composer.runs as r " in text:
        return "commit"
    if "insert into composer.run_keys" in text:
        return "start"
    if "for update skip locked\n" in text and "state = 'leased', delivery = x.delivery + 1" in text:
        return "claim"
    return "other"


class Proxy:
    """Listens on 127.0.0.1. `counts` holds what it did, by (kind of statement, "before" | "after")."""

    def __init__(self, server: str, seed: int) -> None:
        self.server = server
        """Path of the server's socket."""
        self.port = 0
        self.chances: dict[str, float] = {}
        """Chance of a cut, by kind of statement."""
        self.next_cuts: deque[str] = deque()
        """"before" or "after": the next commits are cut so, whatever the chances."""
        self.counts: Counter[tuple[str, str]] = Counter()
        self.applied = 0
        """Commits cut after an answer without an error."""
        self.statements: Counter[str] = Counter()
        self.links: set[_Link] = set()
        self._draw = random.Random(seed)
        self._open = asyncio.Event()
        self._open.set()
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Listens from here on."""
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_CHUNK)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Ends it, and every connection."""
        if self._listener is not None:
            self._listener.close()
        for link in tuple(self.links):
            link.abort()
        await asyncio.sleep(0)

    def abort_some(self, count: int) -> int:
        """Cuts `count` connections, whatever they are doing. Returns how many there were."""
        links = sorted(self.links, key=lambda link: link.number)
        chosen = self._draw.sample(links, min(count, len(links)))
        for link in chosen:
            link.abort()
        return len(chosen)

    async def black_hole(self, seconds: float, *, abort: bool) -> None:
        """Nothing passes in either direction, while all connections stand; then they go on, or are gone."""
        self._open.clear()
        try:
            await asyncio.sleep(seconds)
            if abort:
                for link in tuple(self.links):
                    link.abort()
        finally:
            self._open.set()

    def calm(self) -> None:
        """No more cuts."""
        self.chances.clear()
        self.next_cuts.clear()
        self._open.set()

    def cut_for(self, kind: str) -> str | None:
        """How the statement that is about to be executed is cut, if it is."""
        self.statements[kind] += 1
        if kind == "commit" and self.next_cuts:
            return self.next_cuts.popleft()
        if self._draw.random() < self.chances.get(kind, 0.0):
            return self._draw.choice(("before", "after"))
        return None

    async def passing(self) -> None:
        """Returns at once, but in a black hole."""
        if not self._open.is_set():
            await self._open.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, reader, writer)
        self.links.add(link)
        try:
            await link.run()
        except (OSError, EOFError, asyncio.IncompleteReadError):
            pass
        finally:
            link.abort()
            self.links.discard(link)


class _Link:
    """One client's connection and the one to the server that it is given."""

    _count = 0

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _Link._count += 1
        self.number = _Link._count
        self._proxy = proxy
        self._from_client, self._to_client = reader, writer
        self._to_server: asyncio.StreamWriter | None = None
        self._kinds: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        self._swallowing = ""
        """Kind of the statement whose answer the client does not get."""
        self._failed = False

    def abort(self) -> None:
        """Resets both sides, as a host that goes away does."""
        for writer in (self._to_client, self._to_server):
            if writer is None:
                continue
            line = writer.get_extra_info("socket")
            if line is not None and line.family == socket.AF_INET:
                with contextlib.suppress(OSError):
                    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def run(self) -> None:
        """Relays until one side ends."""
        proxy = self._proxy
        while True:
            head = await self._from_client.readexactly(8)
            length, code = struct.unpack("!II", head)
            rest = await self._from_client.readexactly(length - 8)
            if code not in (_SSL, _GSS):
                break
            self._to_client.write(b"N")
        await proxy.passing()
        from_server, self._to_server = await asyncio.open_unix_connection(proxy.server, limit=_CHUNK)
        self._to_server.write(head + rest)
        if code == _CANCEL:
            await from_server.read()
            return
        ways = [asyncio.ensure_future(self._up()), asyncio.ensure_future(self._down(from_server))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _up(self) -> None:
        """Client to server, message by message."""
        assert self._to_server is not None
        kept = bytearray()
        while data := await self._from_client.read(_CHUNK):
            kept += data
            out, at = bytearray(), 0
            while len(kept) - at >= 5:
                end = at + 1 + int.from_bytes(kept[at + 1 : at + 5], "big")
                if end > len(kept):
                    break
                message = bytes(kept[at:end])
                at = end
                if self._cut_before(message):
                    return
                out += message
            del kept[:at]
            await self._proxy.passing()
            self._to_server.write(out)
            await self._to_server.drain()

    def _cut_before(self, message: bytes) -> bool:
        """Whether the connection ends here, this message unsent."""
        kind, body = message[:1], message[5:]
        if kind == b"P":
            name, text = body.split(b"\0", 2)[:2]
            self._kinds[name] = kind_of(text.decode())
        elif kind == b"B":
            portal, name = body.split(b"\0", 2)[:2]
            self._portals[portal] = self._kinds.get(name, "other")
        elif kind == b"E":
            what = self._portals.get(body.split(b"\0", 1)[0], "other")
            how = self._proxy.cut_for(what)
            if how == "before":
                self._proxy.counts[what, "before"] += 1
                return True
            if how == "after":
                self._swallowing, self._failed = what, False
        return False

    async def _down(self, from_server: asyncio.StreamReader) -> None:
        """Server to client; the answer to a statement that is cut after it is read to its end and kept."""
        kept = bytearray()
        while data := await from_server.read(_CHUNK):
            if not self._swallowing:
                await self._proxy.passing()
                self._to_client.write(data)
                await self._to_client.drain()
                continue
            # One statement at a time: what comes now is the answer, from its first byte.
            kept += data
            at = 0
            while len(kept) - at >= 5:
                end = at + 1 + int.from_bytes(kept[at + 1 : at + 5], "big")
                if end > len(kept):
                    break
                kind, at = kept[at : at + 1], end
                self._failed = self._failed or kind == b"E"
                if kind == b"Z":
                    self._proxy.counts[self._swallowing, "after"] += 1
                    self._proxy.applied += self._swallowing == "commit" and not self._failed
                    return
            del kept[:at]
