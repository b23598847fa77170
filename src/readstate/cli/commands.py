"""Registration of commands: help texts with examples, and the options that many of them share."""

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from readstate.settings import Settings, load_settings
from readstate.settings.table import ABOUT, DEFAULTS

from .target import Config, DataDir, Key, Target, Url

RUN, USE, UNDERSTAND = "Run it", "Use it", "Understand it"
LOOK_AFTER, MOVE = "Look after it", "Move"
"""The headings of the help page."""
TARGET = {"url": Url, "key": Key, "data_dir": DataDir, "config": Config}
LOCAL = {"data_dir": DataDir, "config": Config}
FLAGS = {"cors_origins": "--cors-origin", "worker_port": "--port", "accept_data_loss": "--accept-data-loss"}
"""Flags that are not spelled like their setting."""


def examples(*lines: str) -> str:
    """The epilog of a help text."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"[cyan]{escape(line)}[/cyan]" for line in lines)])


class Commands(typer.Typer):
    """Commands under one heading of the help page; with a name and a text, a group of its own."""

    def __init__(self, panel: str, name: str | None = None, text: str | None = None) -> None:
        super().__init__(name=name, help=text, no_args_is_help=True)
        self.panel = panel

    def with_examples(
        self, *lines: str, name: str | None = None, text: str | None = None, flags: Sequence[str] = ()
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Register a function as a command, with `lines` as its examples and `text` in place of its docstring.

        A parameter `target` becomes the options of a `Target`. A parameter `settings` becomes the options of a local
        service, or one option for each of the settings in `flags`.
        """

        def register(function: Callable[..., None]) -> Callable[..., None]:
            parameters = inspect.signature(function).parameters
            wrapped = function
            if "target" in parameters:
                wrapped = _with_options(function, "target", TARGET, Target)
            elif flags:
                options = {**{flag: _option(flag) for flag in flags}, "config": Config}
                wrapped = _with_options(function, "settings", options, _load)
            elif "settings" in parameters:
                wrapped = _with_options(function, "settings", LOCAL, lambda **options: Target(**options).settings())
            described = text or _paragraphs(inspect.getdoc(function) or "")
            return self.command(name, rich_help_panel=self.panel, help=described, epilog=examples(*lines))(wrapped)

        return register


def _paragraphs(doc: str) -> str:
    """A docstring whose lines the terminal breaks, not the source."""
    return "\n\n".join(" ".join(part.split()) for part in doc.split("\n\n"))


def _option(setting: str) -> Any:
    """An option with the type, default and help of a setting."""
    default, about = DEFAULTS[setting], ABOUT[setting]
    text = about.help
    if about.choices and about.choices[0] not in text:
        text += f": {', '.join(about.choices)}"
    if isinstance(default, tuple):
        text += "; may be repeated"
    kind = list[str] if isinstance(default, tuple) else type(default)
    names = [FLAGS[setting]] if setting in FLAGS else []
    shown = False if default in ("", (), False) else str(default)
    return Annotated[kind | None, typer.Option(*names, show_default=shown, help=f"{text}.")]


def _load(config: Path | None, **flags: Any) -> Settings:
    return load_settings({name: None if value == [] else value for name, value in flags.items()}, os.environ, config)


def _with_options(
    function: Callable[..., None], parameter: str, options: dict[str, Any], make: Callable[..., Any]
) -> Callable[..., None]:
    """A function with these options instead of one parameter, which `make` builds from them."""
    signature = inspect.signature(function)
    kept = [one for one in signature.parameters.values() if one.name != parameter]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in options.items()
    ]

    @functools.wraps(function)
    def run(**given: Any) -> None:
        value = make(**{name: given.pop(name) for name in options})
        function(**given, **{parameter: value})

    run.__signature__ = signature.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in [*kept, *added]}
    return run
