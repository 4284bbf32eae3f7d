"""Which keys a running gateway takes in, and which wait for the next start."""

import msgspec

from trimtab.core.config import AttachedServer, Config, FleetConfig, GatewayConfig, LeverConfig
from trimtab.core.types import Mode
from trimtab.runtime.reload import Reloaded, merged, words

NOW = Config(fleet=FleetConfig(attached=(AttachedServer(url="http://h:1", name="a"),)))


def wanted(**sections: object) -> Config:
    return msgspec.structs.replace(NOW, **sections)


def test_live_keys_are_taken_with_both_values() -> None:
    """Limits, modes and servers change while streams go on."""
    more = (*NOW.fleet.attached, AttachedServer(url="http://h:2"))
    live, done = merged(
        NOW,
        wanted(
            gateway=GatewayConfig(streams_max=7),
            levers=LeverConfig(mode=Mode.OBSERVE),
            fleet=msgspec.structs.replace(NOW.fleet, attached=more),
        ),
    )
    assert done == Reloaded(
        changed={
            "fleet.attached": "a -> a, http://h:2",
            "gateway.streams_max": "1024 -> 7",
            "levers.mode": "advise -> observe",
        },
        needs_restart=(),
    )
    assert (live.gateway.streams_max, live.levers.mode) == (7, Mode.OBSERVE)
    assert live.fleet.attached == more


def test_keys_of_the_start_wait_for_it() -> None:
    """They are named, and what is served with keeps their values."""
    gateway = GatewayConfig(
        port=1, streams_max=7, host="0.0.0.0", tls_cert="c.pem", tls_key="k.pem"
    )
    live, done = merged(NOW, wanted(gateway=gateway))
    listens = ("gateway.host", "gateway.port", "gateway.tls_cert", "gateway.tls_key")
    assert done.needs_restart == listens
    assert done.changed == {"gateway.streams_max": "1024 -> 7"}
    assert (live.gateway.port, live.gateway.streams_max) == (8400, 7)
    assert words(done) == (
        f"gateway.streams_max 1024 -> 7; needs a new start: {', '.join(listens)}"
    )


def test_same_configuration_changes_nothing() -> None:
    """And says so."""
    live, done = merged(NOW, NOW)
    assert (live, words(done)) == (NOW, "nothing changed")
