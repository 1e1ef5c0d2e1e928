"""The shop's own tables, in the database where the runs are."""

from sqlalchemy import CheckConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """The shop's metadata."""


class Stock(Base):
    """How much there is of an item; the database refuses to sell more."""

    __tablename__ = "stock"
    __table_args__ = (CheckConstraint("quantity >= 0", name="stock_left"),)
    item: Mapped[str] = mapped_column(primary_key=True)
    quantity: Mapped[int]


class Order(Base):
    """An order, and the run that fulfils it."""

    __tablename__ = "orders"
    number: Mapped[str] = mapped_column(primary_key=True)
    item: Mapped[str]
    run_id: Mapped[str | None]
