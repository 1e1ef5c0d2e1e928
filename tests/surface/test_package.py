"""What importing the package does, and what it offers."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("name", ["composer", "composer.testing", "composer.draw"])
def test_every_public_name_is_there_and_documented(name: str) -> None:
    """__all__ is sorted and has each name once; every name has a docstring of its own, and so has all that is public in it."""
    module = importlib.import_module(name)
    assert list(module.__all__) == sorted(module.__all__, key=lambda each: (each[0].islower(), each))
    assert len(module.__all__) == len(set(module.__all__))
    for each in module.__all__:
        value = getattr(module, each)
        own = vars(value) if inspect.isclass(value) else {"__doc__": value.__doc__}
        assert (own.get("__doc__") or "").strip(), each
        for part, member in own.items():
            if not part.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert (member.__doc__ or "").strip(), f"{each}.{part}"


def test_nothing_public_is_left_out() -> None:
    """What composer imports for its users is in __all__."""
    imported = {
        each for each, value in vars(composer).items() if not each.startswith("_") and not inspect.ismodule(value)
    }
    assert imported == set(composer.__all__)
