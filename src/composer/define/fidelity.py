"""Whether a value that was read back is the value that was written, and where it is not.

Python's own == is too kind for that: True equals 1, an enum's member its value, a named tuple a tuple, an OrderedDict a
dict, and a moment is equal in any zone. Whoever resumes a run would get the other thing without a word. So classes are
compared all the way down. Not compared is what its class declares to be no part of the value: private attributes of
models, fields of dataclasses that are neither given to `__init__` nor compared, the zone's name beside its offset.
"""

from __future__ import annotations

import dataclasses
import enum
import marshal
import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from inspect import isawaitable
from itertools import zip_longest
from operator import attrgetter
from typing import Any, Final, cast
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import to_json

DEEPEST: Final = 150
"""Lists and objects in one another. Readers of JSON stop at 200, and a value is passed on inside of others."""
_SHOWN: Final = 120
_MOST_DIGITS: Final = 4_300
"""Python and pydantic refuse to read longer numbers, as reading them takes time in the square of their length."""
_TOO_LONG: Final = 10**_MOST_DIGITS

Path = tuple[int | str, ...]


def same(one: Any, other: Any) -> bool:
    """Whether `other` is all that `one` was: equal, and of the same classes all the way down."""
    kind = type(one)
    if kind is not type(other):
        # The type checkers take an int for a float, and so do we.
        return kind is int and type(other) is float and one == other
    compare = _COMPARED.get(kind) or _same_of(cast("Hashable", kind))
    return compare(one, other)


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other)


def _same_number(one: float, other: float) -> bool:
    if one:
        return one == other or (one != one and other != other)
    return math.copysign(1.0, one) == math.copysign(1.0, other) and other == 0.0


def _same_decimal(one: Decimal, other: Decimal) -> bool:
    return one == other and one.same_quantum(other)  # 1.10 is not 1.1


def _same_datetime(one: datetime, other: datetime) -> bool:
    if one.tzinfo is not other.tzinfo and one.utcoffset() != other.utcoffset():
        return False
    # By the clock: a moment that a change of summer time repeats is equal to nothing of another zone.
    return one == other or one.replace(tzinfo=None, fold=0) == other.replace(tzinfo=None, fold=0)


def _same_time(one: time, other: time) -> bool:
    return (one.tzinfo is None) == (other.tzinfo is None) and one == other


def _same_items(one: Iterable[Any], other: Iterable[Any]) -> bool:
    """Of two collections of one length, in order."""
    for mine, theirs in zip(one, other, strict=True):
        kind = type(mine)
        if kind is type(theirs):
            if kind in _ATOMS:
                if mine == theirs:
                    continue
                return False
            if kind is float and mine and mine == theirs:
                continue
        if not same(mine, theirs):
            return False
    return True


def _same_list(one: Any, other: Any) -> bool:
    if len(one) != len(other):
        return False
    if len(one) > _LONG:
        if _same_bytes(one, other):
            return True
        parts = _parts_of(cast("Hashable", type(one[0])))
        # A list of one dataclass is compared as a list of tuples, which may be compared as bytes then.
        if parts is not None and len(set(map(type, one)) | set(map(type, other))) == 1:
            mine, theirs = list(map(parts, one)), list(map(parts, other))
            return _same_bytes(mine, theirs) or all(map(_same_items, mine, theirs))
    return _same_items(one, other)


def _same_bytes(one: Any, other: Any) -> bool:
    """Whether both are of nothing but Python's plain values, and the same ones: ten times as fast as asking each.

    False says nothing. The second version of marshal writes exact classes only, floats by their bits, and knows no
    references, so that equal bytes are equal values of equal classes.
    """
    try:
        return marshal.dumps(one, 2) == marshal.dumps(other, 2)
    except ValueError:
        return False


