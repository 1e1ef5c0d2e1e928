"""Where the user's project stands on sys.path: behind the standard library and before installed packages.

`python -m composer.worker` has the current folder first on sys.path, so a project's own queue.py would be the `queue`
that the standard library and every package import. This module is imported before all others, for the move has to
come before anything else is looked for; it imports nothing that is not loaded already.
"""

import os
import sys


def put_on_path(folder: str) -> None:
    """Puts a folder on sys.path behind the standard library, wherever it was before."""
    here = os.path.realpath(folder)
    while folder in sys.path:
        sys.path.remove(folder)
    if any(os.path.realpath(entry or ".") == here for entry in sys.path):
        return
    sys.path.insert(_behind_standard_library(), folder)


def _behind_standard_library() -> int:
    library = os.path.dirname(os.__file__)
    own = (library, os.path.join(library, "lib-dynload"))
    places = [index for index, entry in enumerate(sys.path) if entry in own]
    return places[-1] + 1 if places else len(sys.path)


def _runs_a_command() -> bool:
    """Whether Python was told `-m composer...` and is looking for that module now."""
    if sys.argv[:1] != ["-m"] or sys.flags.safe_path:
        return False
    words = sys.orig_argv
    after = [words[index + 1] for index, word in enumerate(words[:-1]) if word == "-m"]
    joined = [word[2:] for word in words if word.startswith("-m")]
    return any(word.partition(".")[0] == "composer" for word in after + joined)


if _runs_a_command():
    put_on_path(sys.path[0])
