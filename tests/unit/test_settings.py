"""Settings: where they come from, which source wins, and how faults are told."""

from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from readstate.domain.errors import ConfigurationError
from readstate.settings import Settings, describe, load_settings, make_settings, without_password
from readstate.stack import VARIABLES

KEY = "a-service-key-of-32-characters-!"
SECRET = "a secret of at least 32 bytes, as HS256 wants it"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def faults_of(environ: dict[str, str], toml: Path | None = None, **flags: object) -> str:
    with pytest.raises(ConfigurationError) as refused:
        load_settings(flags, environ, toml)
    return refused.value.detail


def test_without_any_source_the_defaults_stand() -> None:
    settings = load_settings({}, {}, None)

    assert settings == Settings()
    assert (settings.host, settings.port, settings.fanout_max_members) == ("127.0.0.1", 8080, 100)


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    toml = tmp_path / "given.toml"
    toml.write_text('port = 1\nhost = "file"\nmax_batch = 7\n')
    environ = {"READSTATE_PORT": "2", "READSTATE_HOST": "environment", "PORT": "9"}

    settings = load_settings({"port": 3, "host": None}, environ, toml)

    assert (settings.port, settings.host, settings.max_batch, settings.max_page) == (
        3,
        "environment",
        7,
        1000,
    )


def test_the_file_is_named_by_variable_or_lies_in_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "readstate.toml").write_text("port = 1")
    (tmp_path / "other.toml").write_text("port = 2")

    assert load_settings({}, {}).port == 1
    assert load_settings({}, {"READSTATE_CONFIG": "other.toml"}).port == 2


def test_lists_are_comma_separated_in_the_environment_and_lists_in_the_file(tmp_path: Path) -> None:
    toml = tmp_path / "given.toml"
    toml.write_text('cors_origins = ["https://a.example", "http://localhost:3000"]')

    settings = load_settings({}, {"READSTATE_SERVICE_KEYS": f" {KEY}1, {KEY}2 ,"}, toml)

    assert settings.service_keys == (KEY + "1", KEY + "2")
    assert settings.cors_origins == ("https://a.example", "http://localhost:3000")


def test_all_faults_are_named_together_each_with_its_source(tmp_path: Path) -> None:
    toml = tmp_path / "given.toml"
    toml.write_text('max_page = "many"\nfanout_max_member = 5\n')
    environ = {"READSTATE_PORT": "abc", "READSTATE_PROT": "1", "READSTATE_STORE_TEXT": "some"}

    detail = faults_of(environ, toml, workers=2, log_level="loud")

    assert "7 settings are not valid" in detail
    assert "READSTATE_PORT: 'abc' is not a whole number" in detail
    assert "READSTATE_PROT: there is no such setting; did you mean READSTATE_PORT?" in detail
    assert "READSTATE_STORE_TEXT: 'some' is not one of full, preview, none" in detail
    assert f"{toml}: max_page: 'many' is not a whole number" in detail
    assert f"{toml}: fanout_max_member: there is no such setting; did you mean fanout_max_members?" in detail
    assert "--log-level: 'loud' is not one of debug, info, warning, error" in detail
    assert "--workers: 2 is not possible in the embedded profile" in detail


