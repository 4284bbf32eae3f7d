"""TLS towards clients: the certificate that the gateway serves with."""

import ssl

from trimtab.core.config import GatewayConfig


class TlsError(RuntimeError):
    """The certificate cannot be used; the message names the keys and the fix."""


def serving_tls(config: GatewayConfig) -> ssl.SSLContext | None:
    """Return what TLS is served with, None where none is; raises `TlsError`."""
    if not config.tls_cert:
        if config.tls_key:
            raise TlsError("gateway.tls_key is set and gateway.tls_cert is not; set both or none")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key or None, password=_none_is_asked)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise TlsError(
            f"gateway.tls_cert {config.tls_cert!r} with gateway.tls_key {config.tls_key!r} cannot be used:"
            f" {error}; both are PEM files that belong together, the key without a password"
        ) from error
    return context


def shown_url(config: GatewayConfig, port: int) -> str:
    """Return the address under which this machine reaches a gateway."""
    scheme = "https" if config.tls_cert else "http"
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
    return f"{scheme}://{host}:{port}"


def _none_is_asked() -> str:
    """Refuse to ask at the terminal for a password of the key."""
    raise ValueError("the key has a password")
