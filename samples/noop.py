"""Workflows whose steps do nothing: what the engine itself costs."""

from composer import step, workflow


@step
async def noop(value: int) -> int:
    """The value, as it came."""
    return value


@step
async def join(a: int, b: int, c: int, d: int) -> int:
    """The first of four."""
    return a


@workflow
def single(value: int) -> int:
    """One step."""
    return noop(value)


@workflow
def chain(value: int) -> int:
    """Ten steps, one after the other."""
    for _ in range(10):
        value = noop(value)
    return value


@workflow
def diamond(value: int) -> int:
    """One step, four side by side, one that joins them."""
    first = noop(value)
    return join(noop(first), noop(first), noop(first), noop(first))


@step
async def numbers(count: int) -> list[int]:
    """As many numbers as a map is to have items."""
    return list(range(count))


@step
async def same(n: int) -> int:
    """An item that does nothing."""
    return n


@step
async def add_up(found: list[int]) -> int:
    """The end of a fan-out."""
    return sum(found)


@workflow
def fanout(count: int) -> int:
    """One map, as wide as it is told, between two steps."""
    return add_up(same.map(numbers(count)))
