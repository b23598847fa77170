"""Writes the pages of reference that follow from the code: settings, metrics, errors, commands, frames and modules.

python docs/generate.py           writes them
python docs/generate.py --check   writes nothing; exit code 1 and their names when some are not current
"""

import ast
import copy
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from msgspec import Struct
from msgspec import inspect as kinds
from prometheus_client.metrics import MetricWrapperBase
from rich.text import Text
from typer.models import ArgumentInfo, CommandInfo, OptionInfo

from readstate import settings, telemetry
from readstate.api import frames
from readstate.cli import app
from readstate.domain import errors
from readstate.gateway.openapi import schemas
from readstate.gateway.ws import codes as websocket

DOCS = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py from the code. Change it there, then run: python docs/generate.py -->\n\n"


def stale() -> list[str]:
    """The names of the pages that are not as they would be written now."""
    return [name for name, page in PAGES.items() if not _is_current(DOCS / name, page())]


def write() -> None:
    """Write all pages."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), "utf-8")


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text("utf-8") == text


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# ---------------------------------------------------------------- settings

SETTINGS = """# Settings

A setting comes from a flag of `readstate serve` (the usual ones have one, see [cli.md](cli.md)), else from the
environment, else from a TOML file (`readstate.toml` in the working directory, `READSTATE_CONFIG`, or `--config`),
else it has its default. They are checked once, at the start, and every fault is named together.

In TOML a setting has its own name, numbers are numbers and lists are lists:

```toml
port = 9000
cors_origins = ["https://chat.example.com"]
fanout_max_members = 200
```

In the environment the same settings are `READSTATE_PORT=9000` and, with commas,
`READSTATE_CORS_ORIGINS=https://chat.example.com`. In Python they are arguments: `Readstate.open(port=9000)`.
"""


def settings_page() -> str:
    """Every setting with its variable, default, values and purpose."""
    rows = [
        (f"`{row.name}`", f"`{row.variable}`", _default(row.default), _values(row), _sentence(row.about.help))
        for row in settings.describe()
    ]
    table = _table(("setting", "environment", "default", "values", "what it is"), rows)
    return f"{NOTE}{SETTINGS}\n{table}\n"


def _default(value: settings.Value) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int):
        return f"`{value}`"
    return f"`{value}`" if value else "none"


def _values(row: settings.Row) -> str:
    about = row.about
    if about.choices:
        return ", ".join(f"`{choice}`" for choice in about.choices)
    if about.low is not None and about.high is not None:
        return f"{about.low} to {about.high}"
    return f"{row.type}, secret" if about.secret else row.type


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."


# ---------------------------------------------------------------- metrics

METRICS = """# Metrics

`GET /metrics` answers in the format of Prometheus, without a key. No label ever holds an id, a text or a secret;
`route` is the pattern of a path, such as `/v1/users/{user}/unread`. The figures are made once a second at most. With
`METRICS_PORT` they have a port of their own, and are not on the main one.
"""
METRICS_END = """
A histogram comes as `…_bucket`, `…_sum` and `…_count`. Besides these there are the usual `process_…` and `python_…`
metrics of the process.
"""


def metrics_page() -> str:
    """Every metric of Readstate with its type, labels and meaning."""
    rows = [
        (
            f"`{_metric_name(metric)}`",
            str(metric._type),
            ", ".join(f"`{label}`" for label in metric._labelnames),
            metric._documentation,
        )
        for metric in metrics()
    ]
    return f"{NOTE}{METRICS}\n{_table(('metric', 'type', 'labels', 'what it counts'), rows)}\n{METRICS_END}"


def metrics() -> list[MetricWrapperBase]:
    """All metrics that are registered, by name."""
    found = telemetry.REGISTRY._collector_to_names
    return sorted((one for one in found if isinstance(one, MetricWrapperBase)), key=_metric_name)


def _metric_name(metric: MetricWrapperBase) -> str:
    return f"{metric._name}_total" if metric._type == "counter" else metric._name


# ---------------------------------------------------------------- errors

ERRORS = """# Errors

Whatever Readstate refuses is told as `application/problem+json`, and has changed nothing:

```json
{
  "type": "about:blank",
  "title": "Not Found",
  "status": 404,
  "code": "channel_not_found",
  "detail": "There is no such channel.",
  "retry": false
}
```

