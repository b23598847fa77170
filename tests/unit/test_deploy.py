"""What is in deploy/ fits the code: metrics, labels and settings that it names exist, and so does what it points to."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import Counter, Gauge, Histogram

from readstate import settings, telemetry
from readstate.workers import ROLES

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "readstate.json"
COMPOSE = DEPLOY / "compose.yml"

OF_OTHERS = {name: set[str]() for name in ("up", "process_cpu_seconds_total", "process_resident_memory_bytes")}
"""Series of Prometheus itself, and of every process on Linux."""
OF_SCRAPES = {"job", "instance"}
"""Labels that Prometheus adds."""
FUNCTIONS = {
    *("absent", "clamp_min", "count", "histogram_quantile", "increase", "max", "max_over_time"),
    *("rate", "sum", "topk", "vector"),
}
WORDS = {"and", "by", "group_left", "offset", "on", "or", "unless"}
PROMISED = {
    *("readstate_receipts_total", "readstate_receipts_dedup_ratio", "readstate_persist_batch_size"),
    *("readstate_persist_seconds", "readstate_persist_lag_seconds", "readstate_consumer_lag", "readstate_spool_depth"),
    *("readstate_kafka_fallback_total", "readstate_fallback_success_total", "readstate_produced_total"),
    *("readstate_produce_failed_total", "readstate_dlt_reconciled_total", "readstate_dlt_failed_total"),
    *("readstate_drift_total", "readstate_ws_connections", "readstate_badge_writes_saved_total"),
}


# ---------------------------------------------------------------- expressions of Prometheus

TOKEN = re.compile(
    r"""(?P<text>"[^"]*")          # a value of a label
      | (?P<range>\[[^\]]*\])      # over how long
      | (?P<name>[A-Za-z_]\w*)
      | (?P<number>\d[\w.]*)
      | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/=<>(){},])
      | (?P<space>\s+)""",
    re.VERBOSE,
)


class Use(NamedTuple):
    """A series in an expression, and the labels that it is chosen by."""

    series: str
    labels: frozenset[str]


def tokens(expression: str) -> list[tuple[str, str]]:
    """Kind and text of each token; fails at what is none."""
    found, at = [], 0
    while at < len(expression):
        match = TOKEN.match(expression, at)
        assert match, f"what is {expression[at : at + 20]!r} in {expression!r}?"
        at = match.end()
        if match.lastgroup not in {"space", None}:
            found.append((match.lastgroup or "", match[0]))
    return found


def uses(expression: str) -> tuple[list[Use], set[str]]:
    """The series of an expression, and the labels that it groups by."""
    series, groups = list[Use](), set[str]()
    pending = iter(tokens(expression))
    last = ""
    for kind, text in pending:
        if text == "{":
            labels = frozenset(name for kind, name in _until("}", pending) if kind == "name")
            series[-1] = Use(series[-1].series, labels)
        elif text == "(" and last in {"by", "on", "group_left"}:
            groups |= {name for kind, name in _until(")", pending) if kind == "name"}
        elif kind == "name" and text not in FUNCTIONS | WORDS and last != "offset":
            series.append(Use(text, frozenset()))
        last = text
    return series, groups


def _until(end: str, pending: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for kind, text in pending:
        if text == end:
            return
        yield kind, text


def known_series() -> dict[str, set[str]]:
    """Everything that telemetry serves, by name, with its labels."""
    known = dict(OF_OTHERS)
    for metric in vars(telemetry).values():
        if not isinstance(metric, Counter | Gauge | Histogram):
            continue
        labels = set(metric._labelnames)
        match metric:
            case Counter():
                known[f"{metric._name}_total"] = labels
            case Histogram():
                known |= {f"{metric._name}_{part}": labels for part in ("sum", "count")}
                known[f"{metric._name}_bucket"] = labels | {"le"}
            case _:
                known[metric._name] = labels
    return known


KNOWN = known_series()


def faults(expression: str) -> list[str]:
    """What an expression names that does not exist."""
    series, groups = uses(expression)
    found = [f"no series {use.series}" for use in series if use.series not in KNOWN]
    for use in series:
        found += [f"{use.series} has no {label}" for label in use.labels - KNOWN.get(use.series, set()) - OF_SCRAPES]
    there = set().union(OF_SCRAPES, *(KNOWN.get(use.series, set()) for use in series))
    return found + [f"nothing here has a label {label}" for label in groups - there]


# ---------------------------------------------------------------- files


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def rules() -> list[dict[str, Any]]:
    return [rule for group in load(RULES)["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return found


def panels() -> list[dict[str, Any]]:
    return [inner for panel in dashboard()["panels"] for inner in (panel, *panel.get("panels", []))]


def shown() -> list[tuple[str, str]]:
    """(panel, expression) of the dashboard, variables of Grafana put in."""
    variables = [
        (f"variable {one['name']}", re.sub(r"label_values\((.*), \w+\)", r"\1", one["query"]["query"]))
        for one in dashboard()["templating"]["list"]
        if one["type"] == "query"
    ]
    found = [(panel["title"], target["expr"]) for panel in panels() for target in panel.get("targets", [])]
    return [(title, re.sub(r"\$__(rate_interval|range)", "5m", text)) for title, text in variables + found]


def containers() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = load(COMPOSE)["services"]
    return found


# ---------------------------------------------------------------- alerts and dashboard


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_asks_for_what_there_is(rule: dict[str, Any]) -> None:
    assert faults(rule["expr"]) == []
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert {"summary", "description"} <= rule["annotations"].keys()


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_leads_to_what_to_do(rule: dict[str, Any]) -> None:
    page, _, heading = rule["annotations"]["runbook"].partition("#")

    titles = re.findall(r"^#+ (.*)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)

    assert heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_what_must_be_told_has_an_alert() -> None:
    asked = " ".join(rule["expr"] for rule in rules())
    for series in (
        *("readstate_dlt_failed_total", "readstate_persist_lag_seconds_bucket", "readstate_consumer_lag"),
        *("readstate_spool_depth", "readstate_produce_failed_total", "readstate_drift_total", "up"),
    ):
        assert series in asked
    consumers = {role for role in ROLES if role not in {"reconciler", "auditor"}}
    assert set(re.findall(r'group="([\w-]+)"', asked)) == consumers


@pytest.mark.parametrize(("title", "expression"), shown(), ids=[title for title, _ in shown()])
def test_a_panel_shows_what_there_is(title: str, expression: str) -> None:
    assert faults(expression) == []


def test_the_dashboard_is_whole() -> None:
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids) > 0
    assert len({panel["title"] for panel in panels()}) == len(ids)
    for panel in panels():
        assert panel["type"] == "row" or (panel["targets"] and panel["description"]), panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_every_metric_that_is_promised_is_on_the_dashboard() -> None:
    asked = {use.series for _, expression in shown() for use in uses(expression)[0]}

    assert {name for name in PROMISED if not any(series.startswith(name) for series in asked)} == set()


# ---------------------------------------------------------------- the cluster


def test_every_setting_of_the_compose_file_is_one() -> None:
    named = set(re.findall(r"READSTATE_\w+", COMPOSE.read_text("utf-8") + (DEPLOY / "Dockerfile").read_text("utf-8")))

    assert named
    assert named - {row.variable for row in settings.describe()} == set()


@pytest.mark.parametrize("name", ["serve-1", "serve-2", "worker", "maintenance", "migrate"])
def test_the_settings_of_a_container_are_those_of_a_cluster(name: str) -> None:
    environ = {key: re.sub(r"\$\{\w+[^}]*\}", "x" * 48, str(v)) for key, v in containers()[name]["environment"].items()}

    assert settings.load_settings({}, environ).profile == "cluster"


def test_the_workers_have_all_roles_between_them() -> None:
    roles = [
        role for one in containers().values() if one.get("command", [""])[0] == "worker" for role in one["command"][1:]
    ]

    assert sorted(roles) == sorted(ROLES)


def test_what_is_scraped_is_there() -> None:
    jobs = {job["job_name"]: job for job in load(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]}

    instances = {target.partition(":")[0] for target in jobs["readstate-serve"]["static_configs"][0]["targets"]}
    workers = set(jobs["readstate-worker"]["dns_sd_configs"][0]["names"])

    assert instances == {name for name, one in containers().items() if one.get("command") == ["serve"]}
    assert workers == {name for name, one in containers().items() if one.get("command", [""])[0] == "worker"}
    assert set(re.findall(r'job="([\w-]+)"', " ".join(rule["expr"] for rule in rules()))) == jobs.keys()


def test_every_volume_and_file_of_the_compose_file_is_there() -> None:
    volumes = load(COMPOSE)["volumes"].keys()
    for name, one in containers().items():
        assert ":" in one["image"], f"{name} has no version"
        for volume in one.get("volumes", []):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in volumes, f"{name}: {source}"


def test_links_of_the_page_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#\s]+)", (DEPLOY / "README.md").read_text("utf-8")):
        assert (DEPLOY / link).exists(), link


# ---------------------------------------------------------------- with Prometheus' own tool, where it is installed


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (package prometheus)")
@pytest.mark.parametrize("words", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_prometheus_takes_the_rules(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *words], cwd=RULES.parent, check=False, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (package prometheus)")
def test_prometheus_understands_the_dashboard(tmp_path: Path) -> None:
    records = [{"record": f"panel_{number}", "expr": text} for number, (_, text) in enumerate(shown())]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": records}]}))

    done = subprocess.run(
        ["promtool", "check", "rules", "panels.yml"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stdout + done.stderr


# ---------------------------------------------------------------- this test itself


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("rate(readstate_no_such_total[5m])", "no series readstate_no_such_total"),
        ("readstate_produced_total{color='red'}", None),
        ('readstate_produced_total{color="red"}', "readstate_produced_total has no color"),
        ("sum by (color) (readstate_produced_total)", "nothing here has a label color"),
        ('sum by (topic, instance) (rate(readstate_produced_total{job="a"}[5m] offset 5m)) > 0.1', ""),
    ],
)
def test_what_does_not_exist_is_found(expression: str, fault: str | None) -> None:
    if fault is None:
        with pytest.raises(AssertionError):
            faults(expression)
    else:
        assert faults(expression) == ([fault] if fault else [])
