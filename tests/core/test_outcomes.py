"""Joins and outcomes: what a template makes of nodes that completed, failed, were skipped or stopped."""

from __future__ import annotations

import json

import pytest

from composer.core.expressions import Unreadable, render
from composer.core.outcomes import each_text, outcome_state, outcome_text
from composer.core.plan import INPUT, Plan, outcomes_code
from composer.core.states import SETTLED, NodeState
from composer.core.values import Values
from tests.builders import a_plan

PLAN = a_plan({"a": [], "b": [], "c": []})
ERROR = '{"kind":"error","type":"ValueError","message":"no"}'


def made(symbol: dict[str, object], letters: str, *, errors: dict[int, str] | None = None, **texts: str) -> str:
    """The symbol as a template's text."""
    outputs = {INPUT if name == "input" else PLAN.index[name]: text for name, text in texts.items()}
    return render(PLAN, {"$": symbol}, Values(letters, outputs, errors or {}))


REF_A, REF_B = {"ref": "a"}, {"ref": "b"}


def test_maybe_is_the_value_or_null():
    """maybe() gives the value whole or in part, and null when the node was skipped, whatever is left of an earlier life."""
    assert made({"maybe": [REF_A]}, "C..", a="1.10") == "1.10"
    assert made({"maybe": [REF_A], "path": ["n", 0]}, "C..", a='{"n":[3]}') == "3"
    assert made({"maybe": [REF_A]}, "S..") == "null"
    assert made({"maybe": [REF_A], "path": ["n"]}, "S..", a='{"n":1}') == "null"
    assert made({"maybe": [{"ref": "input"}]}, "...", input="7") == "7"
    with pytest.raises(Unreadable, match=r"a\.m: there is no such key"):
        made({"maybe": [REF_A], "path": ["m"]}, "C..", a='{"n":1}')


def test_either_is_the_value_of_the_branch_taken():
    """either() gives the value of the first node that completed, in the order written, with the join's path in it."""
    both = {"either": [REF_B, REF_A]}
    assert made(both, "CS.", a="1.10") == "1.10"
    assert made(both, "SC.", b="[ 2 ]") == "[ 2 ]"
    assert made(both, "CC.", a="1", b="2") == "2"
    assert made({**both, "path": [0]}, "CS.", a="[5]") == "5"
    assert made({"either": [REF_A, {"ref": "input", "path": ["x"]}]}, "S..", input='{"x":{"y":1}}') == '{"y": 1}'
    with pytest.raises(Unreadable, match=r"either\(b, a\): no branch was taken"):
        made(both, "SS.")


@pytest.mark.parametrize(
    ("letter", "state", "value", "error"),
    [
        ("C", "completed", "1.10", "null"),
        ("F", "failed", "null", ERROR),
        ("S", "skipped", "null", "null"),
        ("X", "cancelled", "null", "null"),
    ],
)
def test_settled_is_an_outcome(letter, state, value, error):
    """settled() gives state, value and error, the texts as they were stored; a path leads into each of the three."""
    symbol = {"settled": [REF_A]}
    known = {"a": "1.10", "errors": {0: ERROR}}
    assert made(symbol, letter + "..", **known) == f'{{"state":"{state}","value":{value},"error":{error}}}'
    assert made({**symbol, "path": ["state"]}, letter + "..", **known) == f'"{state}"'
    assert made({**symbol, "path": ["value"]}, letter + "..", **known) == value
    assert json.loads(made({**symbol, "path": ["error"]}, letter + "..", **known)) == json.loads(error)


