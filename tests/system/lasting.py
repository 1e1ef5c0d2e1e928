"""A process step that ends when it is allowed to."""

from __future__ import annotations

import os
import time
from pathlib import Path

from composer import step, workflow


@step(isolation="process")
def lasts(folder: str) -> str:
    """Until there is a file named go."""
    (Path(folder) / "pid").write_text(str(os.getpid()))
    (Path(folder) / "pid").rename(Path(folder) / "began")
    while not (Path(folder) / "go").exists():
        time.sleep(0.02)
    return "done"


@workflow
def lasting(folder: str) -> str:
    """One long step."""
    return lasts(folder)
