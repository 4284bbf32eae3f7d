"""What a record takes over from a request and from its routing; nothing where there was none."""

from typing import Final, TypedDict

import msgspec

from trimtab.core.ports import RequestFacts
from trimtab.core.types import Arm, Constraint
from trimtab.policies.router import Routed
from trimtab.runtime.prompt import Part


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What was worked out of a prompt: nothing of its text."""

    session: str
    label: str | None
    repetition: float | None
    hash: str
    size: int
    parts: tuple[Part, ...] = ()


class Routing(TypedDict):
    """The fields of a record that say where a request went and as what."""

    arm: Arm
    lever: str | None
    slice: str | None
    block: int | None
    policy: str
    replica: str | None
    revision: str | None
    batch_at_admission: int | None
    concurrency_at_admission: int | None


NO_PROMPT: Final = Prompt(session="", label=None, repetition=None, hash="", size=0)
NO_FACTS: Final = RequestFacts(
    model=None,
    stream=False,
    wants_usage=False,
    temperature=None,
    max_tokens=None,
    constraint=Constraint.FREE,
    segments=(),
)
NO_ROUTING: Final = Routing(
    arm=Arm.BASELINE,
    lever=None,
    slice=None,
    block=None,
    policy="",
    replica=None,
    revision=None,
    batch_at_admission=None,
    concurrency_at_admission=None,
)


def routing_of(routed: Routed | None) -> Routing:
    """Return where a request went."""
    if routed is None:
        return NO_ROUTING
    replica, admission, exposure = routed.replica, routed.admission, routed.exposure
    return Routing(
        arm=exposure.arm,
        lever=exposure.lever,
        slice=exposure.slice,
        block=exposure.block,
        policy=routed.decision.policy,
        replica=replica.id if replica else None,
        revision=replica.revision if replica else None,
        batch_at_admission=admission.batch if admission else None,
        concurrency_at_admission=admission.concurrency if admission else None,
    )
