"""Every example in README and docs is run as a reader would run it, and must do what the text shows.

- ```sh blocks of one file run in order in one bash, beside a service of their own; lines that call `make` are left
  out. A comment that begins like JSON (`# {…}`) is the answer of the command before it.
- ```python blocks of one file run in order with the same names; `await` may stand at the top. One that opens a store
  itself does so in another directory, because the service has the first.
- A ```json or ```text block after `<!-- answer -->` is what the last command or program printed. Other ```json and
  ```jsonl blocks must be JSON.
- In JSON that is shown, `…` stands for anything, `,…}` for more fields, and a time for any time.
- A block after `<!-- not run: reason -->` is left alone.
"""

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import secrets
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Server, serving

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ADDRESS = "http://127.0.0.1:8080"
"""Where a service listens that nobody told otherwise; the one of a test listens elsewhere."""
RUN = {"sh", "python"}
DATA = {"json", "jsonl"}
PROSE = {"", "text", "toml", "js"}
ANY = "…"
LONG_AGO = 10**12


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    mark: str
    """The comment right before it."""

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def left_alone(self) -> bool:
        return re.match(r"not run: \S", self.mark) is not None


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, from top to bottom."""
    found: list[Block] = []
    inside: list[str] = []
    before, opened = "", None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = re.fullmatch(r"\s*```(\S*)\s*", line)
        if opened is None and fence:
            opened, inside = (number, fence[1]), []
        elif opened is not None and fence and not fence[1]:
            mark = re.fullmatch(r"\s*<!-- (.*?) -->\s*", before)
            text = textwrap.dedent("\n".join(inside)) + "\n"
            found.append(Block(page, opened[0], opened[1], text, mark[1] if mark else ""))
            opened, before = None, ""
        elif opened is not None:
            inside.append(line)
        elif line.strip():
            before = line
    assert opened is None, f"{page.name}:{opened and opened[0]}: the block does not end"
    return found


# ---------------------------------------------------------------- JSON that is shown


def shown(text: str) -> Any:
    """JSON as a page shows it, with `…` for what is left out."""
    text = re.sub(rf"([\[{{,])\s*{ANY}\s*([\]}}])", lambda m: _more(m[1], m[2]), text)
    return json.loads(re.sub(rf"(?<=[:\[,])\s*{ANY}\s*(?=[,\]}}])", f'"{ANY}"', text))


def _more(opening: str, closing: str) -> str:
    return f'{opening}"{ANY}"{closing}' if closing == "]" else f'{opening}"{ANY}":0{closing}'


def difference(want: Any, got: Any, at: str = "answer") -> str | None:
    """Where an answer is not as shown; None if it is."""
    if isinstance(want, str) and ANY in want and (want == ANY or isinstance(got, str)):
        return None
    if isinstance(want, dict) and isinstance(got, dict):
        if missing := want.keys() - got.keys() - {ANY}:
            return f"{at} has no {sorted(missing)}"
        if ANY not in want and (more := got.keys() - want.keys()):
            return f"{at} also has {sorted(more)}"
        return next(filter(None, (difference(want[k], got[k], f"{at}.{k}") for k in want if k != ANY)), None)
    if isinstance(want, list) and isinstance(got, list):
        first = want[:-1] if want and want[-1] == ANY else want
        if len(got) < len(first) or (first is want and len(got) > len(want)):
            return f"{at} has {len(got)} items, not {len(first)}"
        pairs = enumerate(zip(first, got[: len(first)], strict=True))
        return next(filter(None, (difference(w, g, f"{at}[{i}]") for i, (w, g) in pairs)), None)
    if type(want) is type(got) is int and want > LONG_AGO and got > LONG_AGO:
        return None
    return None if type(want) is type(got) and want == got else f"{at} is {got!r}, not {want!r}"


def problem(line: str) -> bool:
    """Whether a line of output is an error of the service, or tells of a message that it rejected."""
    with contextlib.suppress(json.JSONDecodeError):
        told = json.loads(line)
        return isinstance(told, dict) and ({"code", "detail", "status"} <= told.keys() or '"rejected"' in line)
    return False


# ---------------------------------------------------------------- running


def commands(block: Block) -> Iterator[tuple[str, Any]]:
    """The commands of a shell block up to each answer that it shows, with the answer, or None at the end."""
    lines: list[str] = []
    answer = ""
    for line in [*block.text.splitlines(), ""]:
        if answer or re.match(r"# [{\[]", line):
            if line.startswith("#"):
                answer += line.removeprefix("#")
                continue
            yield "\n".join(lines), shown(answer)
            lines, answer = [], ""
        if not re.match(r"\s*make\s", line):
            lines.append(line)
    if any(line.strip() for line in lines):
        yield "\n".join(lines), None


class Reader:
    """Somebody who works through a page, in a directory where a service keeps its data."""

    def __init__(self, directory: Path, server: Server) -> None:
        self._directory = directory
        self._server = server
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._runner = asyncio.Runner()
        self._printed = ""
        self._errors = directory / "stderr"
        self._library = directory / "library"
        self._library.mkdir()
        self._bash = self._open_shell()

    def work_through(self, page: Path) -> None:
        """Do what a page says; fails if that does not work, or not as shown."""
        for block in blocks(page):
            if not block.left_alone:
                self._follow(block)

    def _follow(self, block: Block) -> None:
        if block.mark == "answer":
            self._compare(block)
        elif block.language == "sh":
            for command, answer in commands(block):
                self._run(block, command, answer)
        elif block.language == "python":
            self._execute(block)
        elif block.language in DATA:
            for text in block.text.splitlines() if block.language == "jsonl" else [block.text]:
                shown(text)

    def close(self) -> None:
        """Stop the shell and the event loop."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.close()
        self._bash.stdout.close()
        self._bash.wait(30)
        self._runner.close()

    def _open_shell(self) -> "subprocess.Popen[str]":
        programs = Path(sys.executable).parent
        activate = self._directory / ".venv" / "bin" / "activate"
        activate.parent.mkdir(parents=True)
        activate.write_text(f'PATH="{programs}:$PATH"\n')
        environ = {k: v for k, v in os.environ.items() if not k.startswith("READSTATE_")}
        environ["PATH"] = f"{programs}:{environ['PATH']}"
        with self._errors.open("w") as errors:
            return subprocess.Popen(
                ["bash", "--noprofile", "--norc", "-euo", "pipefail"],
                cwd=self._directory,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def _run(self, block: Block, command: str, answer: Any) -> None:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        script = self._directory / "script"
        script.write_text(self._at_home(command) + "\n")
        end = secrets.token_hex(8)
        self._bash.stdin.write(f"source {script} </dev/null; printf '\\n%s\\n' {end}\n")
        self._bash.stdin.flush()
        output: list[str] = []
        while (line := self._bash.stdout.readline()) != f"{end}\n":
            output.append(line)
            assert line, f"{block.place}: the commands fail:\n{command}\n{''.join(output)}\n{self._errors.read_text()}"
        self._printed = "".join(output).strip()
        others = self._printed.splitlines()
        if answer is not None:
            self._same(block, answer)
            others.pop()
        faults = [line for line in others if problem(line)]
        assert not faults, f"{block.place}: {faults[0]}"

    def _execute(self, block: Block) -> None:
        source = "\n" * block.line + self._at_home(block.text)
        code = compile(source, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        directory = self._library if "Readstate.open(" in source else self._directory
        printed = io.StringIO()
        with contextlib.chdir(directory), contextlib.redirect_stdout(printed):
            result = eval(code, self._names)
            if code.co_flags & inspect.CO_COROUTINE:
                self._runner.run(result)
        self._printed = printed.getvalue().strip()

    def _compare(self, block: Block) -> None:
        if block.language == "text":
            assert self._printed == block.text.strip(), f"{block.place}: printed was {self._printed}"
        else:
            self._same(block, shown(block.text))

    def _same(self, block: Block, answer: Any) -> None:
        last = self._printed.splitlines()[-1] if self._printed else "nothing"
        try:
            fault = difference(answer, json.loads(last))
        except json.JSONDecodeError:
            fault = "it is not JSON"
        assert fault is None, f"{block.place}: {fault}\nshown: {json.dumps(answer)}\nreal:  {last}"

    def _at_home(self, text: str) -> str:
        return text.replace(ADDRESS, self._server.url)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with (
        serving(tmp_path / "readstate-data", demo="true") as server,
        contextlib.closing(Reader(tmp_path, server)) as reader,
    ):
        yield reader


@pytest.fixture(scope="module")
def somewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("somewhere") / "readstate-data") as server:
        yield server


@pytest.fixture
def careless_reader(tmp_path: Path, somewhere: Server) -> Iterator[Reader]:
    """One whose examples leave nothing behind, so that a service of their own is not needed."""
    with contextlib.closing(Reader(tmp_path, somewhere)) as reader:
        yield reader


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_blocks(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def headings(page: Path) -> set[str]:
    """What links call them."""
    titles = re.findall(r"^#+ (.*)$", without_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


# ---------------------------------------------------------------- the pages


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        assert block.language in RUN | DATA | PROSE, f"{block.place}: ```{block.language} would not be run"
        assert block.left_alone or not block.mark.startswith("not run"), f"{block.place}: say why it is not run"


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language in RUN for b in blocks(page))], ids=named)
def test_the_examples_of_a_page_work(page: Path, reader: Reader) -> None:
    reader.work_through(page)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for link, heading in re.findall(r"\]\(([^)#\s]*)#?([^)]*)\)", without_blocks(page)):
        if re.match(r"https?:", link):
            continue
        target = page.parent / link if link else page
        assert target.exists(), f"{page.name} leads to {link}"
        assert not heading or heading in headings(target), f"{link} has no #{heading}"


