"""Programs that fork with an open client, or end without closing it: `python -m tests.system.client_ends NAME`."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable

from composer import Client, ClientError, RunCancelled, step, workflow

CHILDREN = 4
RUNS = 50


@step
async def plus(n: int) -> int:
    """One more."""
    return n + 1


@workflow
def once(n: int) -> int:
    """One step."""
    return plus(n)


def starts_many(client: Client) -> int:
    """How many of the runs it starts have the right result."""
    runs = client.start_many(once, [(n,) for n in range(RUNS)])
    return sum(run.result(timeout=60) == n + 1 for n, run in enumerate(runs))


def forks() -> None:
    """The parent works before, while and after its children do; another thread of it waits for a run all the time."""
    with Client() as client:
        first = client.start(once, 0)
        assert first.result(timeout=60) == 1
        later = client.start(once, 0, delay="1h")
        waiter = threading.Thread(target=_waits, args=(later.result,), daemon=True)
        waiter.start()
        children: list[int] = []
        for number in range(CHILDREN):
            child = os.fork()
            if child == 0:
                refused = 0
                for call in (lambda: client.get(first.id), first.result, lambda: list(client.runs())):
                    try:
                        call()
                    except ClientError as error:
                        refused += f"process {os.getppid()}" in str(error) and f"process {os.getpid()}" in str(error)
                if number % 2:
                    with client:
                        count = starts_many(client)
                else:
                    with Client() as own:
                        count = starts_many(own)
                os.write(1, f"child {refused} {count}\n".encode())
                break
            children.append(child)
        else:
            count = starts_many(client)
            statuses = [os.waitpid(child, 0)[1] for child in children]
            count += starts_many(client)
            os.write(1, f"parent {statuses} {count} {waiter.is_alive()}\n".encode())
            later.cancel()
            waiter.join()


def forks_and_waits() -> None:
    """A child that does nothing lives on when its parent is killed. Says the child's process id."""
    with Client() as client:
        client.start(once, 0)
        child = os.fork()
        if child == 0:
            sys.stdin.buffer.read(1)
            os._exit(0)
        os.write(1, f"{child}\n".encode())
        os.waitpid(child, 0)


def leaves_open() -> None:
    """A client that nobody closes, and a thread that waits for a run that does not end. Goes on when told to."""
    client = Client().__enter__()
    assert client.start(once, 1).result(timeout=60) == 2
    run = client.start(once, 1, delay="1h")
    threading.Thread(target=_waits, args=(run.result,), daemon=True).start()
    os.write(1, f"{run.id}\n".encode())
    sys.stdin.buffer.read(1)


def exits_inside() -> None:
    """The program is ended within the block, while another thread waits."""
    with Client() as client:
        run = client.start(once, 1, delay="1h")
        threading.Thread(target=_waits, args=(run.result,)).start()
        os.write(1, f"{run.id}\n".encode())
        sys.exit(7)


def _waits(wait: Callable[[], object]) -> None:
    try:
        wait()
    except (ClientError, RunCancelled) as error:
        os.write(1, f"waited: {error.code}\n".encode())


if __name__ == "__main__":
    {each.__name__: each for each in (forks, forks_and_waits, leaves_open, exits_inside)}[sys.argv[1]]()
    # Children end as any program does: what they had of the client is collected, or not.
    gc.collect()