def test_variables_of_the_command_line_and_of_others_are_no_faults() -> None:
    environ = {"READSTATE_URL": "http://x", "READSTATE_KEY": "y", "READSTATED": "z", "PATH": "/bin"}

    assert load_settings({}, environ) == Settings()


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("WRITE_REPLICA_URL", "redis://127.0.0.1:6380/0", "the embedded profile writes to no replica"),
        ("PROFILE", "cluster", "the cluster profile needs PostgreSQL"),
        ("PROFILE", "cluster", "the cluster profile needs Valkey or Redis"),
        ("PROFILE", "cluster", "the cluster profile needs Kafka"),
        ("PROFILE", "cloud", "'cloud' is not one of embedded, cluster"),
        ("TOPIC_PREFIX", "a b", "is not at most 64 letters"),
        ("PORT", "65536", "is above the most, 65535"),
        ("PORT", "-1", "is below the least, 0"),
        ("PORT", "", "'' is not a whole number"),
        ("PORT", "8080.5", "is not a whole number"),
        ("HOST", "", "is not a host name"),
        ("HOST", "http://x/", "is not a host name"),
        ("DATA_DIR", " ", "is empty"),
        ("DATA_DIR", "x\udcff", "holds bytes that are no text"),
        ("DATABASE_URL", "cassandra://db/x", "cassandra, which is not available in this version"),
        ("DATABASE_URL", "dynamodb://eu-west-1", "dynamodb, which is not available in this version"),
        ("DATABASE_URL", "sqlite:///", "is not of the form sqlite:///path"),
        ("DATABASE_URL", "mysql://db/x", "is not of the form sqlite:///path or postgresql://"),
        ("DATABASE_URL", "postgresql://u:p@db:port/x", "is not of the form postgresql://"),
        ("DATABASE_URL", "postgresql://u:with/slash@db/x", "write / as %2F"),
        ("DATABASE_CONNECTIONS", "1", "is below the least, 2"),
        ("HOT_URL", "127.0.0.1:6379", "is not of the form redis://"),
        ("HOT_URL", "redis://", "is not of the form redis://"),
        ("HOT_URL", "redis://h:1/name", "is not of the form redis://"),
        ("HOT_URL", "redis://h:1,i:2", "redis+cluster://host:port,host:port"),
        ("HOT_URL", "redis+cluster://h:1,,i:2", "is not of the form redis://"),
        ("HOT_URL", "redis+cluster://h:1/3", "is not of the form redis://"),
        ("HOT_URL", "valkey://h:1", "is not of the form redis://"),
        ("WRITE_REPLICA_URL", "http://h", "is not of the form redis://"),
        ("KAFKA_BOOTSTRAP", "a:9092,b", "item 2 ('b') is not of the form host:port"),
        ("KEY_PREFIX", "app{1}:", "is not at most 64 printable ASCII characters"),
        ("KEY_PREFIX", "x" * 65, "is not at most 64 printable ASCII characters"),
        ("DATABASE_URL", "readstate.db", "is not of the form sqlite:///path"),
        ("JWKS", "ftp://keys", "is neither a file nor an http(s) URL"),
        ("CORS_ORIGINS", "https://a.example,b.example", "item 2 ('b.example') is not a web origin"),
        ("CORS_ORIGINS", "https://a.example/path", "is not a web origin"),
        ("LOG_LEVEL", "trace", "is not one of"),
        ("MAX_BATCH", "0", "is below the least, 1"),
        ("DISPLAY_CAP", "99999999999999999999", "is not a whole number"),
        ("JWT_USER_CLAIM", "", "is empty"),
        ("INSTANCE_ID", "a\nb", "is not at most 128 printable bytes"),
        ("TRACES", "perhaps", "'perhaps' is neither true nor false"),
        ("TRACES", "", "'' is neither true nor false"),
        ("CONFIG", "missing.toml", "missing.toml: cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(variable: str, value: str, why: str) -> None:
    assert why in faults_of({f"READSTATE_{variable}": value})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PORT", "0"),
        ("HOST", "::1"),
        ("DATABASE_URL", "sqlite:////var/lib/readstate.db"),
        ("DATABASE_URL", "postgresql://u:p%40ss@db.example:5432/x?sslmode=verify-full&sslrootcert=/etc/ca.pem"),
        ("DATABASE_URL", "postgres://[::1]/x"),
        ("DATABASE_URL", "postgresql://a:1,b:2/x?target_session_attrs=primary"),
        ("DATABASE_URL", "postgresql:///x?host=/run/postgresql"),
        ("HOT_URL", "redis://127.0.0.1:6379/0"),
        ("HOT_URL", "rediss://user:p%2Fss@hot.example?ssl_cert_reqs=none"),
        ("HOT_URL", "redis://:secret@[::1]:6379"),
        ("HOT_URL", "redis+cluster://a:1,b:2,c:3"),
        ("HOT_URL", "rediss+cluster://user:secret@a:1,b:2"),
        ("KAFKA_BOOTSTRAP", "127.0.0.1:9092, broker-2.example:9092"),
        ("KEY_PREFIX", "chat:eu/"),
        ("JWKS", "/etc/keys.json"),
        ("JWKS", "https://id.example/.well-known/jwks.json"),
        ("CORS_ORIGINS", "*"),
        ("LOG_LEVEL", "INFO"),
        ("RATE_LIMIT", "0"),
        ("SERVICE_KEYS", ""),
    ],
)
def test_what_can_be_is_taken(variable: str, value: str) -> None:
    load_settings({}, {f"READSTATE_{variable}": value})


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("True", True), ("1", True), ("on", True), ("false", False), ("0", False)]
)
def test_the_environment_may_spell_true_and_false_in_several_ways(text: str, value: bool) -> None:
    assert load_settings({}, {"READSTATE_TRACES": text}).traces is value


def test_elsewhere_true_is_true_and_not_a_number(tmp_path: Path) -> None:
    toml = tmp_path / "given.toml"
    toml.write_text("traces = true")
    assert load_settings({}, {}, toml).traces is True

    toml.write_text("traces = 1")
    assert "traces: 1 is neither true nor false" in faults_of({}, toml)


def test_a_file_that_is_not_toml_is_a_fault_beside_the_others(tmp_path: Path) -> None:
    toml = tmp_path / "given.toml"
    toml.write_text("port: 8080")

    detail = faults_of({"READSTATE_PORT": "x"}, toml)

    assert "is not TOML in UTF-8" in detail
    assert "READSTATE_PORT" in detail


@pytest.mark.parametrize("key", ["hunter2", "with a space in its middle", "with-an-ümlaut-in-its-middle"])
def test_weak_service_keys_are_refused_and_not_shown(key: str) -> None:
    detail = faults_of({"READSTATE_SERVICE_KEYS": f"{KEY},{key}"})

    assert "READSTATE_SERVICE_KEYS: item 2" in detail
    assert key not in detail


