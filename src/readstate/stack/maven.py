"""Jars from Maven, downloaded once and cached."""

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .server import Report, ServerFailed, SoftwareMissing

Coordinates = tuple[str, str, str]
"""Group, artifact, version."""
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
JAVA_LEAST = 17
ADVICE = "Debian: apt install openjdk-17-jre-headless maven; macOS: brew install openjdk maven"
UNITS = {"B": 1, "kB": 1_000, "MB": 1_000_000}


def find_java() -> Path:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else None
    found = found or shutil.which("java")
    # macOS has a `java` that only reports that Java is missing.
    output = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr if found else ""
    version = re.search(r'version "(\d+)', output)
    if not found or not version:
        raise SoftwareMissing(f"Java {JAVA_LEAST} or later is not installed. {ADVICE}")
    if int(version[1]) < JAVA_LEAST:
        raise SoftwareMissing(f"Java {JAVA_LEAST} or later is needed, and {found} is Java {version[1]}. {ADVICE}")
    return Path(found)


def jars(name: str, wanted: list[Coordinates], report: Report) -> Path:
    """A directory with these jars and their dependencies: from the cache, or downloaded into it."""
    cache = cache_directory()
    complete = cache / name
    if complete.exists():
        return complete
    maven = shutil.which("mvn")
    if maven is None:
        raise SoftwareMissing(f"Maven, which downloads {name}, is not installed. {ADVICE}")
    cache.mkdir(parents=True, exist_ok=True)
    with _alone(cache / f"{name}.lock"):
        if not complete.exists():
            _fetch(maven, wanted, complete, report)
    return complete


def cache_directory() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return base / "readstate"


def _fetch(maven: str, wanted: list[Coordinates], complete: Path, report: Report) -> None:
    """Download to a partial directory, and rename it when it is complete."""
    partial = complete.with_name(f"{complete.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    pom, target = partial / "pom.xml", partial / "jars"
    pom.write_text(_pom(wanted))
    options = ["--batch-mode", "-Dstyle.color=never", "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
    command = [maven, "--file", str(pom), *options, COPY]
    report(f"downloading {complete.name}")
    sizes: list[float] = []
    faults: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if found := re.search(r"Downloaded from .*\((\d+(?:\.\d+)?) (B|kB|MB)\b", line):
                sizes.append(float(found[1]) * UNITS[found[2]])
                report(f"downloading {complete.name}: {len(sizes)} files, {sum(sizes) / 1_000_000:.1f} MB")
            if line.startswith("[ERROR]"):
                faults.append(line.removeprefix("[ERROR]").strip())
    if child.returncode:
        reason = faults[0] if faults else f"it ended with exit code {child.returncode}"
        raise ServerFailed(f"Maven cannot download {complete.name}: {reason}")
    target.rename(complete)
    shutil.rmtree(partial)


def _pom(wanted: list[Coordinates]) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
        for group, artifact, version in wanted
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>readstate</groupId><artifactId>stack</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
