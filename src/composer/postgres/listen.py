"""The listener: one connection that hears what other processes announce, and comes back when it is lost.

A notification only shortens a wait. After every reconnection everybody looks for themselves, because what was
announced in between was not heard.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final

import anyio
import asyncpg

from composer.errors import StoreUnavailable
from composer.ports.wakeups import Wakeups
from composer.postgres.errors import mapped

log = logging.getLogger("composer.postgres")

PROBE_INTERVAL: Final = 5.0
"""Seconds between signs of life asked of the connection: a half-open socket looks idle otherwise, for ever."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0


class Listener:
    """Feeds notifications of one schema and namespace into the process's wake-ups."""

    def __init__(
        self,
        url: str,
        options: dict[str, Any],
        schema: str,
        namespace: str,
        wakeups: Wakeups,
        listening: anyio.Event,
    ) -> None:
        self._url, self._options, self._schema, self._namespace, self._wakeups = (
            url,
            options,
            schema,
            namespace,
            wakeups,
        )
        self._listening = listening

    async def run(self) -> None:
        """Listens until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._listen()
            except StoreUnavailable as error:
                log.warning(
                    "the listening connection is lost; trying again",
                    extra={"error": str(error), "pause": round(pause, 2)},
                )
            else:
                pause = _FIRST_PAUSE
            await anyio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _listen(self) -> None:
        """One connection's life. Returns when it was closed after having listened."""
        with mapped("listening"):
            connection = await asyncpg.connect(self._url, **self._options)
        closed = anyio.Event()
        try:
            connection.add_termination_listener(lambda _: closed.set())
            with mapped("listening"):
                await connection.add_listener(self._schema, self._heard)
            self._wakeups.everything()
            self._listening.set()
            while not closed.is_set():
                with anyio.move_on_after(PROBE_INTERVAL):
                    await closed.wait()
                    break
                try:
                    with mapped("probing the listening connection"), anyio.fail_after(PROBE_INTERVAL):
                        await connection.execute("select 1")
                except StoreUnavailable:
                    break
            log.warning("the listening connection was closed; connecting again")
        finally:
            connection.terminate()

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        news = json.loads(payload)
        if news.get("namespace") != self._namespace:
            return
        wakeups = self._wakeups
        if ready := news.get("ready"):
            wakeups.tasks_ready(ready)
        if news.get("timer"):
            wakeups.timer_set()
        ended = news.get("ended")
        for run_id in ended or ():
            wakeups.run_ended(run_id, None)
        if ended == []:
            # More ended than a notification can name.
            wakeups.look_for_ends()
        for run_id in news.get("stopped") or ():
            wakeups.run_stopped(run_id)
