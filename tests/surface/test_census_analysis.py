"""What the census sees in one file: small trees made up for the purpose."""

from __future__ import annotations

import ast
import textwrap
import warnings
from pathlib import Path

import pytest

from samples.census.analysis import (
    Definition,
    FileFacts,
    LineCounts,
    decode,
    definitions,
    facts_of,
    imported_modules,
    line_counts,
    package_of,
    parse,
    python_files,
    top_level_of,
)


def facts(folder: Path, source: str | bytes) -> FileFacts:
    data = source if isinstance(source, bytes) else textwrap.dedent(source).encode()
    (folder / "module.py").write_bytes(data)
    return facts_of(folder, "module.py")


def counts(source: str) -> LineCounts:
    source = textwrap.dedent(source)
    return line_counts(source, ast.parse(source))


def defined(source: str) -> dict[str, Definition]:
    return {found.name: found for found in definitions(ast.parse(textwrap.dedent(source)))}


def test_python_files_are_sorted_and_without_installed_packages(tmp_path: Path) -> None:
    """Only modules are found, in every folder but those of installed packages and caches."""
    for path in ("b.py", "a/z.py", "a/deep/y.py", "site-packages/x.py", "a/__pycache__/c.py", "a/readme.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert python_files(tmp_path) == ["a/deep/y.py", "a/z.py", "b.py"]


def test_empty_file_is_whole_and_has_nothing(tmp_path: Path) -> None:
    """An empty file counts no line and is not broken."""
    assert facts(tmp_path, "") == FileFacts(LineCounts(0, 0, 0, 0), 0, 0, (), frozenset())


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1\n", LineCounts(lines=1, code=1, comments=0, blank=0)),
        ("x = 1", LineCounts(lines=1, code=1, comments=0, blank=0)),
        ("\n\n", LineCounts(lines=2, code=0, comments=0, blank=2)),
        ("# a\n  # b\n\nx = 1  # c\n", LineCounts(lines=4, code=1, comments=2, blank=1)),
        ("\x0c\nx = 1\n", LineCounts(lines=2, code=1, comments=0, blank=1)),
    ],
)
def test_lines_are_code_comments_or_blank(source: str, expected: LineCounts) -> None:
    """Each line is counted once, as one kind, and the last newline does not begin another line."""
    assert counts(source) == expected


def test_lines_within_a_text_are_code() -> None:
    """What looks like a comment or an empty line in a long text is a part of the text."""
    source = '''
        # a comment
        def f():
            """First.

            # no comment
            """
            return g(
                # a comment again
                """
                # no comment
                """,
                f"""
                # {1}
                """,
            )
        '''
    # One blank line before it all and two comments; the rest is code.
    assert counts(source) == LineCounts(lines=16, code=13, comments=2, blank=1)


def test_functions_are_found_wherever_they_stand() -> None:
    """Nested, async, conditional and matched functions are found under their qualified names."""
    found = defined(
        """
        class Outer:
            class Inner:
                async def method(self):
                    def helper(): ...
        if True:
            def yes(): ...
        else:
            def no(): ...
        try:
            pass
        except ValueError:
            def caught(): ...
        finally:
            def final(): ...
        match 1:
            case 1:
                def matched(): ...
        with open("x"):
            def within(): ...
        """
    )
    assert {name for name, one in found.items() if one.is_class} == {"Outer", "Outer.Inner"}
    assert {name for name, one in found.items() if not one.is_class} == {
        "Outer.Inner.method",
        "Outer.Inner.method.helper",
        "yes",
        "no",
        "caught",
        "final",
        "matched",
        "within",
    }


def test_function_length_includes_decorators_and_what_is_inside() -> None:
    """A function begins at its first decorator and ends with its last line, nested functions included."""
    found = defined(
        """\
        @first
        @second(
            1,
        )
        def outer():
            @third
            def inner():
                return 1
            return inner
        """
    )
    assert (found["outer"].first_line, found["outer"].length) == (1, 9)
    assert (found["outer.inner"].first_line, found["outer.inner"].length) == (6, 3)