def test_files_that_the_architecture_names_exist() -> None:
    source = ROOT / "src" / "readstate"
    names = set(re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text()))
    files = {str(path.relative_to(source)) for path in source.rglob("*.py")}
    assert not [name for name in names if not any(f"/{file}".endswith(f"/{name}") for file in files)]


# ---------------------------------------------------------------- this test itself


@pytest.mark.parametrize(
    "example",
    [
        "```sh\nno-such-command\n```\n",
        "```sh\nreadstate read nobody nowhere\n```\n",
        f"```sh\ncurl -sS {ADDRESS}/v1/users/bob/unread\n```\n",
        f'```sh\ncurl -sS {ADDRESS}/healthz\n# {{"status":"ill"}}\n```\n',
        f'```sh\ncurl -sS {ADDRESS}/healthz\n```\n<!-- answer -->\n```json\n{{"status": "ok", "more": 1}}\n```\n',
        "```python\nassert 1 + 1 == 3\n```\n",
        "```python\nimport asyncio\nawait asyncio.no_such_thing()\n```\n",
        "```python\nprint(1 + 1)\n```\n<!-- answer -->\n```text\n3\n```\n",
        '```json\n{"broken": }\n```\n',
    ],
)
def test_a_broken_example_fails(example: str, tmp_path: Path, careless_reader: Reader) -> None:
    page = tmp_path / "page.md"
    page.write_text(example)
    with pytest.raises((AssertionError, AttributeError, json.JSONDecodeError)):
        careless_reader.work_through(page)


def test_what_a_page_leaves_out_may_be_anything() -> None:
    now = time.time_ns() // 1_000_000
    answer = {"id": "m1", "at": now, "list": [1, 2], "deep": {"seq": 1, "epoch": 0}}
    assert difference(shown('{"id":"m1",…}'), answer) is None
    assert difference(shown('{"id":…,"at":1760000000000,"list":[1,…],"deep":{"seq":1,…}}'), answer) is None
    assert difference(shown('{"id":"m2",…}'), answer) == "answer.id is 'm1', not 'm2'"
    assert difference(shown('{"id":"m1"}'), answer) == "answer also has ['at', 'deep', 'list']"
    assert difference(shown('{"deep":{"seq":true,…},…}'), answer) == "answer.deep.seq is 1, not True"
