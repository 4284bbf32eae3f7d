"""How an attached server is reached: the key that is sent to it, and how its certificate is checked."""

import ssl
from collections.abc import Mapping

import msgspec

from trimtab.core.config import AttachedServer, FleetConfig
from trimtab.runtime.secret import SecretError
from trimtab.runtime.secret_refs import resolve_secret
from trimtab.runtime.wire import Pairs


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What a request to one server carries beside the client's: `headers` go over what is there."""

    headers: Mapping[str, str] = {}
    tls: ssl.SSLContext | None = None
    keeps_streams: bool = False
    """Whether its server keeps a connection open after a stream has ended on it."""

    def over(self, headers: Pairs) -> Pairs:
        """Return headers with this server's own in place of those of the same names."""
        if not self.headers:
            return headers
        ours = {name.lower().encode() for name in self.headers}
        kept = [pair for pair in headers if pair[0].lower() not in ours]
        return [*kept, *((name.encode(), value.encode()) for name, value in self.headers.items())]

    def __repr__(self) -> str:
        """Show no key."""
        return f"Access(headers={sorted(self.headers)}, tls={self.tls is not None})"


OPEN = Access()
"""For replicas on loopback that trimtab started: no key, no TLS."""


def access_of(server: AttachedServer, fleet: FleetConfig) -> Access:
    """Return how a server is reached; raises `SecretError` for a key or certificates that cannot be had."""
    reference = server.api_key or fleet.api_key
    key = resolve_secret(reference) if reference else ""
    return Access(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        tls=_tls(fleet) if server.url.startswith("https://") else None,
    )


def _tls(fleet: FleetConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=fleet.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise SecretError(
            f"fleet.ca_file {fleet.ca_file} holds no certificates that can be read: {error}"
        ) from error
    if not fleet.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
