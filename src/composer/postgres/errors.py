"""Driver errors, and what they are to a caller: no driver exception leaves this package."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import asyncpg
from asyncpg import exceptions as pg

from composer.errors import ComposerError, SchemaError, StoreError, StoreUnavailable

AGAIN_AT_ONCE: Final = (pg.DeadlockDetectedError, pg.SerializationError)
"""The statement was rolled back whole by the server, and doing it again is right."""

# Lost connections, servers that start, stop or are full, limits that were hit: later it may work.
_PASSING: Final = (
    OSError,
    TimeoutError,
    pg.PostgresConnectionError,
    pg.OperatorInterventionError,
    pg.InsufficientResourcesError,
    pg.ReadOnlySQLTransactionError,
    pg.LockNotAvailableError,
    pg.IdleInTransactionSessionTimeoutError,
    pg.PostgresSystemError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    *AGAIN_AT_ONCE,
)
_NO_SCHEMA: Final = (
    pg.UndefinedTableError,
    pg.InvalidSchemaNameError,
    pg.UndefinedColumnError,
    pg.UndefinedFunctionError,
)
_NO_ENTRY: Final = (
    pg.InvalidAuthorizationSpecificationError,
    pg.InvalidCatalogNameError,
    pg.InsufficientPrivilegeError,
)


@contextmanager
def mapped(doing: str) -> Generator[None]:
    """Turns what the driver raises into Composer's errors; `doing` completes the sentence "while ..."."""
    try:
        yield
    except ComposerError:
        raise
    except _NO_SCHEMA as error:
        raise SchemaError(
            f"the database has no Composer schema that fits this release ({error}), found while {doing}; run `composer migrate`"
        ) from error
    except _NO_ENTRY as error:
        raise StoreUnavailable(
            f"PostgreSQL refuses the connection or the right while {doing}: {error}; check user, password, database name and grants"
        ) from error
    except (pg.InvalidSQLStatementNameError, pg.DuplicatePreparedStatementError) as error:
        raise StoreUnavailable(
            f"a prepared statement is unknown to the server while {doing}: the URL seems to lead through a pooler in "
            "transaction mode; set COMPOSER_POOLER=true"
        ) from error
    except _PASSING as error:
        raise StoreUnavailable(
            f"PostgreSQL is not available while {doing}: {type(error).__name__}: {error}"
            + ("; is it running there, and is the database URL right?" if isinstance(error, ConnectionError) else "")
        ) from error
    except asyncpg.PostgresError as error:
        raise StoreError(f"PostgreSQL refused a statement while {doing}: {type(error).__name__}: {error}") from error
