"""Maps as users write them: rows 1 to 5, 10 and 44 of the scenario table."""

from __future__ import annotations

from typing import Any

import pytest

from composer import (
    NonRetryable,
    Outcome,
    PlanError,
    either,
    maybe,
    otherwise,
    settled,
    settled_each,
    step,
    when,
    workflow,
    zip_refs,
)
from tests.language.stage import Stage

pytestmark = pytest.mark.anyio


@step
async def upto(n: int) -> list[int]:
    """Numbers below n."""
    return list(range(n))


@step
async def number(n: int) -> int:
    """The number."""
    return n


@step
async def anything(n: int) -> Any:
    """No list, whatever is said of it."""
    return {"n": n} if n else None


@step
async def odd(n: int) -> int:
    """Ten times an even number; odd ones fail."""
    if n % 2:
        raise NonRetryable(f"{n} is odd")
    return n * 10


@step
async def ten(n: int) -> int:
    """Ten times the number."""
    return n * 10


@step
async def add(found: list[int]) -> int:
    """The sum."""
    return sum(found)


@step
async def count(found: list[int] | None) -> int:
    """How many there are, -1 for None."""
    return -1 if found is None else len(found)


@step
async def how(outcome: Outcome[list[int]]) -> str:
    """How the map ended."""
    return outcome.state


@step
async def told(found: list[Outcome[int]]) -> list[str]:
    """How each item ended."""
    return [str(each.value) if each.ok else str(each.error) for each in found]


@step
async def both(pair: tuple[int, str]) -> str:
    """One of each."""
    return f"{pair[0]}{pair[1]}"


@step
async def words(n: int) -> list[str]:
    """Letters."""
    return list("abcdefgh"[:n])


@workflow
def guarded(n: int) -> tuple[int, str]:
    """A map in a block."""
    found = upto(n)
    with when(number(n) > 3):
        mapped = ten.map(found)
        add(mapped)
    return count(maybe(mapped)), how(settled(mapped))


async def test_row_1_map_in_a_block_not_taken(stage: Stage) -> None:
    """It is skipped without items, a plain reader with it; maybe() gives None and not a list, settled() one skipped outcome."""
    no = await stage.play(guarded, 3)
    assert no.output == [-1, "skipped"]
    assert (no.states["ten"], no.states["add"]) == ("skipped", "skipped")
    yes = await stage.play(guarded, 4)
    assert yes.output == [4, "completed"]


@workflow
def over_a_failure(n: int) -> int:
    """A map over a list that is not made."""
    return add(ten.map(upto.after(odd(n))(n)))


async def test_row_2_map_over_a_failed_list(stage: Stage) -> None:
    """It is skipped, and the run fails by what failed."""
    played = await stage.play(over_a_failure, 1)
    assert (played.status, played.states["ten"], played.states["add"]) == ("failed", "skipped", "skipped")
    assert played.error is not None
    assert played.error["node"] == "odd"


@workflow
def over_anything(n: int) -> int:
    """A map over what the annotation does not tell."""
    return add(ten.map(anything(n)))


@pytest.mark.parametrize(("n", "kind"), [(1, "an object"), (0, "null")])
async def test_row_3_map_over_no_list(stage: Stage, n: int, kind: str) -> None:
    """It fails at once, not retried, and says which value it was and what."""
    played = await stage.play(over_anything, n)
    assert (played.status, played.states["ten"], played.code) == ("failed", "failed", "node-failed")
    assert played.error is not None
    assert played.error["message"] == f"the list of map ten (anything) is {kind}, not a list"


@workflow
def chained(n: int) -> int:
    """A map over a map."""
    return add(ten.map(ten.map(upto(n))))


async def test_row_4_empty_maps_complete_at_once(stage: Stage) -> None:
    """Chained maps over nothing complete with nothing, in the decision in which the list is there."""
    assert (await stage.play(chained, 0)).output == 0
    assert (await stage.play(chained, 3)).output == 300


@workflow
def branches(n: int) -> int:
    """Either of two maps."""
    found = upto(n)
    with when(number(n) > 3):
        many = ten.map(found)
    with otherwise():
        few = number.map(found)
    return add(either(many, few))


async def test_row_5_either_of_two_maps(stage: Stage) -> None:
    """The whole list of the map that was taken."""
    assert (await stage.play(branches, 3)).output == 3
    assert (await stage.play(branches, 4)).output == 60


@workflow
def tolerant(n: int) -> list[str]:
    """Every item's outcome."""
    return told(settled_each(odd.map(upto(n))))


async def test_row_10_every_item_has_an_outcome(stage: Stage) -> None:
    """settled_each() gives them in index order, and no item stops another; a tolerance beside it is refused where it is written."""
    assert (await stage.play(tolerant, 4)).output == ["0", "NonRetryable: 1 is odd", "20", "NonRetryable: 3 is odd"]
    with pytest.raises(PlanError, match="tolerate"):

        @workflow
        def twice_told(n: int) -> list[str]:
            return told(settled_each(odd.options(tolerate=1).map(upto(n))))


@workflow
def strict(n: int) -> int:
    """No item may fail."""
    return add(odd.map(upto(n)))


@workflow
def lenient(n: int) -> int:
    """Two may."""
    return add(odd.options(tolerate=2, max_concurrency=2).map(upto(n)))


async def test_tolerance_leaves_failed_items_out(stage: Stage) -> None:
    """As many failed items as are tolerated are left out of the list; one more fails the run, by the item that failed first."""
    assert (await stage.play(lenient, 5)).output == 60
    played = await stage.play(strict, 5)
    assert (played.status, played.states["odd"], played.states["add"]) == ("failed", "failed", "skipped")
    assert played.error is not None
    assert played.error["items"] == 5
    assert played.error["message"].startswith(f"item {played.error['item']} of 5")
    assert (await stage.play(lenient, 6)).status == "failed"


@workflow
def parts(n: int) -> tuple[int, int]:
    """One item of a map, from either end."""
    found = ten.map(upto(n))
    return number(found[1]), number(found[-1])


async def test_one_item_of_a_map_is_read_alone(stage: Stage) -> None:
    """ref[1] and ref[-1] give these items; where the list has no such item the reader fails and says so."""
    assert (await stage.play(parts, 4)).output == [10, 30]
    played = await stage.play(parts, 1)
    assert played.status == "failed"
    assert played.error is not None
    assert "ten[1]: the list has no such item" in played.error["message"]


@workflow
def zipped(n: int, m: int) -> list[str]:
    """Two lists side by side."""
    return both.map(zip_refs(upto(n), words(m)))


async def test_zipped_lists_go_side_by_side(stage: Stage) -> None:
    """Items are paired by position; lists of different length fail the map, with both lengths."""
    assert (await stage.play(zipped, 3, 3)).output == ["0a", "1b", "2c"]
    played = await stage.play(zipped, 3, 2)
    assert played.status == "failed"
    assert played.error is not None
    assert "upto has 3, words has 2" in played.error["message"]
