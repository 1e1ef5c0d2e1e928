"""What one source file says about itself.

Nothing here knows of workflows: a path goes in, facts come out. A file that cannot be read is a fact as well.
"""

from __future__ import annotations

import ast
import io
import os
import threading
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})

# One file never contributes more to a list of the longest functions than the list is long.
LONGEST = 25

# What reading and parsing a broken file raises: bad encodings and NUL bytes are ValueErrors, and too deep a nesting is
# answered with RecursionError or, by the parser itself, MemoryError.
_UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)
_TEXTS = (ast.Constant, ast.JoinedStr)


@dataclass(frozen=True, slots=True)
class LineCounts:
    """`lines` is the sum of code, comments and blank lines; a line with code and a comment counts as code."""

    lines: int
    code: int
    comments: int
    blank: int


@dataclass(frozen=True, slots=True)
class Definition:
    """A function or class. `first_line` is its first decorator's, when it has any; `name` is qualified."""

    name: str
    first_line: int
    length: int
    is_class: bool


@dataclass(frozen=True, slots=True)
class FileFacts:
    """All that the census wants to know about one file. With a `problem` the rest is empty."""

    counts: LineCounts
    functions: int
    classes: int
    longest: tuple[Definition, ...]
    imports: frozenset[str]
    problem: str | None = None


def python_files(root: Path) -> list[str]:
    """The modules below `root`, as sorted relative paths with forward slashes; installed packages are left out."""
    found: list[str] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
        inside = Path(folder).relative_to(root)
        found.extend((inside / name).as_posix() for name in names if name.endswith(".py"))
    return sorted(found)


def facts_of(root: Path, path: str) -> FileFacts:
    """The facts about one file."""
    try:
        source = decode((root / path).read_bytes())
        tree = parse(source)
    except _UNREADABLE as error:
        return _broken(reason_of(error))
    defined = list(definitions(tree))
    functions = [found for found in defined if not found.is_class]
    return FileFacts(
        counts=line_counts(source, tree),
        functions=len(functions),
        classes=len(defined) - len(functions),
        longest=tuple(sorted(functions, key=lambda found: (-found.length, found.first_line))[:LONGEST]),
        imports=imported_modules(tree, package=package_of(path)),
    )


def _broken(reason: str) -> FileFacts:
    return FileFacts(LineCounts(0, 0, 0, 0), functions=0, classes=0, longest=(), imports=frozenset(), problem=reason)


def decode(data: bytes) -> str:
    """The text of a module, by its byte order mark or coding line, with every line end as a newline.

    Raises SyntaxError for an encoding that does not exist, UnicodeDecodeError for bytes that do not fit it.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return io.TextIOWrapper(io.BytesIO(data), encoding).read()


_parsing = threading.Lock()


def parse(source: str) -> ast.Module:
    """The tree of a module. What the compiler would only warn about is none of our business here.

    The lock guards the warning filters, which belong to the whole process. It costs nothing: the parser does not let go
    of the interpreter anyway.
    """
    with _parsing, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def reason_of(error: BaseException) -> str:
    """One line that says why a file cannot be used, without the path it was read from."""
    match error:
        case SyntaxError(lineno=int(line)):
            return f"{error.msg} (line {line})"
        case SyntaxError():
            return error.msg
        case UnicodeDecodeError():
            return f"byte 0x{error.object[error.start]:02x} at {error.start} is not {error.encoding}"
        case OSError():
            return error.strerror or type(error).__name__
        case _:
            return str(error) or type(error).__name__


def line_counts(source: str, tree: ast.Module) -> LineCounts:
    """Lines by kind. Inside a text of several lines everything is code, also what looks like a comment or is blank."""
    lines = source.split("\n")
    if lines[-1] == "":
        lines.pop()
    in_text = {line for first, last in _long_texts(tree) for line in range(first, last + 1)}
    comments = blank = 0
    for number, line in enumerate(lines, start=1):
        stripped = line.lstrip()
        if stripped and not stripped.startswith("#"):
            continue
        if number in in_text:
            continue
        if stripped:
            comments += 1
        else:
            blank += 1
    return LineCounts(len(lines), len(lines) - comments - blank, comments, blank)


def definitions(tree: ast.Module) -> Iterator[Definition]:
    """Every function, method and class, however deeply nested, in no particular order."""
    for node, scope in _statements(tree):
        if isinstance(node, _SCOPES):
            first = min((decorator.lineno for decorator in node.decorator_list), default=node.lineno)
            last = node.end_lineno or node.lineno
            yield Definition(scope + node.name, first, last - first + 1, isinstance(node, ast.ClassDef))


def imported_modules(tree: ast.Module, *, package: str) -> frozenset[str]:
    """The modules that import statements name, wherever they stand; relative ones are resolved within `package`."""
    found: set[str] = set()
    for node, _ in _statements(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(_absolute(node.module or "", level=node.level, package=package))
    return frozenset(found - {""})


def _absolute(module: str, *, level: int, package: str) -> str:
    if level == 0:
        return module
    parts = package.split(".") if package else []
    if level - 1 > len(parts):
        return ""
    kept = parts[: len(parts) - (level - 1)]
    return ".".join([*kept, module] if module else kept)


def package_of(path: str) -> str:
    """The dotted package a module file lies in: `email.mime` for `email/mime/text.py`, nothing at the top."""
    return ".".join(PurePosixPath(path).parent.parts)


def top_level_of(path: str) -> str:
    """The first name one would import to get at the file: `email` for `email/mime/text.py`, `abc` for `abc.py`."""
    first = PurePosixPath(path).parts[0]
    return first.removesuffix(".py")


def _statements(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """All statements with the scope they stand in (`Outer.method.`), without visiting a single expression.

    That is about ten times faster than `ast.walk`: nearly all nodes of a tree are parts of expressions.
    """
    stack: list[tuple[ast.AST, str]] = [(child, "") for child in tree.body]
    while stack:
        node, scope = stack.pop()
        yield node, scope
        inner = f"{scope}{node.name}." if isinstance(node, _SCOPES) else scope
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(node, block, None)
            if isinstance(children, list):
                stack.extend((child, inner) for child in children)


def _long_texts(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """First and last line of every text that goes over more than one line."""
    for statement, _ in _statements(tree):
        # Nearly all statements end here, and below, nearly all expressions. A case has no lines of its own.
        if not (_is_long(statement) or isinstance(statement, ast.match_case)):
            continue
        stack = [part for part in ast.iter_child_nodes(statement) if not isinstance(part, _STATEMENTS)]
        while stack:
            node = stack.pop()
            if isinstance(node, _TEXTS):
                if _is_long(node):
                    yield _span(node)
            elif _is_long(node) or not isinstance(node, ast.expr):
                stack.extend(ast.iter_child_nodes(node))


def _is_long(node: ast.AST) -> bool:
    first, last = _span(node)
    return last > first


def _span(node: ast.AST) -> tuple[int, int]:
    first: int = getattr(node, "lineno", 0)
    last: int = getattr(node, "end_lineno", first)
    return first, last
