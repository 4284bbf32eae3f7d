"""Configuration of what guards the fleet: tenants with their keys and limits, retries, replicas left out, shedding."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from trimtab.core.config_base import Strict
from trimtab.core.tenants import Priority, TenantError, check_name


class Auth(StrEnum):
    """Whether requests need a key."""

    AUTO = "auto"
    REQUIRED = "required"
    OFF = "off"


class TenantConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one tenant, which go over the default ones; 0 is no limit."""

    name: Annotated[str, Meta(description="The tenant, as `trimtab keys add NAME` called it.")]
    requests_per_minute: Annotated[
        float, Meta(ge=0, description="Requests a minute; a minute's worth may come at once.")
    ] = 0.0
    tokens_per_minute: Annotated[
        float, Meta(ge=0, description="Prompt and output tokens a minute, taken off afterwards.")
    ] = 0.0
    concurrent_max: Annotated[int, Meta(ge=0, description="Requests in flight at once.")] = 0
    weight: Annotated[
        float, Meta(gt=0, le=1000, description="Its part of the places where they run short.")
    ] = 1.0
    priority_max: Annotated[
        Priority, Meta(description="Highest priority its requests get, whatever they ask for.")
    ] = Priority.HIGH

    def __post_init__(self) -> None:
        """Refuse a name that no key can have; raises ValueError."""
        try:
            check_name(self.name)
        except TenantError as error:
            raise ValueError(str(error)) from error


class TenantsConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may ask, and how much."""

    auth: Annotated[
        Auth,
        Meta(
            description=(
                "`required`: requests need a key; `off`: none is looked at; `auto`: required once a key was added."
            )
        ),
    ] = Auth.AUTO
    keys: Annotated[
        str, Meta(description="File of the hashed keys; empty: ~/.local/state/trimtab/keys.json.")
    ] = ""
    requests_per_minute: Annotated[
        float, Meta(ge=0, description="Requests a minute of a tenant without an entry; 0: any.")
    ] = 0.0
    tokens_per_minute: Annotated[
        float, Meta(ge=0, description="Tokens a minute of a tenant without an entry; 0: any.")
    ] = 0.0
    concurrent_max: Annotated[
        int, Meta(ge=0, description="Requests in flight of a tenant without an entry; 0: any.")
    ] = 0
    limits: Annotated[
        tuple[TenantConfig, ...],
        Meta(max_length=4096, description="Tenants with limits of their own."),
    ] = ()

    def __post_init__(self) -> None:
        """Refuse two entries of one tenant; raises ValueError."""
        names = [one.name for one in self.limits]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"tenants.limits has more than one entry for {', '.join(twice)}")


class GuardConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How failures are met, and who is refused as the gateway fills up."""

    retry_share: Annotated[
        float, Meta(ge=0, le=1, description="Retries per request over the last 10 s.")
    ] = 0.2
    retry_free: Annotated[
        int, Meta(ge=0, description="Retries in 10 s that few requests are enough for.")
    ] = 10
    retries_max: Annotated[int, Meta(ge=0, le=10, description="Retries of one request.")] = 2
    eject: Annotated[bool, Meta(description="Whether failing replicas are left out.")] = True
    eject_after: Annotated[
        int, Meta(ge=1, description="Failures in a row that leave a replica out.")
    ] = 5
    eject_failed_share: Annotated[
        float, Meta(gt=0, le=1, description="Failed share of its last 50 requests that does so.")
    ] = 0.5
    ejection_s: Annotated[
        float, Meta(gt=0, description="First time out; doubles each time it fails again.")
    ] = 10.0
    ejection_s_max: Annotated[float, Meta(gt=0, description="Longest time out.")] = 300.0
    ejected_share_max: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Most of the replicas out at once; never all, one always may be.",
        ),
    ] = 0.5
    trials_to_pass: Annotated[
        int, Meta(ge=1, description="Trials, one at a time, that bring a replica back.")
    ] = 3
    shed_low_at: Annotated[
        float, Meta(gt=0, le=1, description="Filled share of the places that sheds low priority.")
    ] = 0.8
    shed_normal_at: Annotated[
        float, Meta(gt=0, le=1, description="Filled share that sheds normal priority.")
    ] = 0.95
    fair_from: Annotated[
        float, Meta(ge=0, le=1, description="Filled share from which tenants keep to their part.")
    ] = 0.5

    def __post_init__(self) -> None:
        """Refuse bounds in the wrong order; raises ValueError."""
        if self.shed_low_at > self.shed_normal_at:
            raise ValueError("guard.shed_low_at must not be above guard.shed_normal_at")
        if self.ejection_s > self.ejection_s_max:
            raise ValueError("guard.ejection_s must not be above guard.ejection_s_max")