- `code` is for programs: it never changes its meaning. Take one that you don't know for its `status`.
- `detail` is for people and says what to do; `field` names the field or parameter at fault, where there is one.
- `retry` tells whether the same request may succeed later. Answers with 429 and 503 carry `Retry-After` in seconds.
- In a batch, an item that cannot be done has `status: "rejected"` with a `code` and a `detail` from this page, and
  the other items are done.

The Python library raises the classes of `readstate.errors`, the SDK those of the same names in
`readstate.client.errors`; both are trees, so that `NotFound` catches every error of its section.
"""
ERRORS_END = """
## On the way to the service

The SDK and the command line have codes of their own for calls that no service answered. Whether anything was done is
known only for `unreachable`: nothing was.

| code | class in the SDK | what it means |
| --- | --- | --- |
| `unreachable` | `Unreachable` | There was no connection. |
| `interrupted` | `Interrupted` | The connection broke before the answer. |
| `timeout` | `TimedOut` | The deadline passed before the answer. |
| `not_readstate` | `NotReadstate` | What answered is not a Readstate service of this version. |
| `http_404`, `http_502` … | by the status | Something in front of the service answered, such as a proxy. |
"""


LOCAL = (errors.ConfigurationError,)
"""What is told to whoever starts it, never over HTTP."""


def errors_page() -> str:
    """Every code, under the status that it comes with."""
    kinds = [kind for kind in errors.ReadstateError.__subclasses__() if _is_ours(kind) and kind not in LOCAL]
    parts = [_errors(f"{kind.status} {_words(kind)}", family(kind)) for kind in kinds]
    parts.insert(-1, _errors("500 Internal", [errors.ReadstateError]))
    parts.append(_errors("Before the service starts", LOCAL))
    return "\n".join([NOTE + ERRORS, *parts]) + ERRORS_END


def _errors(title: str, kinds: Iterable[type[errors.ReadstateError]]) -> str:
    rows = [(f"`{one.code}`", f"`{one.__name__}`", "yes" if one.retry else "no", _doc(one)) for one in kinds]
    return f"## {title}\n\n{_table(('code', 'class', 'retry', 'what it means'), rows)}\n"


def _words(kind: type[errors.ReadstateError]) -> str:
    return re.sub(r"(?<=[a-z])[A-Z]", lambda capital: f" {capital[0].lower()}", kind.__name__)


def family(kind: type[errors.ReadstateError]) -> Iterator[type[errors.ReadstateError]]:
    """A kind of error, and what it has come to tell apart."""
    if _is_ours(kind):
        yield kind
        for child in kind.__subclasses__():
            yield from family(child)


def _is_ours(kind: type[errors.ReadstateError]) -> bool:
    """Other modules refine some errors for themselves, without a code of its own."""
    return kind.__module__ == errors.__name__


def _doc(thing: object) -> str:
    return _sentence((inspect.getdoc(thing) or "").split("\n")[0])


# ---------------------------------------------------------------- commands

COMMANDS = """# Commands

`readstate COMMAND --help` tells the same in a terminal. Commands print tables for people; with `--json` they print
exactly what the service answered. Exit codes: 0 done, 1 refused (one line on stderr, with the code from
[errors.md](errors.md)), 2 not called as it should be.

