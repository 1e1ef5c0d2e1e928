"""The census as a workflow: find the files, read each one, join what was seen.

Reading is a map: one item a file, each durable by itself, so that a worker that is killed in the middle costs the files
it was reading and no other. A file that cannot be parsed fails its item and not the run: `report` gets an outcome a
file, and lists the broken ones with the reason.
"""

from __future__ import annotations

import platform
import sysconfig
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from composer import NonRetryable, Outcome, settled_each, step, workflow

from .analysis import LONGEST, facts_of, python_files, top_level_of


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
class FileSeen:
    """All that the census wants to know of one whole file. `longest` are its own longest functions."""

    counts: FileCounts
    imports: list[str]
    longest: list[LongFunction]


class BrokenSource(NonRetryable):
    """A file cannot be decoded or parsed. The text says why."""


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
def read_file(path: str, root: str) -> FileSeen:
    """What one file says about itself. Raises BrokenSource when it cannot be decoded or parsed: no retry will mend it."""
    seen = facts_of(Path(root), path)
    if seen.problem is not None:
        raise BrokenSource(seen.problem)
    counts = FileCounts(path, seen.counts.lines, seen.counts.code, seen.counts.comments, seen.functions, seen.classes)
    longest = [LongFunction(path, found.name, found.first_line, found.length) for found in seen.longest]
    return FileSeen(counts, sorted(seen.imports), longest)


@step
def report(files: FileList, seen: list[Outcome[FileSeen]]) -> Report:
    """Everything joined, with the sums by top-level package. `seen` is in the order of the files."""
    whole = [outcome.unwrap() for outcome in seen if outcome.ok]
    broken = [
        BrokenFile(path, outcome.error.message)
        for path, outcome in zip(files.paths, seen, strict=True)
        if outcome.error is not None
    ]
    none = {file.path: FileCounts(file.path, 0, 0, 0, 0, 0) for file in broken}
    read = {file.counts.path: file.counts for file in whole}
    counts = [read.get(path) or none[path] for path in files.paths]
    by_package: dict[str, list[FileCounts]] = {}
    for file in counts:
        by_package.setdefault(top_level_of(file.path), []).append(file)
    packages = [_sum_of(name, members) for name, members in by_package.items()]
    longest = [function for file in whole for function in file.longest]
    return Report(
        python=platform.python_version(),
        root=files.root,
        total=_sum_of("total", counts),
        packages=sorted(packages, key=lambda package: (-package.code, package.name)),
        imports=_imports(whole),
        longest=sorted(longest, key=lambda function: (-function.length, function.path, function.line))[:LONGEST],
        broken=broken,
        files=counts,
    )


@workflow
def census(root: str | None = None) -> Report:
    """A report on all the Python modules in a folder: the standard library of the interpreter if none is given."""
    files = find_files(root)
    return report(files, settled_each(read_file.map(files.paths, root=files.root)))


def _imports(files: list[FileSeen]) -> ImportCounts:
    modules: Counter[str] = Counter()
    packages: Counter[str] = Counter()
    for file in files:
        modules.update(file.imports)
        packages.update({module.partition(".")[0] for module in file.imports})
    return ImportCounts(_most_first(modules), _most_first(packages))


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
