"""Commands for operators: tokens and migrations."""

import re
import time
from pathlib import Path
from typing import Annotated

import typer

from readstate.domain.errors import ConfigurationError, Invalid
from readstate.domain.rules import check_user_id
from readstate.settings import Settings

from .chat import User
from .commands import RUN, Commands
from .output import present, show_json
from .target import Json, is_running, no_store

app = Commands(RUN)
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
OWN_CLAIMS = frozenset({"sub", "exp", "iat"})


@app.with_examples(
    "readstate token bob",
    "readstate token bob --ttl 15m --claim tenant=acme",
    'curl -H "Authorization: Bearer $(readstate token bob)" http://127.0.0.1:8080/v1/users/me/unread',
)
def token(
    user: User,
    ttl: Annotated[str, typer.Option(help="How long it is valid: 30s, 15m, 1h, 7d.")] = "1h",
    claim: Annotated[list[str] | None, typer.Option(help="A further claim k=v; may be repeated.")] = None,
    as_json: Json = False,
    *,
    settings: Settings,
) -> None:
    """Print a user token, signed with the local service's secret."""
    from readstate.gateway.auth.authenticator import ME, load_secrets, make_token, required_claims

    seconds, claims = _seconds(ttl), _claims(claim or [])
    user = check_user_id(user)
    if user == ME:
        raise Invalid(f"'{ME}' is no user: in a path it means the user of the token", field="user_id")
    if not settings.jwt_secret and not Path(settings.data_dir).exists():
        raise no_store(settings, settings.data_dir)  # the secret is there, wherever the database is
    secret = load_secrets(settings).jwt_secret
    if not secret:
        raise ConfigurationError(
            "this service has no secret to sign with: its users' tokens are issued by the owner of its JWKS"
        )
    made = make_token(secret, user, seconds, {**required_claims(settings, user), **claims})
    if as_json:
        show_json({"token": made, "user_id": user, "expires_at": (int(time.time()) + seconds) * 1000})
    else:
        typer.echo(made)


@app.with_examples("readstate migrate", "readstate migrate --check")
def migrate(
    check: Annotated[bool, typer.Option("--check", help="Only report; exit code 1 if the schema is behind.")] = False,
    as_json: Json = False,
    *,
    settings: Settings,
) -> None:
    """Bring the store's schema up to this version."""
    before, after = _migrate(settings, check)
    text = f"schema {after}: up to date"
    if before != after:
        text = f"schema {before} -> {after}: {'behind; run readstate migrate' if check else 'done'}"
    present({"from": before, "to": after, "applied": not check and before != after}, as_json, text)
    raise typer.Exit(1 if check and before != after else 0)


def _migrate(settings: Settings, check: bool) -> tuple[int, int]:
    from readstate.profiles.service import migrate as migrate_store

    if settings.in_sqlite and settings.database_path.exists():
        before, after = migrate_store(settings, True)
        if check or before == after:
            return before, after
        if is_running(settings):  # PostgreSQL migrates while other processes use it
            raise ConfigurationError("a running service has the store: stop it first")
    elif settings.in_sqlite and check:
        raise no_store(settings)
    return migrate_store(settings, check)


def _seconds(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text)
    if not found or int(found[1]) == 0:
        raise typer.BadParameter(f"{text!r} is not a duration such as 30s, 15m, 1h or 7d", param_hint="--ttl")
    return int(found[1]) * UNITS[found[2] or "s"]


def _claims(pairs: list[str]) -> dict[str, object]:
    claims: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals or name in OWN_CLAIMS:
            raise typer.BadParameter(f"{pair!r} is not a claim of the form name=value", param_hint="--claim")
        claims[name] = value
    return claims