def test_settled_has_paths_into_its_parts():
    """Paths go on below value and error, and say where they end."""
    symbol = {"settled": [REF_A]}
    assert made({**symbol, "path": ["value", "n", 1]}, "C..", a='{"n":[0,{"x":1}]}') == '{"x": 1}'
    assert made({**symbol, "path": ["error", "type"]}, "F..", errors={0: ERROR}) == '"ValueError"'
    part = {"settled": [{"ref": "a", "path": ["n"]}]}
    assert made(part, "C..", a='{"n":[7]}') == '{"state":"completed","value":[7],"error":null}'
    assert made({**part, "path": ["value", 0]}, "C..", a='{"n":[7]}') == "7"
    assert made({**part, "path": ["value"]}, "C..", a='{"n":[7]}') == "[7]"
    assert made({**part, "path": ["value"]}, "S..") == "null"
    with pytest.raises(Unreadable, match=r"settled\(a\).value.n: the value there is null"):
        made({**symbol, "path": ["value", "n"]}, "F..", errors={0: ERROR})
    with pytest.raises(Unreadable, match=r"settled\(a\): it has not settled"):
        made(symbol, "A..")


def test_texts_that_are_needed_and_missing_are_named():
    """A node whose output or error is wanted and not at hand is named by its place, for whoever can load it."""
    for symbol, letters in (
        ({"ref": "b"}, ".C."),
        ({"settled": [REF_B]}, ".F."),
        ({"settled": [REF_B], "path": ["state"]}, ".F."),
    ):
        with pytest.raises(KeyError) as caught:
            made(symbol, letters)
        assert caught.value.args == (1,)


@pytest.mark.parametrize(
    ("code", "state"), [("event-timeout", "timed-out"), ("child-cancelled", "cancelled"), ("x", "failed")]
)
def test_failures_with_a_word_of_their_own(code, state):
    """A wait that timed out and a child that was cancelled have failed, and their outcome says so by its own word."""
    error = json.dumps({"code": code, "message": "m"})
    assert outcome_state("F", error) == state
    text = made({"settled": [REF_A]}, "F..", errors={0: error})
    assert json.loads(text) == {"state": state, "value": None, "error": json.loads(error)}


def test_every_end_has_a_word():
    """Each letter of a settled node has an outcome, and none of an open one."""
    assert {letter: outcome_state(letter, None) for letter in SETTLED} == {
        "C": "completed", "F": "failed", "S": "skipped", "X": "cancelled", "V": "completed", "!": "completed",
    }  # fmt: skip
    for letter in set(NodeState) - set(SETTLED) - {NodeState.COMPENSATING}:
        with pytest.raises(KeyError):
            outcome_state(letter, None)


def test_settled_each_is_a_list_of_outcomes():
    """settled_each() gives what is at hand for the map, an Outcome an item, with paths into it."""
    items = each_text([("completed", "1.10", None), ("failed", None, ERROR), ("cancelled", None, None)])
    assert (
        items
        == f"[{outcome_text('completed', '1.10')},{outcome_text('failed', error=ERROR)},{outcome_text('cancelled')}]"
    )
    nodes = [{"name": "a", "kind": "map", "step": "a", "over": "x", "args": {"x": [1, 2, 3]}}]
    plan = Plan({"format": 1, "workflow": "flow", "nodes": nodes, "output": None})
    symbol, known = {"settled_each": [REF_A]}, Values("C", {outcomes_code(0): items})
    assert render(plan, {"x": {"$": symbol}}, known) == f'{{"x":{items}}}'
    assert render(plan, {"$": {**symbol, "path": [1, "error", "type"]}}, known) == '"ValueError"'


def test_joins_and_expressions_stand_anywhere_in_a_template():
    """Arguments may hold joins and expressions at any depth, beside plain values."""
    template = {"m": [{"$": {"maybe": [REF_A]}}], "e": {"$": {"op": "is_none", "args": [{"maybe": [REF_A]}]}}, "n": 1}
    assert render(PLAN, template, Values("S..")) == '{"m":[null],"e":true,"n":1}'


def test_values_say_what_they_lack():
    """Outputs of completed nodes and the input are wanted, errors only of failed nodes read through settled()."""
    known = Values("CFSC", {3: "1"}, {})
    assert known.lacking((INPUT, 0, 1, 2, 3), ()) == [INPUT, 0]
    assert known.lacking((0, 1, 2, 3), (0, 1)) == [0, 1]
    assert Values("CF", {0: "1"}, {1: ERROR}).lacking((0, 1), (1,)) == []
