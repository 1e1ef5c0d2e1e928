"""What happens to an order once it is placed."""

import asyncio

from composer import Retry, step, workflow


@step(retries=3)
async def reserve(order: str, item: str) -> str:
    """Takes the item from its shelf."""
    await asyncio.sleep(0.05)
    return f"{item} for {order}"


@step(retries=Retry(attempts=5, delay=0.5), timeout="10s")
async def charge(order: str) -> str:
    """Asks for the money. A real one gives step_context().idempotency_key to the bank."""
    await asyncio.sleep(0.05)
    return f"receipt of {order}"


@step(retries=3)
async def send(parcel: str, receipt: str) -> str:
    """Puts the parcel on the road."""
    await asyncio.sleep(0.05)
    return f"{parcel}, with {receipt}"


@workflow
def fulfil(order: str, item: str) -> str:
    """Reserves and charges side by side, then sends."""
    return send(reserve(order, item), charge(order))
