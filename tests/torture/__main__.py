"""`python -m tests.torture`: runs under real faults, by a seeded plan, and a verdict in one line of JSON.

Exit code 1 on any violation, and when fewer faults came about than the floors of the plan ask for.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pathlib
import random
import sys


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=40.0, help="of the phase with faults")
    parser.add_argument("--heal", type=float, default=60.0, help="seconds until everything must have ended after it")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--coordinators", type=int, default=4)
    parser.add_argument("--no-proxy", action="store_true", help="connect directly: no cuts")
    parser.add_argument("--no-faults", action="store_true", help="only the load and the checks")
    parser.add_argument("--keep", type=pathlib.Path, default=None, help="folder for logs and ledger, kept")
    return parser.parse_args()


def _main() -> int:
    options = _arguments()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000)
    # flows.py draws its workflows where it is imported, here and in the workers.
    os.environ["TORTURE_SEED"] = str(options.seed)
    from tests.torture.harness import torture

    try:
        return asyncio.run(torture(options))
    except asyncio.CancelledError:
        return 130


if __name__ == "__main__":
    sys.exit(_main())
