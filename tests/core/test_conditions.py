"""Conditions: every operation, every kind, and what cannot be decided."""

from __future__ import annotations

import datetime as dt
import json
import operator
import pickle
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from composer.core.conditions import COMPARISONS, KINDS, NotOfKind, compare, contains, read, shown, size
from composer.core.expressions import Unevaluable, Unreadable, evaluate, render
from composer.core.plan import INPUT
from composer.core.values import Values
from tests.builders import a_plan, says

PLAN = a_plan({"a": [], "b": [], "c": []})
ORDERED = {"number", "decimal", "datetime", "date", "time", "timedelta", "text"}
# For each kind: a value, one equal to it and written otherwise, and one that is larger.
TRIPLES: dict[str, list[tuple[Any, Any, Any]]] = {
    "number": [(1, 1.0, 2), (-1, -1.0, 0), (2**63, 2**63, 2**63 + 1), (1e308, 1e308, "Infinity"), ("-Infinity", "-Infinity", 0)],
    "decimal": [("1.0", "1.00", "1.01"), ("1000", "1E+3", "1000.000000000000000000000000000001"), (7, "7", "Infinity")],
    "datetime": [
        ("2026-01-01T00:00:00Z", "2026-01-01T02:00:00+02:00", "2026-01-01T01:00:00.000001+01:00"),
        ("2026-01-01T00:00:00", "2026-01-01T00:00:00.000000", "2026-01-02T00:00:00"),
    ],
    "date": [("2026-01-31", "2026-01-31", "2026-02-01")],
    "time": [("10:00:00", "10:00:00.000", "10:00:01"), ("10:00:00+00:00", "11:00:00+01:00", "10:00:00-01:00")],
    "timedelta": [("PT60S", "PT1M", "PT1M0.000001S"), ("-P1D", "-PT24H", "PT0S"), ("P1Y", "P365D", "P52W2D")],
    "text": [("b", "b", "ba"), ("", "", "\u0000"), ("Z", "Z", "a"), ("10", "10", "9")],
    "bool": [(True, True, False)],
    "enum": [("red", "red", "blue"), (1, 1, 2)],
    "json": [({"a": [1, None], "b": 2}, {"b": 2.0, "a": [1, None]}, {"a": [1]}), ([], [], {}), (1, 1.0, True), (0, 0, False)],
}  # fmt: skip
WRONG: dict[str, list[Any]] = {
    "number": ["1", True, [], {}, float("nan"), "NaN", ""],
    "decimal": ["one", True, 1.5, "NaN", "sNaN", "", [], "1e99999999999999999999"],
    "datetime": ["yesterday", 1_700_000_000, "2026-13-01T00:00:00", "", True],
    "date": ["2026-01-01T00:00:00", "2026-02-30", 20260101, ""],
    "time": ["25:00", "noon", 10, "", "2026-01-01T10:00:00"],
    "timedelta": [60, "1 day", "P", "PT", "P1DT", "", "60", "PT1.5M", "P999999999999D", "\u0661", "P\u0661D"],
    "text": [1, True, ["a"], {}],
    "bool": [0, 1, "true", []],
}


