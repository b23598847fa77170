"""The certificate of `readstate serve`, for the service and for commands beside it."""

import ssl
from pathlib import Path

from readstate.domain.errors import ConfigurationError
from readstate.settings import Settings


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """The configured TLS, or None. Raises ConfigurationError if the files are not a certificate and its key."""
    if not settings.tls_cert:
        return None
    _check_readable("tls_cert", settings.tls_cert)
    _check_readable("tls_key", settings.tls_key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, _no_passphrase)
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise ConfigurationError(
            f"tls_cert and tls_key: {settings.tls_cert} and {settings.tls_key} are not a certificate and its key, "
            f"in PEM and without a passphrase: {why}"
        ) from error
    return context


def local_context(settings: Settings) -> ssl.SSLContext | None:
    """How a local command verifies the service: by this certificate, whatever name it is for."""
    if not settings.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(settings.tls_cert)
    except OSError as error:
        raise ConfigurationError(f"tls_cert: {settings.tls_cert} is not a certificate: {error}") from error
    return context


def _check_readable(name: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise ConfigurationError(f"{name}: {path} cannot be read: {error.strerror}") from error


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")
