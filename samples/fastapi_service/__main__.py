"""Runs the service: `python -m samples.fastapi_service [PORT]`, on COMPOSER_DATABASE_URL or else the embedded server."""

import asyncio
import sys

import uvicorn

from composer import Settings
from composer.app import migrate
from composer.postgres.embedded import EmbeddedPostgres
from composer.settings import read_settings
from samples.fastapi_service.app import create_app


def main(port: int) -> None:
    """Serves until it is told to stop."""
    settings = read_settings()
    if settings.database_url is not None:
        serve(settings.database_url, port)
        return
    server = EmbeddedPostgres(settings.home)
    url = server.start()
    try:
        serve(url, port)
    finally:
        server.close()


def serve(url: str, port: int) -> None:
    """Brings the schema up to date and serves on the database."""
    asyncio.run(migrate(Settings(database_url=url)))
    # Pages that watch an order would keep the service from stopping.
    uvicorn.run(create_app(url), port=port, timeout_graceful_shutdown=5)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
