"""Values as JSON text, by their annotations. One codec a type, built once.

A value that would be lost or changed on its way through JSON is refused, where its type is declared if the type
says so, else where it is produced: what was written is read again and compared, whatever its size. That costs one to
three readings, against a field that is silently gone when a run resumes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from inspect import Parameter
from typing import Any, Final, Generic, TypeVar

import typing_extensions as te
from pydantic import ConfigDict, GetCoreSchemaHandler, SecretBytes, SecretStr, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import CoreSchema, ValidationError, from_json

from composer.define.fidelity import DEEPEST, at, difference, fault, same, short
from composer.errors import PayloadError

T = TypeVar("T")

_CONFIG: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings")
_REFUSED: Final = {
    "callable": "a function has no JSON",
    "generator": "an iterator is spent by reading it; use a list",
    "is-instance": "pydantic knows no JSON for this class",
    "is-subclass": "a class object has no JSON",
}
_UNBOUNDED: Final = frozenset(("any", "definition-ref"))
"""Kinds of schema whose values may lie in one another to any depth."""
_PLAIN: Final = (int, str, bool, type(None))
"""Types whose own values always come back as they are, so that nothing is compared."""
_MANY: Final = 2**63
"""Integers beyond it are compared: Python and pydantic stop reading at some number of digits."""
_MARGIN: Final = 200 - DEEPEST


class Codec(Generic[T]):
    """Writes and reads the values of one type."""

    __slots__ = ("_is_unbounded", "_plain", "_read", "_write", "adapter", "type")

    def __init__(self, type_: Any) -> None:
        self.type = type_
        self.adapter: TypeAdapter[T] = _adapter(type_)
        self._is_unbounded = not _UNBOUNDED.isdisjoint(set(_walk(self.adapter.core_schema, _CONFIG)))
        # By identity: an annotation need not be hashable.
        self._plain: Any = next((each for each in _PLAIN if each is type_), type(None) if type_ is None else None)
        # The adapter's own methods add half a microsecond of Python around these two.
        self._write = self.adapter.serializer.to_json
        self._read = self.adapter.validator.validate_json

    def __repr__(self) -> str:
        return f"Codec({self.type!r})"

    def encode(self, value: T, *, check: bool = True, most: int | None = None) -> str:
        """JSON text. Raises PayloadError with the path and the reason when the value would not come back as it is.

        Without `check` it may come back as another type of the same JSON, as a tuple does as a list. A text of more than
        `most` characters is not looked at any more: the caller refuses it for its size.
        """
        if type(value) is self._plain:
            # These come back as they are, so nothing is compared. Text is not among them: pydantic refuses surrogates.
            if value is None:
                return "null"
            if isinstance(value, bool):
                return "true" if value else "false"
            if isinstance(value, int) and -_MANY < value < _MANY:
                return int.__repr__(value)
        try:
            # warnings="error": pydantic's default writes a value of the wrong type and only warns.
            text = self._write(value, by_alias=True, round_trip=True, warnings="error").decode()
        except Exception as error:  # pydantic's, or one of a serializer of the user's
            raise PayloadError(self._why_not_written(value, error)) from error
        if (self._plain is str and type(value) is str) or (most is not None and len(text) > most):
            return text
        try:
            if check:
                self._compare(value, text)
            elif (found := _unreadable(text, value)) is not None:
                raise PayloadError(found)
        except RecursionError:
            raise PayloadError(_TOO_DEEP) from None
        if self._is_unbounded and text.count("[") + text.count("{") > DEEPEST:
            try:
                from_json("[" * _MARGIN + text + "]" * _MARGIN)
            except ValueError:
                raise PayloadError(_TOO_DEEP) from None
        return text

    def decode(self, text: str | bytes) -> T:
        """The value. Raises PayloadError with the path and the reason when the text is none of this type."""
        try:
            return self._read(text)  # type: ignore[no-any-return]
        except Exception as error:  # pydantic's, or one of a validator of the user's
            raise PayloadError(_why_not_read(error)) from error

    def constant(self, value: Any) -> Any:
        """A constant of the user's code as JSON; `1000` is a fine Decimal, "abc" is not (PayloadError)."""
        try:
            made = self.adapter.validate_python(value)
        except Exception as error:
            raise PayloadError(_why_not_read(error)) from error
        return from_json(self.encode(made))

    def json_schema(self) -> dict[str, Any]:
        """The type as JSON Schema, made on demand; {} when pydantic cannot express it."""
        try:
            return self.adapter.json_schema(mode="serialization")
        except PydanticUserError:  # a custom type of the user's without a schema: it is only shown
            return {}

    def _compare(self, value: Any, text: str) -> None:
        try:
            back: Any = self._read(text)
        except Exception as error:
            reason = fault(value) or f"{_why_not_read(error)} (when read back from its JSON)"
            raise PayloadError(reason) from error
        if not same(value, back):
            raise PayloadError(fault(value) or difference(value, back))

    def _why_not_written(self, value: Any, error: Exception) -> str:
        """With the path, which pydantic's own message lacks: found in the value, or by writing it without warnings."""
        try:
            found = fault(value)
            if found:
                return found
            text = self.adapter.dump_json(value, by_alias=True, round_trip=True, warnings=False)
            back: Any = self.adapter.validate_json(text)
        except ValidationError as mistakes:
            return reason_of(mistakes)
        except RecursionError:
            return _TOO_DEEP
        except Exception:
            return _last_line(error)
        return difference(value, back)


_TOO_DEEP: Final = f"lists and objects lie more than {DEEPEST} deep in one another"


