"""Orders with plain SQLAlchemy: an order and its workflow in one transaction, from a script without an event loop.

    python -m samples.sqlalchemy_orders

Runs on COMPOSER_DATABASE_URL, or else on the embedded server. The worker is in the same process, in a thread of its own.
"""

import asyncio
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy import create_engine, func, make_url, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from composer import Client, Settings, Worker, step, workflow
from composer.app import migrate
from composer.postgres.embedded import EmbeddedPostgres
from composer.settings import read_settings


class Base(DeclarativeBase):
    """This sample's metadata."""


class Invoice(Base):
    """An invoice to be sent."""

    __tablename__ = "sample_invoices"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    customer: Mapped[str]
    cents: Mapped[int]


@step(retries=3)
def render(number: int, customer: str, cents: int) -> str:
    """The invoice as text."""
    return f"Invoice {number}: {customer} owes {cents / 100:.2f}"


@step(retries=3)
def post(text: str) -> str:
    """Sends it. Here: gives it back."""
    return f"{text} (sent)"


@workflow
def send_invoice(number: int, customer: str, cents: int) -> str:
    """Renders an invoice and sends it."""
    return post(render(number, customer, cents))


def invoices_of(session: Session, client: Client, amounts: dict[str, int]) -> list[str]:
    """Stores an invoice for each customer and starts its run, in the session's transaction. Returns the run ids."""
    invoices = [Invoice(customer=customer, cents=cents) for customer, cents in amounts.items()]
    session.add_all(invoices)
    session.flush()  # the database gives the numbers
    inputs = [(invoice.number, invoice.customer, invoice.cents) for invoice in invoices]
    return [run.id for run in client.start_many(send_invoice, inputs, within=session)]


def main(url: str) -> list[str]:
    """Two invoices that are sent, and two that are not, since their transaction fails. Returns what was sent."""
    settings = Settings(database_url=url)
    asyncio.run(migrate(settings))
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    Base.metadata.create_all(engine)
    with worker(settings), Client(settings=settings) as client:
        with Session(engine) as session, session.begin():
            runs = invoices_of(session, client, {"Ada": 120_00, "Grace": 80_50})
        try:
            with Session(engine) as session, session.begin():
                invoices_of(session, client, {"Charles": 10_00})
                raise ConnectionError("the shop closes in the middle of it")
        except ConnectionError:
            pass  # no invoice for Charles, and no run
        with Session(engine) as session:
            assert session.scalar(select(func.count()).where(Invoice.customer == "Charles")) == 0
        sent = [client.handle(send_invoice, run).result(timeout=30) for run in runs]
    engine.dispose()
    return sent


@contextmanager
def worker(settings: Settings) -> Generator[None]:
    """A worker in a thread with its own event loop, while the block runs."""
    ready, stop = threading.Event(), threading.Event()

    async def work() -> None:
        async with Worker([send_invoice], settings):
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    try:
        ready.wait(30)
        yield
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    given = read_settings()
    if given.database_url is not None:
        print(*main(given.database_url), sep="\n")
        sys.exit()
    embedded = EmbeddedPostgres(given.home)
    try:
        print(*main(embedded.start()), sep="\n")
    finally:
        embedded.close()
