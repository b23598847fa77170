"""Settings from flags, the environment and a TOML file, or from Python values."""

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checks import Value, refuse
from .table import ABOUT, DEFAULTS, PREFIX, Settings, faults_of
from .together import faults_together

CONFIG_FILE = "readstate.toml"
COMMAND_LINE_ONLY = frozenset(
    {"READSTATE_CONFIG", "READSTATE_URL", "READSTATE_KEY", "READSTATE_COPY", "READSTATE_LISTENER", "READSTATE_REASON"}
)
"""Variables that only commands read, or set for their copies; they are no settings of the service."""
SPELLINGS: Mapping[str, bool] = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}
"""How the environment says true and false."""


def make_settings(**overrides: object) -> Settings:
    """Settings from Python values: a path stands for its text and any sequence for a list."""
    given = _Given()
    for name, value in overrides.items():
        given.take(name, value, name)
    return given.settings()


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str], toml_path: Path | None = None) -> Settings:
    """Settings of a process; flags that are None were not given. Raises one error that names every fault."""
    given = _Given()
    _take_toml(given, _config_file(environ, toml_path))
    for variable, text in environ.items():
        if variable.startswith(PREFIX) and variable not in COMMAND_LINE_ONLY:
            given.take_text(variable.removeprefix(PREFIX).lower(), text, variable)
    for name, value in flags.items():
        if value is not None:
            given.take(name, value, "--" + name.replace("_", "-"))
    return given.settings()


class _Given:
    """What the sources say; a later source replaces what an earlier one said, fault or not."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.faults: dict[str, list[str]] = {}

    def take(self, name: str, value: object, source: str) -> None:
        """A value with a type of its own: from Python, from TOML or from a flag."""
        if name not in ABOUT:
            self.faults[source] = [f"{source}: there is no such setting{_did_you_mean(name, source)}"]
            return
        value = _plain(value)
        self.faults[name] = faults_of(name, value, source)
        self.values[name], self.sources[name] = value, source

    def take_text(self, name: str, text: str, source: str) -> None:
        """A value as the environment has it."""
        default = DEFAULTS.get(name)
        value: Value = text
        if isinstance(default, tuple):
            value = tuple(part for part in (part.strip() for part in text.split(",")) if part)
        elif isinstance(default, bool):
            value = SPELLINGS.get(text.strip().lower(), text)
        elif isinstance(default, int) and re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text):
            value = int(text)
        elif name in ABOUT and ABOUT[name].choices:
            value = next((choice for choice in ABOUT[name].choices if choice.lower() == text.lower()), text)
        self.take(name, value, source)

    def settings(self) -> Settings:
        """The checked whole."""
        single = [fault for faults in self.faults.values() for fault in faults]
        sound = {name: value for name, value in self.values.items() if not self.faults[name]}
        refuse(single + faults_together({**DEFAULTS, **sound}, self.sources))
        return Settings(**sound)


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    return tuple(value) if isinstance(value, list | set | frozenset) else value


def _did_you_mean(name: str, source: str) -> str:
    near = difflib.get_close_matches(name.lower(), ABOUT, n=1)
    if not near:
        return ""
    shown = PREFIX + near[0].upper() if source.startswith(PREFIX) else near[0]
    return f"; did you mean {shown}?"


def _config_file(environ: Mapping[str, str], given: Path | None) -> Path | None:
    if given is not None:
        return given
    if named := environ.get("READSTATE_CONFIG"):
        return Path(named)
    return Path(CONFIG_FILE) if Path(CONFIG_FILE).exists() else None


def _take_toml(given: _Given, path: Path | None) -> None:
    if path is None:
        return
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        given.faults[str(path)] = [f"{path}: cannot be read: {error.strerror}"]
    except ValueError as error:
        given.faults[str(path)] = [f"{path}: is not TOML in UTF-8: {error}"]
    else:
        for name, value in values.items():
            given.take(name, value, f"{path}: {name}")
