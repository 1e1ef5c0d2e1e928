"""Templates filled in: what is spliced whole, what is selected, and what cannot be read."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.core.expressions import Unreadable, render, select
from composer.core.plan import INPUT
from composer.core.values import Values
from tests.builders import a_plan

PLAN = a_plan({"a": [], "b": []})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def values(**texts: str) -> Values:
    return Values("CC", {INPUT if name == "input" else PLAN.index[name]: text for name, text in texts.items()})


@pytest.mark.parametrize(
    "text", ["1.10", "12345678901234567890.123456789", '{"b":1, "a":2}', '"\\ud83d\\ude00\\u0000"']
)
def test_render_splices_whole_values_as_they_were_stored(text):
    """A value passed on whole keeps every digit, key order and escape."""
    assert render(PLAN, {"$": {"ref": "a"}}, values(a=text)) == text
    assert render(PLAN, {"x": [{"$": {"ref": "a"}}]}, values(a=text)) == f'{{"x":[{text}]}}'


def test_render_fills_in_paths_and_constants():
    """Paths, the input, quoted data and plain constants come together as one JSON text."""
    template = {
        "one": {"$": {"ref": "a", "path": ["items", 1, "name"]}},
        "two": {"$": {"ref": "input", "path": ["0"]}},
        "three": {"$": {"const": {"$": {"ref": "a"}}}},
        "four": {"$": {"object": {"$": {"$": {"ref": "b"}}, "é": None}}},
        "five": ["x", 1.5, True],
    }
    got = render(PLAN, template, values(a='{"items":[0,{"name":"ü"}]}', b="[]", input='{"0":7}'))
    assert json.loads(got) == {
        "one": "ü", "two": 7, "three": {"$": {"ref": "a"}}, "four": {"$": [], "é": None}, "five": ["x", 1.5, True],
    }  # fmt: skip


@given(JSON)
def test_render_of_a_constant_is_the_constant(value):
    """Quoted data of any shape comes out as it went in, keys called "$" included."""
    assert json.loads(render(PLAN, {"$": {"const": value}}, values())) == value


@given(JSON, st.lists(st.text(max_size=2) | st.integers(-3, 3), max_size=3))
def test_select_answers_or_says_why_not(value, path):
    """Any path into any value gives a part of it or Unreadable, never another exception."""
    try:
        select(value, path, "a")
    except Unreadable as error:
        assert str(error).startswith("a")


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        ({"a": {"b": 1}}, ["a", "c"], "n.a.c: there is no such key; it has ['b']"),
        ([1, 2], [5], "n[5]: the list has 2 items"),
        ({"a": None}, ["a", "b"], "n.a.b: the value there is null, which has no parts"),
        ({"a": 3}, ["a", 0], "n.a[0]: the value there is int, which has no parts"),
    ],
)
def test_unreadable_names_the_path_and_the_reason(value, path, message):
    """A path that leads nowhere is named as far as it went, with what is there instead."""
    with pytest.raises(Unreadable) as caught:
        select(value, path, "n")
    assert str(caught.value) == message
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


def test_select_takes_a_number_as_a_key():
    """A number selects an item of a list and a key of an object, since JSON keys are text."""
    assert select([10, 20], [1], "n") == 20
    assert select({"1": "x"}, [1], "n") == "x"