Commands that use a service find it by themselves: at `--url` (or `READSTATE_URL`) with `--key` (or `READSTATE_KEY`);
else the one that runs over the data directory; else they open the data directory, without a service.
"""
COMMON = ("url", "key", "data_dir", "config", "as_json")
"""Options that are the same everywhere: one table for all commands."""


@dataclass(frozen=True)
class Parameter:
    """An argument or an option of a command, as its function declares it."""

    name: str
    type: Any
    about: ArgumentInfo | OptionInfo
    default: object

    @property
    def flag(self) -> str:
        """The name of an option."""
        # Inside Annotated the first declaration stands where a default would.
        declared = (self.about.default, *(self.about.param_decls or ()))
        names = [one for one in declared if isinstance(one, str) and one.startswith("--")]
        return names[0] if names else "--" + self.name.replace("_", "-")

    @property
    def shown(self) -> str:
        """How it is written in a command."""
        if isinstance(self.about, ArgumentInfo):
            word = f"{self.name.upper()}…" if get_origin(self.type) is list else self.name.upper()
            return word if self.default is inspect.Parameter.empty else f"[{word}]"
        if self.type is bool:
            return self.flag
        choices = get_args(self.type) if get_origin(self.type) is Literal else ()
        return f"{self.flag} {'|'.join(choices) or self.flag.strip('-').upper()}"

    @property
    def row(self) -> tuple[str, str, str]:
        """How it is written, what it does, and what it is when it is not given."""
        variable = f" (`{self.about.envvar}`)" if self.about.envvar else ""
        return f"`{self.shown}`", f"{self.about.help}{variable}", self._default()

    def _default(self) -> str:
        if isinstance(self.about.show_default, str):
            return self.about.show_default
        return "" if self.default in {None, False, inspect.Parameter.empty} else str(self.default)


def commands() -> list[CommandInfo]:
    """Every command, in the order of the help."""
    return list(_commands_of(app, ""))


def _commands_of(group: typer.Typer, before: str) -> Iterator[CommandInfo]:
    """Those of a group and of the groups in it, named with the words that lead to them."""
    for command in group.registered_commands:
        named = copy.copy(command)
        named.name = before + command_name(command)
        yield named
    for inner in group.registered_groups:
        if inner.hidden is True:
            continue
        assert inner.typer_instance is not None
        name = inner.typer_instance.info.name
        word = f"{name} " if isinstance(name, str) else ""
        yield from _commands_of(inner.typer_instance, before + word)


def command_name(command: CommandInfo) -> str:
    """The word that calls it."""
    assert command.callback is not None
    return command.name or command.callback.__name__.replace("_", "-")


def parameters(command: CommandInfo) -> list[Parameter]:
    """What a command takes, arguments first."""
    assert command.callback is not None
    found = []
    for name, one in inspect.signature(command.callback).parameters.items():
        kind, about = get_args(one.annotation)[:2]
        bare = [part for part in get_args(kind) if part is not type(None)] if type(None) in get_args(kind) else [kind]
        found.append(Parameter(name, bare[0], about, one.default))
    return sorted(found, key=lambda one: isinstance(one.about, OptionInfo))


def commands_page() -> str:
    """Every command with its arguments, options and examples."""
    shared = {one.name: one for command in commands() for one in parameters(command) if one.name in COMMON}
    rows = [shared[name].row for name in COMMON]
    parts = [NOTE + COMMANDS, "## Options of many commands\n", _table(("option", "what it does", "default"), rows)]
    for panel in dict.fromkeys(str(command.rich_help_panel) for command in commands()):
        parts.append(f"\n## {panel}")
        parts += ["\n" + _command(command) for command in commands() if command.rich_help_panel == panel]
    return "\n".join(parts) + "\n"


def _command(command: CommandInfo) -> str:
    taken, word = parameters(command), command_name(command)
    own = [one for one in taken if one.name not in COMMON]
    arguments = " ".join(one.shown for one in own if isinstance(one.about, ArgumentInfo))
    parts = [f"### readstate {word} {arguments}".rstrip(), command.help or inspect.getdoc(command.callback) or ""]
    if own:
        parts.append(_table(("", "what it does", "default"), (one.row for one in own)))
    if shared := [f"`{one.flag}`" for one in taken if one.name in COMMON]:
        parts.append(f"{'Also' if own else 'It takes'} {', '.join(shared)}.")
    parts.append(f"```text\n{_examples(command.epilog or '')}\n```")
    return "\n\n".join(parts)


def _examples(epilog: str) -> str:
    return "\n".join(Text.from_markup(line).plain for line in epilog.split("\n\n")[1:])


# ---------------------------------------------------------------- frames

LIVE = """# Live updates: every frame

A WebSocket at `/v1/ws`. Frames are text, each one JSON object with a `type`. [The guide](guide/live.md) shows how a
client uses them; the [JavaScript client](../clients/js/README.md) does all of it.

- **Token**: `Authorization: Bearer …`; or, from a browser, a subprotocol
  (`new WebSocket(url, ["readstate", "bearer." + token])`); or `token` in `hello`. Offer both subprotocols: the service
  takes `readstate`, so that the token is not in its answer, and a browser gives up where none of its offers is taken.
  A page may connect if it is one of the service's own, or if its origin is in the setting `cors_origins`; others get
  403.