@pytest.mark.parametrize("kind", KINDS)
def test_comparisons_of_each_kind(kind):
    """Values of a kind are equal by what they mean, not by how they are written, and ordered where the kind has an order."""
    for small, same, large in TRIPLES[kind]:
        for one, other in product((small, same), repeat=2):
            assert compare("eq", one, other, kind)
            assert not compare("ne", one, other, kind)
        assert compare("ne", small, large, kind)
        assert not compare("eq", large, same, kind)
        if kind in ORDERED:
            for op in ("lt", "le"):
                assert compare(op, small, large, kind)
                assert not compare(op, large, same, kind)
            for op in ("gt", "ge"):
                assert compare(op, large, small, kind)
                assert not compare(op, same, large, kind)
            assert compare("le", small, same, kind) and compare("ge", small, same, kind)
            assert not compare("lt", small, same, kind) and not compare("gt", small, same, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_without_an_order_refuse_to_be_ordered(kind):
    """Whether a kind has an order is the same list here and there; ordering the others is refused, not false."""
    assert KINDS[kind].has_order == (kind in ORDERED)
    if kind not in ORDERED:
        small, _, large = TRIPLES[kind][0]
        with pytest.raises(NotOfKind, match="has none"):
            compare("lt", small, large, kind)


@pytest.mark.parametrize("kind", WRONG)
def test_values_of_another_kind_are_refused_by_every_comparison(kind):
    """What is not of the kind makes no comparison true or false, on either side."""
    good = TRIPLES[kind][0][0]
    for wrong, op in product(WRONG[kind], COMPARISONS):
        if op in ("eq", "ne") or kind in ORDERED:
            for left, right in ((wrong, good), (good, wrong)):
                with pytest.raises(NotOfKind):
                    compare(op, left, right, kind)
        with pytest.raises(NotOfKind):
            contains([wrong], good, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_null_can_be_equal_and_has_no_order(kind):
    """An optional value is compared for equality with what it might be; null before or after something is no question."""
    good = TRIPLES[kind][0][0]
    assert compare("eq", None, None, kind)
    assert compare("ne", None, good, kind) and compare("ne", good, None, kind)
    assert not compare("eq", None, good, kind)
    for op in ("lt", "le", "gt", "ge"):
        with pytest.raises(NotOfKind):
            compare(op, None, good, kind)
        with pytest.raises(NotOfKind):
            compare(op, good, None, kind)


@pytest.mark.parametrize("kind", ["datetime", "time"])
def test_moments_with_and_without_a_zone_are_not_compared(kind):
    """A time that could be anywhere is neither before, after nor equal to one that is somewhere."""
    aware, naive = {"datetime": ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00"), "time": ("10:00:00Z", "10:00:00")}[
        kind
    ]
    for (left, right), op in product(((aware, naive), (naive, aware)), COMPARISONS):
        with pytest.raises(NotOfKind, match="zone"):
            compare(op, left, right, kind)
    with pytest.raises(NotOfKind, match="zone"):
        contains([aware], naive, kind)


PYTHON: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "number": (int | float, st.integers() | st.floats(allow_nan=False, allow_infinity=False)),
    "decimal": (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    "datetime": (dt.datetime, st.datetimes(timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=-7))]))),
    "date": (dt.date, st.dates()),
    "time": (dt.time, st.times()),
    "timedelta": (dt.timedelta, st.timedeltas(dt.timedelta(days=-999_999), dt.timedelta(days=999_999))),
    "text": (str, st.text(st.characters(codec="utf-8"))),
}


@given(st.data())
@pytest.mark.parametrize("kind", PYTHON)
def test_comparisons_are_those_of_python_on_what_pydantic_wrote(kind, data):
    """For values as steps exchange them every comparison says what Python says of the values themselves."""
    type_, values = PYTHON[kind]
    adapter: TypeAdapter[Any] = TypeAdapter(type_)
    a, b = data.draw(values), data.draw(values)
    left, right = (json.loads(adapter.dump_json(each)) for each in (a, b))
    assert read(left, kind) == a
    for op in COMPARISONS:
        assert compare(op, left, right, kind) == getattr(operator, op)(a, b)


def test_big_numbers_are_exact():
    """No whole number is rounded, and a whole number and a fraction are compared as they are."""
    assert compare("lt", 2**53, 2**53 + 1, "number")
    assert compare("ne", 10**400, 10**400 + 1, "number")
    assert compare("gt", 10**400, 1e308, "number")
    assert compare("ne", 2**53 + 1, float(2**53), "number")
    assert compare("ne", "0.1000000000000000000000000000000000001", "0.1", "decimal")


@pytest.mark.parametrize(
    ("collection", "item", "kind", "answer"),
    [
        ([1, 2], 2.0, "number", True), ([1, 2], 3, "number", False), ([], 1, "number", False),
        (["1.0"], "1.00", "decimal", True), ([None, "a"], None, "text", True), (["a"], None, "text", False),
        (["2026-01-01T00:00:00Z"], "2026-01-01T01:00:00+01:00", "datetime", True),
        ("abc", "bc", "text", True), ("abc", "x", "text", False), ("abc", "", "text", True),
        ({"a": 1}, "a", "text", True), ({"a": 1}, "b", "text", False), ({"1.0": 0}, "1", "decimal", True),
        ({"1": "x"}, 1, "number", True), ({"true": 1}, True, "bool", True),
        ([{"a": 1}], {"a": 1.0}, "json", True), ([True], 1, "json", False),
    ],
)  # fmt: skip
def test_contains(collection, item, kind, answer):
    """A list has an item by its kind, an object a key, a text a part."""
    assert contains(collection, item, kind) is answer


