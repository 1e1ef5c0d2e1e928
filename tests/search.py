"""Breadth-first search over everything that can happen to something small."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol, Self


class World(Protocol):
    """Something at one moment."""

    @property
    def has_ended(self) -> bool:
        """Whether it is where it was to get to."""
        ...

    def key(self) -> Hashable:
        """What of it can make a difference later: worlds with equal keys are one state."""
        ...

    def moves(self) -> Iterable[tuple[str, Self]]:
        """What can happen next, by name, and the world after it."""
        ...

    def check(self) -> None:
        """Raises AssertionError unless all that must hold holds."""
        ...


@dataclass(frozen=True)
class Explored:
    """How much there was to see."""

    states: int
    transitions: int
    depth: int

    def __str__(self) -> str:
        return f"{self.states} states, {self.transitions} transitions, depth {self.depth}"


@dataclass(frozen=True)
class _State:
    number: int
    before: _State | None
    """The state it was first reached from."""
    move: str
    depth: int
    has_ended: bool

    def way(self) -> str:
        """The shortest way that leads here."""
        names, state = [], self
        while state.before is not None:
            names.append(state.move)
            state = state.before
        return " > ".join(["start", *reversed(names)])


def explore(start: World) -> Explored:
    """Walks every state that can be reached. Each is checked, and from each the end has to be in reach.

    No clock cuts it short, so that it asserts the same on every machine: a world has to be small enough.
    """
    first = _State(0, None, "", 0, start.has_ended)
    states = {start.key(): first}
    ways: list[list[_State]] = [[]]
    """For each state those it can be reached from in one move."""
    queue = deque([(first, start)])
    while queue:
        state, world = queue.popleft()
        for move, after in world.moves():
            key = after.key()
            known = states.get(key)
            if known is None:
                known = states[key] = _State(len(states), state, move, state.depth + 1, after.has_ended)
                ways.append([])
                try:
                    after.check()
                except AssertionError as error:
                    raise AssertionError(f"{error}\nafter {known.way()}") from error
                queue.append((known, after))
            ways[known.number].append(state)
    dead = _dead_ends(list(states.values()), ways)
    assert not dead, f"a dead end after {dead[0].way()}"
    return Explored(len(states), sum(map(len, ways)), max(state.depth for state in states.values()))


def _dead_ends(states: list[_State], ways: list[list[_State]]) -> list[_State]:
    alive = {state.number for state in states if state.has_ended}
    back = deque(alive)
    while back:
        for before in ways[back.popleft()]:
            if before.number not in alive:
                alive.add(before.number)
                back.append(before.number)
    return [state for state in states if state.number not in alive]
