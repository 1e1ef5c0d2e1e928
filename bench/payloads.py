"""What writing and reading payloads costs, beside json (of the same data as dicts) and msgspec (of the same classes).

No server is needed. One JSON line a payload, in microseconds, the best of several rounds. `encode` compares what it
wrote with what it was given, `write` does not: the difference is the price of the promise that nothing is lost.
"""

from __future__ import annotations

import enum
import json
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec

from bench._common import arguments, output
from composer.define.payloads import codec


class Speed(enum.Enum):
    """An enum in an order."""

    FAST = "fast"
    SLOW = "slow"


@dataclass
class Line:
    """A line of an order."""

    sku: str
    price: Decimal
    count: int


@dataclass
class Order:
    """What a step typically takes."""

    id: str
    lines: list[Line]
    at: datetime
    speed: Speed
    total: Decimal


@dataclass
class Point:
    """Numbers only."""

    x: float
    y: float
    n: int


ORDER = Order(
    "order-2030-0001",
    [Line(f"sku-{n}", Decimal("19.90"), n) for n in range(3)],
    datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
    Speed.FAST,
    Decimal("59.70"),
)
PAYLOADS: dict[str, tuple[Any, Any]] = {
    "int": (int, 12_345),
    "text": (str, "hello, world"),
    "text of 100 kB": (str, "x" * 100_000),
    "order": (Order, ORDER),
    "100 orders": (list[Order], [ORDER] * 100),
    "1,000 points": (list[Point], [Point(n / 7, n / 3, n) for n in range(1_000)]),
    "10,000 integers": (list[int], list(range(10_000))),
    "nested dicts": (dict[str, Any], {f"k{n}": {"a": [1, 2.5, "x", None, True]} for n in range(100)}),
}


def best(call: Callable[[], object], rounds: int) -> float:
    """Microseconds of one call, in the best of the rounds."""
    timer = timeit.Timer(call)
    number, _ = timer.autorange()
    number = max(1, number // 10)
    return min(timer.repeat(max(3, rounds), number)) / number * 1e6


def main() -> None:
    """Times every payload."""
    args = arguments(rounds=7)
    for name, (type_, value) in PAYLOADS.items():
        ours = codec(type_)
        text = ours.encode(value)
        plain = json.loads(text)
        packed = msgspec.json.encode(value)
        writes, reads = msgspec.json.Encoder(), msgspec.json.Decoder(type_)
        calls: dict[str, Callable[[], object]] = {
            "encode": partial(ours.encode, value),
            "write": partial(ours.adapter.dump_json, value),
            "decode": partial(ours.decode, text),
            "json_encode": partial(json.dumps, plain),
            "json_decode": partial(json.loads, text),
            "msgspec_encode": partial(writes.encode, value),
            "msgspec_decode": partial(reads.decode, packed),
        }
        output("payloads", payload=name, bytes=len(text), us={k: best(call, args.rounds) for k, call in calls.items()})


if __name__ == "__main__":
    main()
