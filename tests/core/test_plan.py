"""Plan: order, terms, hashes and the text it is stored as."""

from __future__ import annotations

import json
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.core.plan import (
    INPUT,
    Need,
    NodeOptions,
    Plan,
    Term,
    canonical,
    names_in,
    ordered,
    plan_from_text,
    symbols,
)
from composer.core.retries import NO_RETRY, Retry
from composer.errors import PlanError
from tests.builders import a_plan, tried


def test_order_is_topological_with_ties_by_name():
    """Nodes come after what they need, and otherwise by name, however the lines were ordered."""
    needs = {"d": ["a"], "b": [], "a": [], "c": ["b", "a"]}
    for names in permutations(needs):
        assert ordered({name: needs[name] for name in names}) == ["a", "b", "c", "d"]


def test_order_refuses_a_cycle():
    """A cycle is refused with the names of the nodes that wait for each other, and of no others."""
    with pytest.raises(PlanError, match=r"wait for each other: b, c\n"):
        ordered({"a": [], "b": ["a", "c"], "c": ["b"]})


@given(st.permutations(list("abcdef")))
def test_order_of_a_chain_is_the_chain(names):
    """A chain is ordered along its needs, whatever the names are."""
    assert ordered({name: [names[i - 1]] if i else [] for i, name in enumerate(names)}) == names


def test_nodes_know_needs_users_and_reads():
    """A node names what it needs once, who uses it, and what its arguments read; after() reads nothing."""
    plan = a_plan({"a": ["input"], "b": ["a", "a"], "c": ["after:a", "b", "maybe:a"]})
    a, b, c = plan.nodes
    assert (a.needs, a.users, a.reads) == ((), (1, 2), (INPUT,))
    assert (b.needs, b.users, b.reads) == ((0,), (2,), (0,))
    assert (c.needs, c.users, c.reads) == ((1, 0), (), (1, 0))
    assert c.terms == (Term(Need.PLAIN, (1,)), Term(Need.MAYBE, (0,)), Term(Need.AFTER, (0,)))
    assert plan.roots == (0,)
    assert plan.index == {"a": 0, "b": 1, "c": 2}


def test_terms_of_every_join():
    """Each way of writing a dependency becomes its term, also below after() and in expressions and guards."""
    plan = Plan(
        {
            "workflow": "w",
            "nodes": [
                {"name": "a", "kind": "step"},
                {"name": "b", "kind": "step"},
                {"name": "g", "kind": "guard", "args": {"condition": {"$": {"op": "not", "args": [{"ref": "a"}]}}}},
                {"name": "h", "kind": "guard", "args": {"condition": {"$": {"op": "gt", "args": [{"settled": [{"ref": "b"}]}, {"const": 3}]}}}},
                {
                    "name": "c",
                    "kind": "step",
                    "args": {"x": [{"$": {"either": [{"ref": "a"}, {"ref": "b"}]}}, {"$": {"settled_each": [{"ref": "a"}]}}]},
                    "after": [{"settled": [{"ref": "b"}]}],
                    "when": [{"guard": "g", "is": True}, {"guard": "h", "is": False}],
                },
            ],
            "output": {"$": {"maybe": [{"ref": "b"}]}},
        }
    )  # fmt: skip
    assert plan.nodes[2].terms == (Term(Need.PLAIN, (0,)),)
    assert plan.nodes[3].terms == (Term(Need.SETTLED, (1,)),)
    assert plan.nodes[4].terms == (
        Term(Need.EITHER, (0, 1)),
        Term(Need.PLAIN, (0,)),
        Term(Need.SETTLED, (1,)),
        Term(Need.GUARD_YES, (2,)),
        Term(Need.GUARD_NO, (3,)),
    )
    assert (plan.nodes[4].reads, plan.nodes[4].reads_settled) == ((0, 1), (1,))
    assert plan.handleable == {1}
    assert plan.output_terms == (Term(Need.MAYBE, (1,)),)
    assert plan.output_reads == (1,)


def test_either_with_the_input_always_has_a_branch():
    """The run's input is always there, so what reads it beside others waits for them and is not skipped with them."""
    plan = a_plan({"a": [], "b": ["either:a,input"], "c": ["maybe:input", "settled:input"]})
    assert [node.terms for node in plan.nodes] == [(), (Term(Need.MAYBE, (0,)),), ()]
    assert plan.nodes[1].reads == (0, INPUT)


def test_symbols_pass_over_quoted_data():
    """A quoted constant holds no symbol even where it looks like one, a quoted object does."""
    template = {
        "q": {"$": {"const": {"$": {"ref": "no"}}}},
        "o": {"$": {"object": {"$": {"$": {"ref": "yes"}}}}},
        "l": [1, "x", {"$": {"ref": "also", "path": ["k", 0]}}],
    }
    assert [name for symbol in symbols(template) for name in names_in(symbol)] == ["yes", "also"]


def test_options_leave_out_defaults():
    """Options as JSON hold only what differs from the defaults, and come back equal."""
    assert NodeOptions().as_json() == {}
    options = NodeOptions(retries=Retry(4, "2s"), timeout=3.0, queue="gpu", on_crash="fail", max_crashes=7)
    assert sorted(options.as_json()) == ["max_crashes", "on_crash", "queue", "retries", "timeout"]
    assert NodeOptions.from_json(json.loads(canonical(options.as_json()))) == options
    assert NodeOptions.from_json({}).retries is NO_RETRY


def test_options_of_a_newer_release_are_passed_over():
    """An option this release does not know is read past."""
    assert NodeOptions.from_json({"queue": "q", "wonders": 3}) == NodeOptions(queue="q")


def test_shape_and_options_have_a_hash_each():
    """Changed options leave the shape as it was, and changed wires or steps do not."""
    nodes = {"a": [], "b": ["a"]}
    plain, tuned = a_plan(nodes), a_plan(nodes, every=tried(5), timeout=9.0)
    assert plain.shape == tuned.shape
    assert plain.options_hash != tuned.options_hash
    assert (tuned.timeout, tuned.fail_fast, tuned.nodes[0].options.retries.attempts) == (9.0, False, 5)
    others = [a_plan({"a": [], "b": ["after:a"]}), a_plan({"a": [], "c": ["a"]}), a_plan(nodes, output="a")]
    assert len({each.shape for each in (plain, *others)}) == 4
    assert {each.options_hash for each in others} == {plain.options_hash}


def test_text_is_the_same_for_the_same_meaning():
    """Two plans that differ in the order of their lines and keys have one text, and reading it gives the same plan."""
    one, two = a_plan({"a": [], "b": ["a"], "c": ["b"]}), a_plan({"c": ["b"], "b": ["a"], "a": []})
    assert one.text == two.text
    read = plan_from_text(one.text, {"doc": "shop"})
    assert (read.text, read.shape, read.options_hash) == (one.text, one.shape, one.options_hash)
    assert read.about == {"doc": "shop"}
    assert read.nodes == one.nodes


def test_text_of_a_newer_format_is_refused():
    """A plan of an unknown format is refused with both formats and the advice to upgrade."""
    with pytest.raises(PlanError, match=r"'shop' has format 2, and this release reads format 1\n.*upgrade"):
        plan_from_text('{"format":2,"workflow":"shop"}')


def test_canonical_has_one_spelling():
    """Canonical JSON sorts keys, drops spaces, keeps letters and refuses what JSON has no word for."""
    assert canonical({"b": [1, 2.5, None], "a": "ü"}) == '{"a":"ü","b":[1,2.5,null]}'
    with pytest.raises(ValueError, match="JSON"):
        canonical(float("nan"))
