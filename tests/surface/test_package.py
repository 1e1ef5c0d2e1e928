"""What importing the package does, and what it offers."""

from __future__ import annotations

import subprocess
import sys

import composer


def test_importing_composer_loads_no_driver_and_starts_nothing() -> None:
    """No database driver, no command line, no thread, no event loop: a library that is imported does nothing yet."""
    code = (
        "import sys, threading, composer\n"
        "loaded = {'asyncpg', 'typer', 'rich', 'uvloop', 'redis'} & set(sys.modules)\n"
        "print(sorted(loaded), threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[] 1"


def test_every_public_name_is_there_and_documented() -> None:
    """__all__ is sorted, complete, and every name has a docstring of its own."""
    assert list(composer.__all__) == sorted(composer.__all__, key=lambda name: (name[0].islower(), name))
    assert len(composer.__all__) == len(set(composer.__all__))
    for name in composer.__all__:
        assert (getattr(composer, name).__doc__ or "").strip(), name