- **First** the device says `hello` and gets `ready`; then what it missed since `resume`, if it gave one; then
  `badge.updated`; then what happens.
- **Answers**: a frame is answered by `ack` or `error`. With a `ref` (text or number) the answer has the same one. An
  `ack` means that it is on disk; an `error`, that nothing has changed (but a `mark_unread` that was refused may have
  ended the focus). Frames are done one after the other.
- **A service key** looks on: `/v1/ws?user=ID`. The user does not become online by it, and it can have nothing open.
- Ids and times are given as in the HTTP API. A `?` marks fields that may be left out. Ignore frames and fields that
  you don't know; the service refuses those that it does not know.
"""
LIVE_EVENTS = """
## Events

All carry `resume`, the cursor to come back with: everything up to it was told. It stays the same for a while where
figures are still to come, so that something may come twice after a fault, but nothing is missed. A `message.new` with
a `seq` that is not beyond the newest of its channel is such a repeat.

**Every figure is exact at its place among the frames**: the numbers of an event replace those that a device has, and
each later `message.new` with `counts` adds one to them. What a device missed comes in this order: the messages
(with `counts: false`), channel by channel; `channel.updated` and `unread.updated` of each channel; threads; receipts.
Up to 1,000 such events are given whole."""
LIVE_END = """
## Limits

They are [settings](settings.md). A frame that is not JSON, or not as described here, is answered by `error`; one that
is too large, or one too many, closes the connection.
"""
ANSWERS = {
    "hello": "`ready`. A second one is an `error`.",
    "channel.focus": "the channel's figures as they stood before (the fields of `unread.updated`), for the red line, "
    "and in `after` those of now.",
    "channel.blur": "nothing more. It is no fault if the channel was not open.",
    "mark_read": "the channel's figures as they stand now (the fields of `unread.updated`), and `changed`. "
    "For a thread: `last_read`, `unread`, `label`, `changed`.",
    "mark_unread": "the same as for `mark_read`. An open channel is then open no more.",
    "auth": "`expires_at`.",
    "badge.tap": "`senders`, `tapped_at`, `by_sender` and `cursor`, as `POST /v1/users/{user}/badge/tap`.",
    "ping": "`pong`.",
}
ACK = """
### ack

A frame is done. The answer to each kind of frame is told with it.

