"""The pages of reference say all there is, as it is now."""

import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from readstate import api, settings, telemetry
from readstate.client import Client
from readstate.client import errors as raised
from readstate.domain import errors
from readstate.transfer import records as transfer_records

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """docs/generate.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def test_the_pages_are_as_the_code_would_write_them_now(generate: ModuleType) -> None:
    assert generate.stale() == [], "run: python docs/generate.py"


def test_a_page_that_is_not_current_is_named(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    generate.write()
    assert generate.main(["--check"]) == 0

    (tmp_path / "errors.md").write_text("as it was long ago")

    assert generate.main(["--check"]) == 1
    assert "docs/errors.md is not current" in capsys.readouterr().out


def test_every_setting_is_there_with_its_variable() -> None:
    for row in settings.describe():
        assert f"| `{row.name}` | `{row.variable}` |" in page("settings.md")


def test_every_metric_that_is_served_is_there() -> None:
    families = [family for family in telemetry.REGISTRY.collect() if family.name.startswith("readstate_")]

    assert families
    for family in families:
        served = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"| `{served}` | {family.type} |" in page("metrics.md")
        assert family.documentation in page("metrics.md")


def test_every_code_is_there_once() -> None:
    codes = {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.ReadstateError)
    }

    listed = re.findall(r"^\| `([a-z_]+)` \| `\w+` \| (?:yes|no) \|", page("errors.md"), re.MULTILINE)

    assert sorted(listed) == sorted(codes)


def test_every_command_is_there_with_an_example(generate: ModuleType) -> None:
    for command in generate.commands():
        word = generate.command_name(command)
        _, _, section = page("cli.md").partition(f"### readstate {word}")
        assert f"readstate {word}" in section.split("### ")[0]


def test_every_call_of_the_sdk_is_there() -> None:
    calls = [name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")]

    missing = [name for name in calls if f"`{name}(" not in page("sdk.md") and f"{name}()" not in page("sdk.md")]

    assert missing == []


def test_pages_of_reference_name_no_classes_of_the_sdk_that_are_not_there() -> None:
    table = page("sdk.md").partition("## All calls")[2].partition("## Errors")[0]
    for name in re.findall(r"\| `\[?(?:\{user: )?([A-Z]\w+)", table):
        assert hasattr(api, name) or hasattr(transfer_records, name), name
    for name in re.findall(r"errors\.([A-Z]\w+)", page("sdk.md")):
        assert hasattr(raised, name), name