def _same_mapping(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    if len(one) != len(other):
        return False
    if len(one) > _LONG and _same_bytes(one, other):
        return True
    for (key, value), (its_key, its_value) in zip(one.items(), other.items(), strict=True):
        if type(key) is not type(its_key) or (key != its_key and not same(key, its_key)):
            break  # A TypedDict is read in the order of its fields.
        if not same(value, its_value):
            return False
    else:
        return True
    keys = {key: key for key in other}
    return all(key in keys and same(key, keys[key]) and same(value, other[key]) for key, value in one.items())


def _same_set(one: Any, other: Any) -> bool:
    if len(one) != len(other):
        return False
    members = {member: member for member in other}
    if all(member in members and same(member, members[member]) for member in one):
        return True
    return sorted(map(short, one)) == sorted(map(short, other))  # NaN is in no set but by identity


_LONG: Final = 8
"""Items above which the way by bytes is tried."""
_ATOMS: Final[frozenset[type]] = frozenset((str, int, bool, type(None), bytes, UUID, date, timedelta))
"""Of these == tells everything, once the classes are the same."""
_COMPARED: Final[dict[type, Callable[[Any, Any], bool]]] = {
    **dict.fromkeys(_ATOMS, _equal),
    float: _same_number,
    Decimal: _same_decimal,
    datetime: _same_datetime,
    time: _same_time,
    list: _same_list,
    tuple: _same_list,
    dict: _same_mapping,
    set: _same_set,
    frozenset: _same_set,
}


@lru_cache(maxsize=1024)
def _same_of(kind: Any) -> Callable[[Any, Any], bool]:
    """How values of a class that is none of Python's plain ones are compared."""
    if issubclass(kind, BaseModel):
        return _same_model
    parts = _parts_of(kind)
    if parts is not None:
        return lambda one, other: _same_items(parts(one), parts(other))
    if issubclass(kind, enum.Enum):
        return _equal
    if issubclass(kind, deque):
        return lambda one, other: one.maxlen == other.maxlen and _same_list(one, other)
    if issubclass(kind, defaultdict):
        return lambda one, other: one.default_factory == other.default_factory and _same_mapping(one, other)
    if issubclass(kind, (list, tuple)):
        return _same_list
    if issubclass(kind, Mapping):
        return _same_mapping
    return _same_object


@lru_cache(maxsize=1024)
def _parts_of(kind: Any) -> Callable[[Any], tuple[Any, ...]] | None:
    """What takes a value of a dataclass apart; None for other classes."""
    if not hasattr(kind, "__dataclass_fields__"):
        return None
    names = _names(kind)
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if field.init or field.compare)


def _same_model(one: BaseModel, other: BaseModel) -> bool:
    mine, theirs = one.__dict__, other.__dict__
    for name in type(one).model_fields:
        if not same(mine.get(name), theirs.get(name)):
            return False
    extra = one.__pydantic_extra__
    return not extra or same(extra, other.__pydantic_extra__)


def _same_object(one: Any, other: Any) -> bool:
    try:
        if one == other:
            return True
    except Exception:  # an __eq__ of the user's that fails decides nothing
        pass
    try:
        return repr(one) == repr(other)  # classes without __eq__ are unequal to themselves once copied
    except Exception:
        return False


def short(value: Any) -> str:
    """Its repr, cut to a length that fits a message; never raises."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def at(path: Path) -> str:
    """A path as the start of a message: "lines[0].price: "; "" for the value itself."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return f"{text.lstrip('.')}: " if text else ""


def difference(value: Any, back: Any, path: Path = ()) -> str:
    """The innermost place where what comes back is not what was written, in a sentence."""
    if type(value) is type(back) and len(path) < DEEPEST:
        for part, one, other in _pairs(value, back):
            if not same(one, other):
                return difference(one, other, (*path, part))
        if isinstance(value, Mapping):
            for key, other in zip_longest(value, back):
                if len(value) != len(back) and key not in back:
                    return f"{at(path)}the key {short(key)} would be lost"
                if len(value) == len(back) and not same(key, other):
                    return f"{at(path)}the key {short(key)} would come back as {short(other)}"
    text = f"{at(path)}{short(value)} would come back as {short(back)}"
    if type(value) is type(back):
        return text
    return f"{text} ({type(value).__name__} and {type(back).__name__}); {_advice(value, back)}"