@pytest.mark.parametrize(
    ("collection", "item", "kind"),
    [
        (None, "a", "text"),
        (3, 3, "number"),
        (True, True, "bool"),
        ("123", 1, "number"),
        ({"x": 1}, 1, "number"),
        (["a"], 1, "text"),
    ],
)
def test_contains_refuses_what_has_no_items(collection, item, kind):
    """Only lists, objects and texts contain, and only items of their kind."""
    with pytest.raises(NotOfKind):
        contains(collection, item, kind)


def test_size():
    """A list has items, an object keys, a text characters; nothing else has a size."""
    assert [size(each) for each in ([], [1, [2, 3]], {}, {"a": 1}, "", "\U0001f600e")] == [0, 2, 0, 1, 0, 2]
    for wrong in (None, 3, True, 1.5):
        with pytest.raises(NotOfKind):
            size(wrong)


def test_shown_values_are_short():
    """Any value is shown in at most 60 characters."""
    assert shown({"a": "ü"}) == '{"a": "ü"}'
    assert len(shown("x" * 100_000)) == 60


# -- expressions over a run's values -----------------------------------------------------------------------
def values(letters: str = "CCC", errors: dict[int, str] | None = None, **texts: str) -> Values:
    """Outputs of nodes a, b and c, and the input."""
    outputs = {INPUT if name == "input" else PLAN.index[name]: text for name, text in texts.items()}
    return Values(letters, outputs, errors or {})


def answer(condition: dict[str, Any], known: Values) -> bool:
    """What the condition says; rendered as a step's argument it says the same."""
    made = evaluate(PLAN, {"$": condition}, known)
    assert render(PLAN, {"x": {"$": condition}}, known) == f'{{"x":{json.dumps(made)}}}'
    return made


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (says("gt", "input/total", "1000", kind="decimal"), None),
        (says("gt", "input/total", ("1000",), kind="decimal"), True),
        (says("lt", "a/0", "b/n", kind="number"), True),
        (says("and", says("eq", "a/0", 1, kind="number"), says("ne", "b/n", 1, kind="number")), True),
        (says("or", says("eq", "a/0", 7, kind="number"), says("eq", "b/n", 7, kind="number")), False),
        (says("not", "input/express"), True),
        (says("and", "input/express", "b/ok"), False),
        (says("and"), True),
        (says("or"), False),
        (says("is_none", "input/coupon"), True),
        (says("is_none", "input/total"), False),
        (says("gt", says("size", "a"), 1, kind="number"), True),
        (says("contains", "a", 1, kind="number"), True),
        (says("eq", says("not", "b/ok"), says("is_none", "a"), kind="bool"), True),
    ],
)
def test_evaluate(condition, expected):
    """Operations nest, read paths, and come to what Python's own would come to."""
    known = values(input='{"total": "1000.01", "express": false, "coupon": null}', a="[1, 2]", b='{"n": 2, "ok": true}')
    if expected is None:
        with pytest.raises(KeyError):  # "1000" is taken for a node's name here
            answer(condition, known)
    else:
        assert answer(condition, known) is expected