| field | type | what it is |
| --- | --- | --- |
| `ref?` | text or number | What the device called the frame. |"""
CLOSE_CODES = (
    (websocket.NOT_AUTHENTICATED, "No token, not a good one, or no `hello` in time.", "Get a token, then connect."),
    (websocket.TOKEN_EXPIRED, "The token has expired. `auth` in time prevents it.", "Get a token, then connect."),
    (websocket.TOO_SLOW, "Too much waited for this device.", "Connect with `resume`; sync if that is asked for."),
    (
        websocket.TOO_MANY_DEVICES,
        "The user has as many live connections on this process as it may have; an `error` with `too_many_devices` "
        "came before.",
        "Close other devices. Connect after a while.",
    ),
    (
        websocket.TOO_MANY_FRAMES,
        "The user was over its rate when the device connected, the device went on after errors with `rate_limited`, "
        "or a message came in too many parts.",
        "Connect with `resume`, after a pause of seconds that grows. Send what was not answered again.",
    ),
    (websocket.TOO_LARGE, "A frame was too large.", "Mend the client. Don't send it again."),
    (websocket.RESTARTING, "The service stops or restarts.", "Connect with `resume`, soon, after a random pause."),
    (
        websocket.TRY_AGAIN,
        "What was missed can't be looked up now: a store is away.",
        "Connect with `resume`, after a pause that grows.",
    ),
    (1011, "A fault inside the service, or no answer to its pings.", "Connect with `resume`, after a pause."),
    (1006, "The connection broke (no code came).", "Connect with `resume`, after a pause that grows."),
)
LIVE_SETTINGS = ("heartbeat", "hello_timeout", "rate_limit", "max_devices", "max_frame", "max_queue")


def live_page() -> str:
    """Every frame with its fields, the shapes in them, and the close codes."""
    sent = get_args(frames.AnyClientFrame)
    events = frames.Event.__subclasses__()
    parts = [NOTE + LIVE, "## What a device sends", *(_frame(one, ("ref",), _answer(one)) for one in sent)]
    parts += ["\n## What the service answers", _frame(frames.Ready), ACK, _frame(frames.Error), _frame(frames.Pong)]
    parts += [LIVE_EVENTS, *(_frame(one, ("resume",)) for one in events)]
    parts += ["\n## What is in them", *(_frame(one) for one in _shapes(events))]
    codes = [(f"`{code}`", why, what) for code, why, what in CLOSE_CODES]
    parts += ["\n## Close codes\n", _table(("code", "why", "what to do"), codes)]
    limits = [(f"`{row.name}`", _default(row.default), _sentence(row.about.help)) for row in settings.describe()]
    kept = [row for row in limits if row[0].strip("`") in LIVE_SETTINGS]
    return "\n".join([*parts, LIVE_END, _table(("setting", "default", "what it is"), kept)]) + "\n"


def _answer(frame: type[Struct]) -> str:
    return f"\n\nAnswer: {ANSWERS[_name(frame)]}"


def _name(frame: type[Struct]) -> str:
    return str(frame.__struct_config__.tag or re.sub(r"View$", "", frame.__name__))


def _frame(frame: type[Struct], without: Collection[str] = (), ending: str = "") -> str:
    info = kinds.type_info(frame)
    assert isinstance(info, kinds.StructType)
    rows = [_frame_field(frame, field) for field in info.fields if field.encode_name not in without]
    table = f"\n\n{_table(('field', 'type', 'what it is'), rows)}" if rows else ""
    return f"\n### {_name(frame)}\n\n{_doc(frame)}{ending}{table}"


def _frame_field(frame: type[Struct], field: kinds.Field) -> tuple[str, str, str]:
    name = field.encode_name
    assert isinstance(field.type, kinds.Metadata), f"{frame.__name__}.{name}: say what it is, beside the field"
    about = (field.type.extra_json_schema or {})["description"]
    return f"`{name}{'' if field.required else '?'}`", _type(field.type, not field.required), about


def _type(kind: kinds.Type, optional: bool = False) -> str:
    """A type in words. `null` goes without saying where the field may be left out."""
    match kind:
        case kinds.Metadata(extra_json_schema={"title": title}):
            return str(title).lower()
        case kinds.Metadata(type=inner):
            return _type(inner, optional)
        case kinds.StrType():
            return "text"
        case kinds.IntType():
            return "number"
        case kinds.BoolType():
            return "true or false"
        case kinds.NoneType():
            return "null"
        case kinds.LiteralType(values=values):
            return ", ".join(f"`{value}`" for value in values)
        case kinds.StructType(cls=cls):
            return f"[{_name(cls)}](#{_name(cls).lower()})"
        case kinds.VarTupleType(item_type=item):
            return f"list of {_type(item)}s"
        case kinds.UnionType(types=types):
            return " or ".join(_type(one) for one in types if not (optional and isinstance(one, kinds.NoneType)))
    raise TypeError(f"a type that has no word yet: {kind}")


def _shapes(events: Iterable[type[Struct]]) -> list[type[Struct]]:
    """The structs inside events, each once."""
    own = [*events]
    return sorted((one for one in schemas.structs_in(own) if one not in own), key=_name)


# ---------------------------------------------------------------- modules

SOURCE = DOCS.parent / "src" / "readstate"
MODULES = """# Modules

Every file of `src/readstate` with the beginning of its docstring. [Architecture](architecture.md) says how they work
together.
"""


def modules_page() -> str:
    """All Python files, one table per directory."""
    parts = [NOTE + MODULES]
    for directory in sorted({path.parent for path in SOURCE.rglob("*.py")}):
        rows = [(f"`{path.name}`", _first_sentence(path)) for path in sorted(directory.glob("*.py"))]
        name = "/".join(("readstate", *directory.relative_to(SOURCE).parts))
        parts.append(f"## {name}\n\n{_table(('file', 'what it is'), rows)}\n")
    return "\n".join(parts)


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "errors.md": errors_page,
    "cli.md": commands_page,
    "live.md": live_page,
    "modules.md": modules_page,
}


def main(arguments: list[str]) -> int:
    """Write or check; the exit code."""
    if arguments == ["--check"]:
        for name in (found := stale()):
            print(f"docs/{name} is not current: run python docs/generate.py")
        return 1 if found else 0
    if arguments:
        print(__doc__)
        return 2
    write()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