def _advice(value: Any, back: Any) -> str:
    if type(value) is float and not math.isfinite(value):
        if back is None:
            return "a pydantic model needs model_config = ConfigDict(ser_json_inf_nan='strings')"
        return "annotate it as float, which carries NaN and the infinities"
    if isinstance(value, type(back)):
        return f"annotate it as {type(value).__name__}, or convert it"
    return "convert it, or annotate it as what it is"


def _pairs(value: Any, back: Any) -> Iterator[tuple[int | str, Any, Any]]:
    if isinstance(value, Mapping):
        for key in value:
            if key in back:
                yield str(key), value[key], back[key]
    elif isinstance(value, (list, tuple)) and len(value) == len(back):
        yield from ((i, one, other) for i, (one, other) in enumerate(zip(value, back, strict=True)))
    elif isinstance(value, BaseModel):
        for name in (*type(value).model_fields, *(value.__pydantic_extra__ or ())):
            yield name, getattr(value, name, None), getattr(back, name, None)
    elif dataclasses.is_dataclass(value):
        for name in _names(type(value)):
            yield name, getattr(value, name, None), getattr(back, name, None)


def fault(value: Any) -> str:
    """What in a value no JSON can hold, with its path: the first that is found; "" when nothing is."""
    found = _fault(value, (), set())
    return "" if found is None else f"{at(found[0])}{found[1]}"


def _fault(value: Any, path: Path, around: set[int]) -> tuple[Path, str] | None:
    kind = type(value)
    if issubclass(kind, str):
        return (path, f"{short(value)} holds a lone surrogate, which is no text in UTF-8") if _is_torn(value) else None
    if issubclass(kind, int):
        if abs(value) < _TOO_LONG:
            return None
        return path, f"an integer of more than {_MOST_DIGITS:,} digits, which is where readers of JSON stop"
    inside = list(_inside(value))
    if not inside and not isinstance(value, (list, tuple, set, frozenset, Mapping)):
        try:
            to_json(value, inf_nan_mode="strings")
        except Exception:
            return (
                None
                if _has_own_json(kind)
                else (path, f"{short(value)} has no JSON ({kind.__name__}): {_way_out(value)}")
            )
        return None
    if id(value) in around:
        return path, f"this {kind.__name__} holds itself"
    if len(path) >= DEEPEST:
        return (), f"lists and objects lie more than {DEEPEST} deep in one another"
    around.add(id(value))
    for part, each, is_key in inside:
        here = path if is_key else (*path, part)
        found = _fault(each, here, around)
        if found is not None:
            return (here, f"the key {found[1]}") if is_key and found[0] == here else found
    around.discard(id(value))
    return None


def _inside(value: Any) -> Iterator[tuple[int | str, Any, bool]]:
    """The parts of a value, and the keys of a mapping."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield str(key), key, True
            yield str(key), each, False
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from ((i, each, False) for i, each in enumerate(value))
    elif isinstance(value, BaseModel):
        for name in (*type(value).model_fields, *(value.__pydantic_extra__ or ())):
            yield name, getattr(value, name, None), False
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name, None), False


def _way_out(value: Any) -> str:
    if isawaitable(value):
        return "put `await` before the call that gave it"
    return "pass the data it is made of, and make it inside the step"


def _has_own_json(kind: type) -> bool:
    return hasattr(kind, "__get_pydantic_core_schema__")


def _is_torn(text: str) -> bool:
    return not str.isascii(text) and any("\ud800" <= letter <= "\udfff" for letter in text)
