"""The service. create_app(url) is an ASGI application with a worker inside; `python -m samples.fastapi_service` runs it."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from sqlalchemy import make_url, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from composer import AsyncClient, Settings, Worker
from samples.fastapi_service.fulfilment import fulfil
from samples.fastapi_service.tables import Base, Order, Stock


class NewOrder(BaseModel):
    """What a customer sends."""

    number: str
    item: str


class Placed(BaseModel):
    """What the customer gets back: where to watch the order."""

    number: str
    run_id: str
    progress: str


def create_app(database_url: str) -> FastAPI:
    """The service on a database that holds Composer's schema (`composer migrate`); it makes its own tables."""
    settings = Settings(database_url=database_url)
    # One database, two pools: the shop's through SQLAlchemy, Composer's own.
    engine = create_async_engine(make_url(database_url).set(drivername="postgresql+asyncpg"))
    client = AsyncClient(settings=settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
            await connection.execute(insert(Stock).values(item="lamp", quantity=3).on_conflict_do_nothing())
        async with client, Worker([fulfil], settings):
            yield
        await engine.dispose()

    app = FastAPI(title="Shop", lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def place(new: NewOrder) -> Placed:
        """Stores the order, starts its run and takes the item from stock: all three, or none of them."""
        try:
            async with AsyncSession(engine) as session, session.begin():
                run = await client.start(fulfil, new.number, new.item, tags={"order": new.number}, within=session)
                session.add(Order(number=new.number, item=new.item, run_id=run.id))
                await session.execute(update(Stock).where(Stock.item == new.item).values(quantity=Stock.quantity - 1))
        except IntegrityError as error:
            why = "it is sold out" if "stock_left" in str(error) else "the number is taken"
            raise HTTPException(409, f"order {new.number}: {why}") from error
        return Placed(number=new.number, run_id=run.id, progress=f"/orders/{new.number}/progress")

    @app.get("/orders/{number}/progress")
    async def progress(number: str, last_event_id: Annotated[int, Header()] = 0) -> StreamingResponse:
        """What happens to the order, from its beginning, as server-sent events: one a change as it happens, `done` at the end.

        A browser whose connection was cut comes back by itself, with the id of the last event, and is told the rest.
        """
        async with AsyncSession(engine) as session:
            order = await session.get(Order, number)
        if order is None or order.run_id is None:
            raise HTTPException(404, f"there is no order {number}")
        return StreamingResponse(events(order.run_id, last_event_id), media_type="text/event-stream")

    async def events(run_id: str, after_version: int) -> AsyncGenerator[str]:
        async for change in client.watch(run_id, after_version=after_version):
            told = {"event": change.event, "node": change.node, "at": change.at.isoformat(), "error": change.error}
            # A version can have several changes, so only the one before it is known to be told whole.
            yield f"id: {change.version - 1}\ndata: {json.dumps(told)}\n\n"
        run = await client.get(run_id)
        yield f"event: done\ndata: {json.dumps({'status': run.status, 'output': run.output})}\n\n"

    return app