def test_and_or_stop_at_the_first_that_decides():
    """What comes after the deciding part is not evaluated, so that one part may guard another."""
    known = values(a='{"n": null, "big": false}')
    trap = says("gt", "a/n", 3, kind="number")
    assert answer(says("and", "a/big", trap), known) is False
    assert answer(says("or", says("is_none", "a/n"), trap), known) is True
    assert answer(says("and", says("not", says("is_none", "a/n")), trap), known) is False
    with pytest.raises(Unevaluable):
        answer(says("and", says("not", "a/big"), trap), known)
    with pytest.raises(Unevaluable):
        answer(says("or", trap, says("is_none", "a/n")), known)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (says("gt", "a/n", 3, kind="number"), 'a.n: expected a number, got "three"'),
        (says("gt", 3, "a/n", kind="number"), 'a.n: expected a number, got "three"'),
        (says("gt", "a/items/0", ("x",), kind="decimal"), 'the constant: expected a decimal, got "x"'),
        (says("and", "a/n"), 'a.n: expected true or false, got "three"'),
        (
            says("not", "a"),
            'a: expected true or false, got {"n": "three", "items": [1], "long": "xxxxxxxxxxxxxxxxxxx...',
        ),
        ({"ref": "a", "path": ["items"]}, "a.items: expected true or false, got [1]"),
        (says("gt", says("size", "a/n"), ("x",), kind="text"), "size(a.n): expected text, got 5"),
        (says("lt", "maybe:b", 1, kind="number"), "maybe(b): expected a number, got null"),
        (says("lt", "either:c,b/k", 1, kind="number"), "either(c, b).k: expected a number, got null"),
        (says("lt", "settled:b/value", 1, kind="number"), "settled(b).value: expected a number, got null"),
        (
            says("lt", "a/items/0", 1, kind="roman"),
            "a.items[0]: expected a kind of values that this release knows, not 'roman', got 1",
        ),
        (says("xor", "a/n", "a/n"), "xor(): this release knows no such operation"),
        (says("eq", "a/m", 1, kind="number"), "a.m: there is no such key; it has ['items', 'long', 'n']"),
        (says("eq", "a/n/x", 1, kind="number"), "a.n.x: the value there is str, which has no parts"),
        (
            says("eq", "settled:b/value/x", 1, kind="number"),
            "settled(b).value.x: the value there is null, which has no parts",
        ),
        (says("lt", "a/items", 1), "a.items: expected values with an order, and a JSON value has none, got [1]"),
    ],
)
def test_what_cannot_be_evaluated_says_where_and_why(condition, message):
    """Node, path, the value and the kind it should be of are named, and the error survives pickling."""
    known = values("CSC", a=json.dumps({"n": "three", "items": [1], "long": "x" * 99}), c='{"k": null}')
    with pytest.raises(Unreadable) as caught:
        evaluate(PLAN, {"$": condition}, known)
    assert str(caught.value) == message
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), vars(again)) == (message, vars(caught.value))


def test_damaged_and_deep_values_are_unreadable():
    """Text that is no JSON, a number beyond what can be read and a value nested too deeply are errors of the condition."""
    for text in ("{", "1" * 5_000, "[" * 100_000 + "]" * 100_000, "\ud800["):
        with pytest.raises(Unreadable, match="a: its JSON cannot be read"):
            evaluate(PLAN, {"$": says("is_none", "a")}, values(a=text))


def test_a_condition_is_an_expression():
    """A template that is no expression is no condition."""
    for template in (True, None, {"x": 1}, [{"$": {"ref": "a"}}]):
        with pytest.raises(Unevaluable, match="it is no expression"):
            evaluate(PLAN, template, values(a="true"))
    assert evaluate(PLAN, {"$": {"ref": "a"}}, values(a="true")) is True
    assert evaluate(PLAN, {"$": {"const": False}}, values()) is False


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["1.0", "2026-01-01", "P1D"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
CONDITIONS = st.recursive(
    JSON.map(lambda value: {"const": value})
    | st.sampled_from([{"ref": "a"}, {"maybe": [{"ref": "b"}]}, {"settled": [{"ref": "c"}]}]),
    lambda inner: st.builds(
        lambda op, args, kind: {"op": op, "args": args, "as": kind},
        st.sampled_from(["and", "or", "not", "is_none", "size", "contains", *sorted(COMPARISONS)]),
        st.lists(inner, min_size=2, max_size=3),
        st.sampled_from([*KINDS, "unknown"]),
    ),
    max_leaves=8,
)


@given(CONDITIONS, JSON)
def test_any_condition_answers_or_says_why_not(condition, value):
    """Whatever is compared with whatever, there is a yes, a no, or an Unreadable with the reason; never another exception."""
    known = values("CSF", a=json.dumps(value), errors={2: '{"type":"ValueError"}'})
    try:
        assert evaluate(PLAN, {"$": condition}, known) in (True, False)
    except Unreadable as error:
        assert str(error)
