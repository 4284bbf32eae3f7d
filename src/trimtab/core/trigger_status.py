"""Where a trigger of a lever stands, as the events about it left it."""

from collections.abc import Mapping

import msgspec

from trimtab.core.events import RolloutMoved, TriggerMoved
from trimtab.core.lever import TriggerSpec
from trimtab.core.types import RolloutState

_ADOPTED = frozenset({RolloutState.ADOPTED, RolloutState.DISABLED})


class TriggerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger of a lever. `fired`: it holds the lever off now; `fired_count` counts every firing.

    `value` and `samples` are those of its last move, None and 0 while it never moved.
    """

    spec: TriggerSpec
    fired: bool = False
    fired_count: int = 0
    value: float | None = None
    samples: int = 0
    action: str = ""
    at_s: float | None = None


def trigger_after(before: TriggerStatus | None, at_s: float, event: TriggerMoved) -> TriggerStatus:
    """Return where a trigger stands after it fired or let go."""
    fired_count = before.fired_count if before else 0
    return TriggerStatus(
        spec=event.trigger,
        fired=event.fired,
        fired_count=fired_count + event.fired,
        value=event.value,
        samples=event.samples,
        action=event.action,
        at_s=at_s,
    )


def triggers_after(
    triggers: Mapping[str, TriggerStatus], moved: RolloutMoved
) -> dict[str, TriggerStatus]:
    """Return where the triggers of a lever stand after it moved.

    They hold nothing any more once it is watched no more (it is proven again, or gone), nor once a person switched it
    on: then no trigger answered for it, so that the move has no verdict.
    """
    by_person = moved.after is RolloutState.ADOPTED and moved.verdict is None
    if moved.before not in _ADOPTED or (moved.after in _ADOPTED and not by_person):
        return dict(triggers)
    return {name: msgspec.structs.replace(one, fired=False) for name, one in triggers.items()}
