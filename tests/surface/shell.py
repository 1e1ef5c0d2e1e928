"""`composer` as a shell runs it: in this process where only what it says matters, in one of its own where more does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import anyio
from typer.testing import CliRunner

from composer import Settings
from composer.cli.main import app

COMPOSER: Final = [sys.executable, "-c", "from composer.cli.main import app; app()"]


def composer(*args: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, in a folder."""
    return subprocess.run(
        [*COMPOSER, *args], cwd=folder, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment}
    )  # fmt: skip


class Shell:
    """Runs `composer` in this process, in a thread, on one database and namespace."""

    def __init__(self, settings: Settings | None = None, **environment: str) -> None:
        self._where: list[str] = []
        if settings is not None:
            self._where = ["--database-url", str(settings.database_url), "--namespace", settings.namespace]
        self._environment = environment

    async def __call__(self, *args: str, code: int = 0, stdin: str = "") -> str:
        """What it prints, on standard error where that is for errors. It must end with `code`, and show no traceback."""

        def run() -> tuple[int, str, str]:
            made = CliRunner(env=self._environment).invoke(app, [*args, *self._where], input=stdin)
            return made.exit_code, made.stdout, made.stderr

        ended, out, err = await anyio.to_thread.run_sync(run)
        assert ended == code, out + err
        assert "Traceback" not in err
        return out or err

    async def json(self, *args: str, code: int = 0) -> Any:
        """The one document it prints."""
        return json.loads(await self(*args, "--json", code=code))

    async def lines(self, *args: str, code: int = 0) -> list[Any]:
        """The documents it prints, one a line."""
        return [json.loads(line) for line in (await self(*args, "--json", code=code)).splitlines()]
