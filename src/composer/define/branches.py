"""Which nodes can run together: found from the guards of a plan, once, when it is finished.

What is known of a node that runs is a set of answers: this guard said true, that race was won by this member. A node
whose needs contradict each other can never run; either() of two that do not contradict each other would have two
values to choose from; and a result that depends on an answer may not be there. Each of these is a mistake that would
otherwise show itself as a node that is skipped, in one run of many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any, Final, TypeAlias

from composer.core.plan import Need, Plan, Term
from composer.define.source import Where
from composer.errors import PlanError

Answers: TypeAlias = frozenset[tuple[str, Any]]
"""What deciders answered: (guard, True or False), or (race, name of the member that won)."""

_MOST_EFFORT: Final = 500_000
"""Answers looked at for a whole plan, about 0.1 s. Beyond, branches count as complete: a run that finds none taken says
so itself."""
_WAYS_OUT: Final = "Read it with maybe(), either() or settled(), or move the reader into the branch."


class _Branches:
    def __init__(
        self, plan: Plan, where: Mapping[str, Any], overlaps: set[tuple[str, ...]] | None, returned_at: str
    ) -> None:
        self.plan, self.where, self.overlaps, self.returned_at = plan, where, overlaps, returned_at
        self.bodies: Mapping[str, Any] = {node["name"]: node for node in plan.body["nodes"]}
        self.names = [node["name"] for node in plan.body["nodes"]]
        self.deciders: dict[str, frozenset[Any]] = {}
        self.race_of: dict[str, str] = {}
        for name, body in self.bodies.items():
            if body["kind"] == "guard":
                self.deciders[name] = frozenset((True, False))
            elif body["kind"] == "race":
                members = [each["ref"] for each in body["of"]]
                self.deciders[name] = frozenset(members)
                self.race_of.update(dict.fromkeys(members, name))
        self.answers: dict[str, Answers] = {}
        """By node: what is known to have been answered when it runs."""
        self.effort = _MOST_EFFORT
        self.loose: dict[str, str] = {}
        """Nodes that can be skipped for a reason the answers do not show, with that reason."""

    def check(self) -> None:
        for node in self.plan.nodes:
            self._node(node.name, node.terms)
        self._output()

    # -- nodes --------------------------------------------------------------------------------------------------

    def _node(self, name: str, terms: Iterable[Term]) -> None:
        body, at = self.bodies[name], str(self.where[name])
        found: Answers = frozenset()
        for symbol in body.get("when", ()):
            found |= {(symbol["guard"], symbol["is"])} | self.answers[symbol["guard"]]
            self._loosen(name, symbol["guard"])
        if name in self.race_of:
            found |= {(self.race_of[name], name)}
        if body["kind"] == "race":
            # It ends with its first member, whichever that is: what all of them need is what it needs.
            members = [each["ref"] for each in body["of"]]
            found |= frozenset.intersection(*(self.answers[each] - {(name, each)} for each in members))
        for need in (self.names[i] for term in terms if term.need is Need.PLAIN for i in term.nodes):
            if _contradict(found, self.answers[need]):
                raise PlanError(
                    f"{name} can never run: it needs {need}, which is skipped whenever {name} is not",
                    f"{need} is at {self.where[need]}. {_WAYS_OUT}",
                    at,
                )
            found |= self.answers[need]
            self._loosen(name, need)
        for term in terms:
            if term.need is Need.EITHER:
                parts = self._either(term, name, at)
                possible = [part for part in parts if not _contradict(found, self.answers[part])]
                if not possible:
                    shown = f"either({', '.join(parts)})"
                    raise PlanError(f"{name} can never run: nothing of {shown} is there when it could", _WAYS_OUT, at)
                if not self._covers([self.answers[part] - found for part in possible]):
                    self.loose.setdefault(name, f"neither of {', '.join(parts)} may have run")
                for part in possible:
                    self._loosen(name, part)
                found |= frozenset.intersection(*(self.answers[part] for part in possible))
        self.answers[name] = found

    def _loosen(self, name: str, need: str) -> None:
        if need in self.loose:
            self.loose.setdefault(name, self.loose[need])

    def _either(self, term: Term, reader: str, at: str) -> list[str]:
        parts = [self.names[i] for i in term.nodes]
        if self.overlaps is not None and tuple(parts) not in self.overlaps:
            for one, other in combinations(parts, 2):
                if not _contradict(self.answers[one], self.answers[other]):
                    raise PlanError(
                        f"either() in {reader}: both {one} and {other} can complete",
                        "either() joins branches of which one is taken. If the first that completed, in the order "
                        "written, is to be used: either(a, b, overlap=True).",
                        at,
                    )
        return parts

    def _covers(self, branches: list[Answers]) -> bool:
        """Whether one of the branches is taken, whatever the deciders answer."""
        cases = [branches]
        while cases:
            left = cases.pop()
            if any(not branch for branch in left):
                continue
            if not left:
                return False
            self.effort -= sum(map(len, left))
            if self.effort < 0:
                break
            # One that was not asked may be given any answer: a branch inside of it carries what it was asked in as well.
            decider = min({decider for branch in left for decider, _ in branch}, key=self.plan.index.__getitem__)
            others = [branch for branch in left if all(each[0] != decider for each in branch)]
            cases += [
                others + [branch - {(decider, answer)} for branch in left if (decider, answer) in branch]
                for answer in self.deciders[decider]
            ]
        return True

    # -- the result ---------------------------------------------------------------------------------------------

    def _output(self) -> None:
        workflow = self.plan.workflow
        for term in self.plan.output_terms:
            if term.need is Need.EITHER:
                self._either(term, f"the result of {workflow}", self.returned_at)
            elif term.need is Need.PLAIN:
                name = self.names[term.nodes[0]]
                if name in self.loose or self.answers[name]:
                    why = self.loose.get(name) or _shown(self.answers[name], self.plan.about.get("conditions", {}))
                    raise PlanError(
                        f"workflow {workflow} returns the result of {name}, which can be skipped",
                        f"{why[0].upper()}{why[1:]}; it is at {self.where[name]}. Return either() of both branches, or "
                        f"maybe() of it and `| None` in the annotation.",
                        self.returned_at,
                    )


def check_branches(plan: Plan, where: Mapping[str, Where], overlaps: set[tuple[str, ...]], returned_at: str) -> None:
    """Raises PlanError for a node that can never run, an either() with two values, and a result that may not be there.

    `where` says where the nodes were made, `overlaps` which nodes either() may find completed together.
    """
    if any(body["kind"] in ("guard", "race") for body in plan.body["nodes"]) or _has_either(plan):
        _Branches(plan, where, overlaps, returned_at).check()


def uncovered(plan: Plan) -> list[tuple[str, ...]]:
    """Nodes of every either() in the run's result that may all be skipped: the run would have no output then."""
    eithers = [term for term in plan.output_terms if term.need is Need.EITHER]
    if not eithers:
        return []
    known = _Branches(plan, defaultdict(str), None, "")
    known.check()
    found = [tuple(known.names[i] for i in term.nodes) for term in eithers]
    return [parts for parts in found if not known._covers([known.answers[part] for part in parts])]


def _has_either(plan: Plan) -> bool:
    terms = (*plan.output_terms, *(term for node in plan.nodes for term in node.terms))
    return any(term.need is Need.EITHER for term in terms)


def _contradict(one: Answers, other: Answers) -> bool:
    known = dict(one)
    return any(known.get(decider, answer) != answer for decider, answer in other)


def _shown(answers: Answers, conditions: Mapping[str, str]) -> str:
    said: list[str] = []
    for decider, answer in sorted(answers, key=lambda each: each[0]):
        if isinstance(answer, bool):
            said.append(f"{'' if answer else 'not '}{conditions.get(decider, decider)}")
        else:
            said.append(f"{answer} comes first")
    return f"it runs only if {' and '.join(said)}"
