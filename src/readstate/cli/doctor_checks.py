"""The checks of `readstate doctor`; those of servers are in `profiles/doctor.py`."""

import resource
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx

from readstate.client import Client, Retries
from readstate.domain.errors import ReadstateError
from readstate.findings import MIB, Finding, graded
from readstate.gateway.auth.authenticator import JWT_SECRET_FILE, SERVICE_KEY_FILE
from readstate.profiles.doctor import examine_servers, listens
from readstate.profiles.service import migrate
from readstate.settings import Settings, without_password

from .doctor_exposure import exposure
from .target import Target, is_running, local_transport, running_url, within

LEAST_SQLITE = (3, 37, 0)
LEAST_FILES, ENOUGH_FILES = 256, 4096
LEAST_SPACE, ENOUGH_SPACE = 64 * MIB, 1024 * MIB


def examine(target: Target) -> Iterator[Finding]:
    """All checks; without valid settings only those that need none."""
    yield sqlite_version()
    yield file_descriptors()
    try:
        settings = target.settings()
    except ReadstateError as error:
        yield Finding("settings", "fail", error.detail, "correct them")
        return
    yield Finding("settings", "ok", f"valid; profile {settings.profile}")
    yield data_directory(settings)
    yield secrets(settings)
    yield token_keys(settings)
    yield from exposure(settings)
    if settings.in_sqlite:
        yield database(settings)
        yield schema(settings)
    yield from examine_servers(settings)
    yield service(target, settings)


def sqlite_version() -> Finding:
    if sqlite3.sqlite_version_info >= LEAST_SQLITE:
        return Finding("sqlite", "ok", sqlite3.sqlite_version)
    least = ".".join(map(str, LEAST_SQLITE))
    return Finding("sqlite", "fail", sqlite3.sqlite_version, f"use a Python with SQLite {least} or later")


def file_descriptors() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    state = graded(ENOUGH_FILES if unlimited else soft, LEAST_FILES, ENOUGH_FILES)
    detail = "no limit" if unlimited else f"at most {soft} open files"
    return Finding("open files", state, detail, "" if state == "ok" else "raise it: ulimit -n 65536")


def data_directory(settings: Settings) -> Finding:
    """The data directory, or its nearest existing parent, is writable and has free space."""
    directory = Path(settings.data_dir)
    existing = next(parent for parent in (directory, *directory.absolute().parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        advice = f"give this user the right to write in {existing}, or choose another --data-dir"
        return Finding("data directory", "fail", f"{existing}: {error.strerror}", advice)
    state = graded(free, LEAST_SPACE, ENOUGH_SPACE)
    made = "" if existing == directory else ", made at the first start"
    advice = "" if state == "ok" else "free some space: a full disk refuses writes"
    return Finding("data directory", state, f"{directory}{made}; {free // MIB} MiB free", advice)


def secrets(settings: Settings) -> Finding:
    """Only their owner may read generated secrets."""
    paths = [Path(settings.data_dir) / name for name in (SERVICE_KEY_FILE, JWT_SECRET_FILE)]
    there = [path for path in paths if path.exists()]
    open_ones = [path for path in there if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if open_ones:
        names = " ".join(map(str, open_ones))
        return Finding("secrets", "fail", f"others may read {names}", f"chmod 600 {names}, and replace what leaked")
    names = ", ".join(path.name for path in there)
    return Finding("secrets", "ok", f"{names}: mode 0600" if there else "none generated")


def database(settings: Settings) -> Finding:
    path = settings.database_path
    if not path.exists():
        return Finding("database", "ok", f"{path}: not there yet, made at the first start")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        return Finding("database", "fail", f"{path}: {error}", "check its rights, or restore it from a backup")
    if result != "ok":
        return Finding("database", "fail", f"{path}: {result}", "stop the service and restore it from a backup")
    return Finding("database", "ok", f"{path}: {path.stat().st_size // MIB} MiB, passes its check")


def schema(settings: Settings) -> Finding:
    if not settings.database_path.exists():
        return Finding("schema", "ok", "made at the first start")
    try:
        current, wanted = migrate(settings, check_only=True)
    except ReadstateError as error:
        return Finding("schema", "fail", error.detail, "use the version of Readstate that wrote it")
    except sqlite3.Error as error:
        return Finding("schema", "fail", f"cannot be read: {error}", "see the finding about the database")
    if current == wanted:
        return Finding("schema", "ok", f"version {current}")
    return Finding("schema", "warn", f"version {current}, behind {wanted}", "readstate migrate (serve does it too)")


def token_keys(settings: Settings) -> Finding:
    """A JWKS file exists. A URL is fetched by the service."""
    if not settings.jwks or "://" in settings.jwks:
        return Finding("token keys", "ok", without_password(settings.jwks) or "HS256 with the service's secret")
    if Path(settings.jwks).is_file():
        return Finding("token keys", "ok", f"in {settings.jwks}")
    return Finding("token keys", "fail", f"{settings.jwks}: no such file", "put the JWKS there, or correct jwks")


# ---------------------------------------------------------------- the service


def service(target: Target, settings: Settings) -> Finding:
    """A running service is ready; if none runs, its port is free."""
    try:
        if target.url:
            return _ask(target.url)
        if is_running(settings):
            return _ask(running_url(settings), local_transport(settings))
    except ReadstateError as error:
        return Finding("service", "fail", error.detail, "look into its log; restart it")
    if listens(settings.host, settings.port):
        detail = f"not running, and something else listens on {settings.host}:{settings.port}"
        return Finding("service", "warn", detail, "choose another --port")
    return Finding("service", "ok", "not running", "readstate serve starts it")


def _ask(url: str, transport: httpx.AsyncBaseTransport | None = None) -> Finding:
    client = Client(url, None, retries=Retries(tries=1), transport=transport)
    answer = within(client, lambda opened: opened.ready())
    if answer.get("status") == "behind":
        detail = f"ready at {url}; {answer['dependencies']['messages']}"
        return Finding("service", "warn", detail, "start more processes with the role message-writer")
    return Finding("service", "ok", f"ready at {url}")