def test_longest_functions_come_first_and_classes_are_not_among_them(tmp_path: Path) -> None:
    """The facts list functions by length, those of one length by line, and count the classes apart."""
    seen = facts(
        tmp_path,
        """
        class Long:
            def a(self): ...
            def b(self):
                ...
            x = 1
        def c(): ...
        """,
    )
    assert [one.name for one in seen.longest] == ["Long.b", "Long.a", "c"]
    assert (seen.functions, seen.classes) == (3, 1)


def test_imports_are_named_once_and_resolved() -> None:
    """Imports count wherever they stand, relative ones within the package of the file."""
    tree = ast.parse(
        textwrap.dedent(
            """
            import os, os.path as p
            from collections.abc import Iterator
            def f():
                import os
                from . import sibling
                from .near import x
                from ..far import y
                from ... import nothing
            """
        )
    )
    assert imported_modules(tree, package="one.two") == {
        "os",
        "os.path",
        "collections.abc",
        "one.two",
        "one.two.near",
        "one.far",
    }


def test_imports_from_outside_of_the_root_are_left_out() -> None:
    """A relative import that climbs higher than the root names no module."""
    tree = ast.parse("from ...x import y\nfrom . import z\nfrom .near import w\n")
    assert imported_modules(tree, package="") == {"near"}


@pytest.mark.parametrize(
    ("path", "package", "top"),
    [
        ("abc.py", "", "abc"),
        ("email/__init__.py", "email", "email"),
        ("email/mime/text.py", "email.mime", "email"),
    ],
)
def test_package_follows_from_the_path(path: str, package: str, top: str) -> None:
    """A file belongs to the package of its folder and to the top-level name one would import."""
    assert (package_of(path), top_level_of(path)) == (package, top)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"def f(:\n    pass\n", "invalid syntax (line 1)"),
        (b"x = 1\nprint 'hello'\n", "(line 2)"),
        (b"# coding: no-such-thing\n", "unknown encoding: no-such-thing"),
        (b"# coding: utf-8\nx = '\xe9t\xe9'\n", "is not utf-8"),
        (b"# coding: ascii\nx = '\xc3\xa9'\n", "byte 0xc3 at 21 is not ascii"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "encoding problem: utf-8"),
        (b"x = '\x00'\n", "null bytes"),
        (b"(" * 5_000 + b")" * 5_000, "too many nested parentheses"),
    ],
)
def test_broken_file_says_why(tmp_path: Path, data: bytes, reason: str) -> None:
    """A file that cannot be decoded or parsed has a reason of one line, which names no folder, and no other facts."""
    seen = facts(tmp_path, data)
    assert seen.problem is not None
    assert reason in seen.problem
    assert str(tmp_path) not in seen.problem
    assert "\n" not in seen.problem
    assert (seen.counts.lines, seen.functions, seen.imports) == (0, 0, frozenset())


def test_file_that_went_away_is_broken(tmp_path: Path) -> None:
    """A file that was deleted after it was found is reported like any that cannot be read."""
    assert facts_of(tmp_path, "gone.py").problem == "No such file or directory"


@pytest.mark.parametrize(
    "data",
    ["# coding: latin-1\nname = 'é'\n".encode("latin-1"), "\ufeffname = 'é'\r\n".encode(), "name = 'é'\r".encode()],
)
def test_text_is_decoded_by_its_own_rules(data: bytes) -> None:
    """A coding line or byte order mark decides, and every kind of line end becomes a newline."""
    assert decode(data).endswith("name = 'é'\n")


def test_warnings_of_the_source_stay_silent() -> None:
    """A source that the compiler would only warn about is parsed without a word."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse("pattern = '\\d'\n").body


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    """Facts are remembered for one state of a file, not for its name."""
    assert facts(tmp_path, "x = 1\n").counts.lines == 1
    assert facts(tmp_path, "x = 1\ny = 2\n").counts.lines == 2
