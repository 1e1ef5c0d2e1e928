"""The report for people, as tables, and for programs, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .workflow import PackageCounts, Report

TOP = 10


def as_json(report: Report) -> str:
    """The whole report, indented, ending in a newline."""
    return json.dumps(asdict(report), indent=2, ensure_ascii=False) + "\n"


def print_report(report: Report, console: Console) -> None:
    """The best of the report: totals, the ten biggest of everything, and all broken files."""
    total = report.total
    console.print(
        Text.assemble(
            ("Python ", "bold"),
            (report.python, "bold"),
            f", {report.root}: {total.files:,} files, {total.lines:,} lines, "
            f"{total.functions:,} functions, {total.classes:,} classes",
        )
    )
    for table in (_packages(report), _imports(report), _longest(report), _broken(report)):
        console.print()
        console.print(table)


def _packages(report: Report) -> Table:
    table = _table("Where the code is", "package", "files", "lines", "code", "comments", "functions", "classes")
    for package in report.packages[:TOP]:
        table.add_row(*_package_row(package))
    rest = len(report.packages) - TOP
    if rest > 0:
        table.add_row(f"... {rest} more")
    table.add_section()
    table.add_row(*_package_row(report.total))
    return table


def _package_row(package: PackageCounts) -> list[str]:
    numbers = (package.files, package.lines, package.code, package.comments, package.functions, package.classes)
    return [package.name, *(f"{number:,}" for number in numbers)]


def _imports(report: Report) -> Table:
    table = Table(title="Most imported", title_justify="left", title_style="bold")
    for heading in ("module", "package"):
        table.add_column(heading, overflow="fold")
        table.add_column("files", justify="right")
    modules = list(report.imports.modules.items())[:TOP]
    packages = list(report.imports.packages.items())[:TOP]
    # There are never more packages than modules.
    for row, (module, files) in enumerate(modules):
        right = (packages[row][0], f"{packages[row][1]:,}") if row < len(packages) else ("", "")
        table.add_row(Text(module), f"{files:,}", Text(right[0]), right[1])
    return table


def _longest(report: Report) -> Table:
    table = _table("Longest functions", "function", "lines", "at", numbers=("lines",))
    for function in report.longest[:TOP]:
        table.add_row(Text(function.name), f"{function.length:,}", Text(f"{function.path}:{function.line}"))
    return table


def _broken(report: Report) -> Table | Text:
    if not report.broken:
        return Text("No broken files", style="bold")
    table = _table(f"Broken files ({len(report.broken)})", "file", "why", numbers=())
    for file in report.broken:
        table.add_row(Text(file.path), Text(file.reason))
    return table


def _table(title: str, first: str, *others: str, numbers: tuple[str, ...] | None = None) -> Table:
    """A table whose later columns are numbers, unless `numbers` names those that are."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first, overflow="fold")
    for heading in others:
        is_number = numbers is None or heading in numbers
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    return table
