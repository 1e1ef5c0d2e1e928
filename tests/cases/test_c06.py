"""C06: PgBouncer in transaction mode. Needs the program `pgbouncer`; where it is missing only CI insists on it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from composer import Retry, step, step_context, workflow
from composer.postgres.doctor import Level, examine
from tests.working import until, working

pytestmark = pytest.mark.anyio
BOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@step
async def plus(n: int) -> int:
    """One more."""
    return n + 1


@step(retries=Retry(attempts=2, delay=0.1))
async def stumbles(n: int) -> int:
    """Fails once."""
    if step_context().attempt == 1:
        raise OSError("once")
    return n


@workflow
def flow(n: int) -> int:
    """A retry and a few steps."""
    return plus(stumbles(plus(n)))


@pytest.fixture
def bouncer(database: str, tmp_path: Path) -> Iterator[str]:
    """URL through a bouncer with two server connections in transaction mode."""
    assert BOUNCER is not None
    parts = urlsplit(database)
    host = parts.hostname or parse_qs(parts.query)["host"][0]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    name = parts.path.lstrip("/")
    (tmp_path / "users.txt").write_text('"composer" ""\n')
    tmp_path.chmod(0o755)
    server = f"host={host} port={parts.port or 5432} dbname={name} user={parts.username or 'composer'}"
    (tmp_path / "bouncer.ini").write_text(
        f"[databases]\n{name} = {server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\n"
        "pool_mode = transaction\ndefault_pool_size = 2\nunix_socket_dir =\n"
    )
    user = ["-u", "nobody"] if os.geteuid() == 0 and parts.hostname is not None else []
    if os.geteuid() == 0 and not user:
        # The server's socket folder belongs to the account that runs it.
        user = ["-u", Path(host).owner()]
    process = subprocess.Popen(
        [BOUNCER, *user, str(tmp_path / "bouncer.ini")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield f"postgresql://composer@127.0.0.1:{port}/{name}"
    finally:
        process.terminate()
        process.wait(10)


if BOUNCER is not None or os.environ.get("CI"):

    async def test_everything_completes_by_polling(bouncer: str, namespace: str) -> None:
        """With the setting, runs with retries complete through two pooled connections, and nothing is listened for."""

        async def up() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", int(urlsplit(bouncer).port or 0))) == 0

        await until(up, 5)
        async with working(bouncer, namespace, [flow], pooler=True, poll_interval=0.1) as site:
            handles = await site.client.start_many(flow, [(n,) for n in range(20)])
            for n, handle in enumerate(handles):
                assert await handle.result(timeout=30) == n + 2
            assert await site.verified() == []

    async def test_the_doctor_names_the_pooler(bouncer: str, namespace: str) -> None:
        """Whoever forgot the setting is told which one."""

        async def up() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", int(urlsplit(bouncer).port or 0))) == 0

        await until(up, 5)
        found = {each.name: each for each in await examine(bouncer, namespace=namespace)}
        assert found["pooler"].level is Level.WARNING
        assert "COMPOSER_POOLER" in found["pooler"].advice
