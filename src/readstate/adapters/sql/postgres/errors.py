"""Errors of PostgreSQL: which of them a retry helps, and what callers and operators get to read."""

import contextlib
import ssl
from collections.abc import Iterator

import asyncpg  # type: ignore[import-untyped]
import structlog

from readstate.domain.errors import ConfigurationError, StorageUnavailable
from readstate.telemetry import STORAGE_ERRORS

MISCONFIGURED = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.UndefinedObjectError,
    asyncpg.CantChangeRuntimeParamError,
    asyncpg.ClientConfigurationError,
    ssl.SSLCertVerificationError,
    ValueError,
)
"""Errors of a URL that cannot work."""
LOST = (
    ConnectionError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the session ended during a statement
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
CONFLICTS = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.UniqueViolationError,
    asyncpg.InvalidCachedStatementError,
)
"""A concurrent transaction or migration interfered; a retry sees its result."""
DOWN = (
    *LOST,
    OSError,
    asyncpg.TransactionRollbackError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.InvalidTransactionStateError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.PostgresSystemError,
    asyncpg.InternalServerError,
    asyncpg.SyntaxOrAccessError,  # a table or a privilege is gone
)
_TAKEN_OVER = "another process has taken it over"
_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (asyncpg.DiskFullError, "its disk is full"),
    (asyncpg.TooManyConnectionsError, "it has no free connection"),
    (asyncpg.InsufficientResourcesError, "it lacks memory or disk"),
    (asyncpg.ReadOnlySQLTransactionError, "it is read-only"),
    (asyncpg.QueryCanceledError, "a statement took too long"),
    (asyncpg.OperatorInterventionError, "it is stopping or starting"),
    (asyncpg.TransactionRollbackError, "it conflicts with other transactions"),
    (asyncpg.InternalServerError, "its files are damaged"),
    (asyncpg.PostgresSystemError, "its disk has failed"),
    (asyncpg.SyntaxOrAccessError, "a table or a privilege is missing"),
    (asyncpg.InvalidAuthorizationSpecificationError, "it refuses the user or the password"),
    (asyncpg.InvalidCatalogNameError, "it does not exist"),
    (TimeoutError, "it does not answer in time"),
    (OSError, "there is no connection"),
    (asyncpg.PostgresConnectionError, "there is no connection"),
    (asyncpg.InterfaceError, "there is no connection"),
)
"""Reasons for callers. The error's own text may contain SQL, paths or addresses and goes to the log only."""
NOT_TEXT = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)

log = structlog.get_logger()


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn errors at the start into ConfigurationError (fix it) or StorageUnavailable (wait)."""
    try:
        yield
    except MISCONFIGURED as error:
        raise ConfigurationError(f"DATABASE_URL does not lead to a usable database: {error}") from error
    except asyncpg.SyntaxOrAccessError:
        raise  # a migration is wrong
    except DOWN as error:
        raise unavailable("reached", error, str(error)) from error


def unavailable(what: str, error: BaseException, reason: str = "") -> StorageUnavailable:
    """`reason` replaces the general one."""
    STORAGE_ERRORS.inc()
    log.warning("storage unavailable", action=what, error=str(error) or type(error).__name__)
    detail = f"the database cannot be {what} ({reason or reason_of(error)}); nothing was changed"
    return StorageUnavailable(detail, reason=str(error) or type(error).__name__)


def uncertain(error: BaseException) -> StorageUnavailable:
    """The connection was lost at a time when the server may have committed."""
    STORAGE_ERRORS.inc()
    log.warning("storage unavailable", action="commit", error=str(error))
    lost = StorageUnavailable(
        f"the database was lost during a commit ({reason_of(error)}): "
        "the change may have been made, and is safe to repeat",
        reason=str(error),
    )
    lost.uncertain = True
    return lost


def reason_of(error: BaseException) -> str:
    """Why the database fails, without SQL, paths or addresses."""
    if _TAKEN_OVER in str(error):
        return _TAKEN_OVER
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "it has failed")