def _unreadable(text: str, value: Any) -> str | None:
    """Why the text of an unchecked value cannot be read, or is not what was meant."""
    try:
        from_json(text)
    except ValueError as error:
        return fault(value) or _last_line(error)
    # What pydantic writes for a lone surrogate in a key.
    return fault(value) or None if "\ufffd" in text else None


def _why_not_read(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return reason_of(error)
    return f"{type(error).__name__}: {_last_line(error)}"


def _adapter(type_: Any) -> TypeAdapter[Any]:
    # Through an alias, because pydantic refuses a config beside a bare dataclass. The config then reaches dataclasses,
    # TypedDicts and NamedTuples at any depth; a BaseModel keeps its own.
    alias: Any = te.TypeAliasType("Payload", type_)  # pyright: ignore[reportGeneralTypeIssues]
    try:
        return TypeAdapter(alias, config=_CONFIG)
    except PydanticSchemaGenerationError as error:
        # Its own advice, arbitrary_types_allowed, would only move the failure to the first value.
        found = str(error).partition(". Set ")[0].rpartition(" for ")[2]
        raise TypeError(f"pydantic knows no JSON for {found}; use a dataclass, a model or a container") from None


@lru_cache(maxsize=4096)
def _cached(type_: Any) -> Codec[Any]:
    return Codec(type_)


def codec(type_: Any) -> Codec[Any]:
    """The codec of a type, built once. Raises TypeError, or pydantic's own error, for a type that JSON cannot carry."""
    try:
        hash(type_)
    except TypeError:  # Annotated with a list or a dict in it
        return Codec(type_)
    return _cached(type_)


class Arguments:
    """Reads a call's arguments, a JSON object by parameter name, in one validation."""

    __slots__ = ("_defaults", "_keywords", "_names", "_read")

    def __init__(self, parameters: Mapping[str, Parameter], types: Mapping[str, Any]) -> None:
        fields: dict[str, Any] = {
            name: types[name] if parameter.default is parameter.empty else te.NotRequired[types[name]]
            for name, parameter in parameters.items()
        }
        made: Any = te.TypedDict("Arguments", fields) if fields else None  # type: ignore[operator]
        self._read: Any = _adapter(te.Annotated[made, _Closed]).validator.validate_json if fields else None
        self._names = tuple(fields)
        self._defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        self._keywords = tuple(n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY)

    def decode(self, text: str | bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments, ready for fn(*args, **kwargs). Raises PayloadError.

        A parameter that is missing takes its default: the plan may be older than the code.
        """
        if self._read is None:
            if text not in ("{}", b"{}") and from_json(text) != {}:
                raise PayloadError("it takes no arguments")
            return (), {}
        try:
            values: dict[str, Any] = self._read(text)
        except Exception as error:  # pydantic's, or one of a validator of the user's
            raise PayloadError(_why_not_read(error)) from error
        if len(values) != len(self._names):
            values = {name: values[name] if name in values else self._defaults[name] for name in self._names}
        if not self._keywords:
            return tuple(values.values()), {}
        keywords = {name: values.pop(name) for name in self._keywords}
        return tuple(values.values()), keywords


class _Closed:
    """Metadata that refuses unknown keys of one TypedDict. A config would reach every type inside it as well."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        inner: Any = handler.resolve_ref_schema(schema)
        inner["extra_behavior"] = "forbid"
        return schema


def reason_of(error: ValidationError) -> str:
    """The first mistakes of a failed validation in one line, each with its path."""
    found = error.errors(include_url=False, include_context=False)
    shown = [
        f"{at(each['loc'])}{each['msg']}" + (f", got {short(each['input'])}" if each["type"] != "missing" else "")
        for each in found[:3]
    ]
    return "; ".join(shown) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")


def _last_line(error: BaseException) -> str:
    try:
        lines = str(error).splitlines()
    except Exception:  # the user's own
        lines = []
    return lines[-1].strip() if lines else type(error).__name__


def _walk(node: Any, config: Mapping[str, Any]) -> Iterator[str]:
    """Kinds of schema met on the JSON side. Raises TypeError for what does not come back as it was."""
    if isinstance(node, (list, tuple)):
        for value in node:
            yield from _walk(value, config)
    if not isinstance(node, dict):
        return
    kind = node.get("type")
    if kind == "model":
        config = node.get("config") or {}
    if isinstance(kind, str):
        _refuse_lossy(kind, node, config)
        yield kind
    for key, value in node.items():
        if key in ("python_schema", "strict_schema"):  # never used for JSON, but a secret shows itself there
            if any(each.get("cls") in (SecretStr, SecretBytes) for each in _dicts(value)):
                raise TypeError(_SECRET)
        elif key not in ("serialization", "metadata", "config"):
            yield from _walk(value, config)


_SECRET: Final = "a secret is written as asterisks; pass a reference to the secret instead"


def _refuse_lossy(kind: str, node: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    if node.get("cls") in (SecretStr, SecretBytes):
        raise TypeError(_SECRET)
    if kind in _REFUSED:
        raise TypeError(_REFUSED[kind])
    if kind == "bytes" and config.get("val_json_bytes") != "base64":
        raise TypeError(
            "bytes in a pydantic model need model_config = ConfigDict(ser_json_bytes='base64', val_json_bytes='base64')"
        )
    if node.get("init_only"):
        raise TypeError("an InitVar is lost on the way: keep what was made of it in a field")
    if node.get("serialization_exclude"):
        raise TypeError("a field with exclude=True is lost on the way")
    written, read = node.get("serialization_alias"), node.get("validation_alias")
    if kind.endswith("-field") and written != read:
        raise TypeError(f"a field is written as {written!r} and read as {read!r}; use alias=")


def _dicts(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from _dicts(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _dicts(value)
