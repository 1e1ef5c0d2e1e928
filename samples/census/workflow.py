"""The census as a workflow: find the files, look at them from four sides at once, join what was seen.

The four analyses depend on nothing but the list of files, so they run side by side; `report` waits for all of them.
They are plain functions and run in threads. Every few files each one says how far it is, and there it also learns
that its run was cancelled.
"""

from __future__ import annotations

import platform
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from composer import step, step_context, workflow

from .analysis import LONGEST, FileFacts, facts_of, python_files, top_level_of

# Often enough to stop within a second on a slow machine, seldom enough to cost nothing.
FILES_BETWEEN_HEARTBEATS = 25


@dataclass(frozen=True)
class FileList:
    """Sorted paths, relative to `root`, with forward slashes."""

    root: str
    paths: list[str]


@dataclass(frozen=True)
class FileCounts:
    """`lines` is the sum of code, comments and blank lines; all are zero for a broken file."""

    path: str
    lines: int
    code: int
    comments: int
    functions: int
    classes: int


@dataclass(frozen=True)
class ImportCounts:
    """How many files import it, by module and by top-level package; the most imported first, then by name."""

    modules: dict[str, int]
    packages: dict[str, int]


@dataclass(frozen=True)
class LongFunction:
    """`line` is where it begins, decorators included."""

    path: str
    name: str
    line: int
    length: int


@dataclass(frozen=True)
class BrokenFile:
    """A file that cannot be decoded or parsed, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class PackageCounts:
    """The sums over the files of one top-level package or module."""

    name: str
    files: int
    lines: int
    code: int
    comments: int
    functions: int
    classes: int


@dataclass(frozen=True)
class Report:
    """What the census found. `packages` begins with the one that has most code; `files` is sorted by path."""

    python: str
    root: str
    total: PackageCounts
    packages: list[PackageCounts]
    imports: ImportCounts
    longest: list[LongFunction]
    broken: list[BrokenFile]
    files: list[FileCounts]


@step
def find_files(root: str | None) -> FileList:
    """The modules below `root`; of the interpreter's own standard library when it is None."""
    folder = Path(root or sysconfig.get_path("stdlib")).resolve()
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    return FileList(str(folder), python_files(folder))


@step
def count_lines(files: FileList) -> list[FileCounts]:
    """Lines, functions and classes of every file, in the order of the files."""
    return [
        FileCounts(path, seen.counts.lines, seen.counts.code, seen.counts.comments, seen.functions, seen.classes)
        for path, seen in _look_at(files)
    ]


@step
def count_imports(files: FileList) -> ImportCounts:
    """How many files import each module, and each top-level package."""
    modules: Counter[str] = Counter()
    packages: Counter[str] = Counter()
    for _, seen in _look_at(files):
        modules.update(seen.imports)
        packages.update({module.partition(".")[0] for module in seen.imports})
    return ImportCounts(_most_first(modules), _most_first(packages))


@step
def longest_functions(files: FileList) -> list[LongFunction]:
    """The longest functions of all files, the longest first."""
    found = [
        LongFunction(path, function.name, function.first_line, function.length)
        for path, seen in _look_at(files)
        for function in seen.longest
    ]
    return sorted(found, key=lambda function: (-function.length, function.path, function.line))[:LONGEST]


@step
def broken_files(files: FileList) -> list[BrokenFile]:
    """The files that cannot be decoded or parsed; a standard library has some, as input of its own tests."""
    return [BrokenFile(path, seen.problem) for path, seen in _look_at(files) if seen.problem is not None]


@step
def report(
    files: FileList,
    counts: list[FileCounts],
    imports: ImportCounts,
    longest: list[LongFunction],
    broken: list[BrokenFile],
) -> Report:
    """Everything joined, with the sums by top-level package."""
    by_package: dict[str, list[FileCounts]] = {}
    for file in counts:
        by_package.setdefault(top_level_of(file.path), []).append(file)
    packages = [_sum_of(name, members) for name, members in by_package.items()]
    return Report(
        python=platform.python_version(),
        root=files.root,
        total=_sum_of("total", counts),
        packages=sorted(packages, key=lambda package: (-package.code, package.name)),
        imports=imports,
        longest=longest,
        broken=broken,
        files=counts,
    )


@workflow
def census(root: str | None = None) -> Report:
    """A report on all the Python modules in a folder: the standard library of the interpreter if none is given."""
    files = find_files(root)
    return report(
        files,
        count_lines(files),
        count_imports(files),
        longest_functions(files),
        broken_files(files),
    )


def _look_at(files: FileList) -> Iterator[tuple[str, FileFacts]]:
    """Each path with its facts; StepCancelled comes out of here when the run was stopped meanwhile."""
    context = step_context()
    root = Path(files.root)
    for done, path in enumerate(files.paths):
        if done % FILES_BETWEEN_HEARTBEATS == 0:
            context.heartbeat(done)
        yield path, facts_of(root, path)


def _most_first(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _sum_of(name: str, files: list[FileCounts]) -> PackageCounts:
    return PackageCounts(
        name,
        files=len(files),
        lines=sum(file.lines for file in files),
        code=sum(file.code for file in files),
        comments=sum(file.comments for file in files),
        functions=sum(file.functions for file in files),
        classes=sum(file.classes for file in files),
    )