def test_a_jwt_secret_too_short_for_hs256_is_refused_and_not_shown() -> None:
    detail = faults_of({"READSTATE_JWT_SECRET": "hunter2"})

    assert "shorter than 32 bytes" in detail
    assert "hunter2" not in detail


def test_secrets_never_appear_in_repr() -> None:
    settings = make_settings(service_keys=[KEY], jwt_secret=SECRET)

    assert KEY not in repr(settings)
    assert SECRET not in repr(settings)
    assert "port=8080" in str(settings)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://bob:hunter2@db/x", "postgresql://bob:***@db/x"),
        (
            "postgresql://bob@db/x?password=hunter2&sslmode=require",
            "postgresql://bob@db/x?password=***&sslmode=require",
        ),
        ("redis://:hunter2@h:1/0", "redis://:***@h:1/0"),
        ("redis+cluster://u:hunter2@a:1,b:2", "redis+cluster://u:***@a:1,b:2"),
        ("redis://u:hunter2:@with@signs@h", "redis://u:***@h"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("redis://h:1/0", "redis://h:1/0"),
    ],
)
def test_of_a_url_everything_is_shown_but_the_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_passwords_in_urls_never_appear_in_repr_nor_in_faults() -> None:
    urls = {"database_url": "postgresql://u:hunter2@db/x", "hot_url": "redis://:hunter2@h:1"}

    assert "hunter2" not in repr(make_settings(**urls))
    assert "postgresql://u:***@db/x" in repr(make_settings(**urls))
    for name in ("DATABASE_URL", "HOT_URL", "WRITE_REPLICA_URL"):
        for fault in ("postgresql://u:hunter2", "u:hunter2@h", "http://u:hunter2@h"):
            assert "hunter2" not in faults_of({f"READSTATE_{name}": fault})


def test_all_that_the_stack_prints_is_taken() -> None:
    addresses = {
        "valkey": "redis://127.0.0.1:6379/0",
        "valkey-cluster": "redis+cluster://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
        "replica": "redis://127.0.0.1:6380/0",
        "postgres": "postgresql://readstate:0123456789abcdef@127.0.0.1:5432/readstate",
        "kafka": "127.0.0.1:9092",
    }

    for name, variable in VARIABLES.items():
        others = {"READSTATE_PROFILE": "cluster"} | {VARIABLES[other]: addresses[other] for other in addresses}
        load_settings({}, (others if name == "replica" else {}) | {variable: addresses[name]})


def test_settings_made_in_python_are_checked_by_the_same_rules() -> None:
    with pytest.raises(ConfigurationError, match="port: 70000 is above the most"):
        Settings(port=70_000)
    with pytest.raises(ConfigurationError, match=r"(?s)port: '1' is not a whole.*prot: there is no such setting"):
        make_settings(port="1", prot=2)
    with pytest.raises(ConfigurationError, match="workers: 2 is not possible"):
        Settings(workers=2)
    with pytest.raises(ConfigurationError, match="port: True is not a whole number"):
        make_settings(port=True)


def test_python_may_give_paths_and_lists(tmp_path: Path) -> None:
    settings = make_settings(data_dir=tmp_path, cors_origins=["*"])

    assert settings.data_dir == str(tmp_path)
    assert settings.cors_origins == ("*",)


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


def test_the_database_lies_in_the_data_directory_unless_it_is_named() -> None:
    assert Settings(data_dir="d").database_path == Path("d/readstate.db")
    assert Settings(database_url="sqlite:///x.db").database_path == Path("x.db")
    assert Settings(database_url="sqlite:////var/x.db").database_path == Path("/var/x.db")


def test_the_directory_that_belongs_to_one_process_is_where_its_data_are() -> None:
    assert Settings(data_dir="d", database_url="sqlite:////var/x.db").store_directory == Path("/var")
    assert Settings(data_dir="d", database_url="postgresql://h/x").store_directory == Path("d")
    assert [Settings(database_url=url).in_sqlite for url in ("", "sqlite:///x.db", "postgres://h/x")] == [
        True,
        True,
        False,
    ]


def test_every_setting_is_described_and_its_default_is_within_its_bounds() -> None:
    rows = describe()

    assert [row.name for row in rows] == [field.name for field in fields(Settings)]
    assert all(row.about.help and row.variable == "READSTATE_" + row.name.upper() for row in rows)


SERVERS = {"hot_url": "redis://h:1", "kafka_bootstrap": ("h:2",), "database_url": "postgresql://u@h/d"}


def test_the_cluster_profile_takes_its_three_servers() -> None:
    settings = make_settings(profile="cluster", workers=4, **SERVERS)

    assert (settings.profile, settings.workers, settings.partitions) == ("cluster", 4, 32)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"database_url": "sqlite:///x.db"}, "many processes can share"),
        ({"kafka_security": "sasl_ssl", "kafka_username": "u"}, "needs kafka_username and kafka_password"),
        ({"kafka_certificate": "a.pem"}, "go together"),
        ({"kafka_key": "a.pem"}, "go together"),
    ],
)
def test_what_does_not_go_together_in_the_cluster_profile_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        make_settings(profile="cluster", **SERVERS | given)
