"""The [replica] sections of a scenario as text, for what `trimtab calibrate` found."""

from collections.abc import Sequence

import msgspec

from trimtab.core.step_cost import StepCost
from trimtab.sim.fit import Limits
from trimtab.sim.jobs import HostSpec


def replica_toml(
    said: str,
    limits: Limits,
    cost: StepCost,
    *,
    regimes: Sequence[str],
    host: HostSpec | None = None,
) -> str:
    """Return the sections; `said` is a comment above them, `regimes` those in which the cost was measured."""
    lines = [
        f"# {said}",
        "[replica]",
        f"kv_tokens = {limits.kv_tokens}",
        f"block_tokens = {limits.block_tokens}",
        f"budget_tokens = {limits.budget_tokens}",
        f"streams_max = {limits.streams_max}",
    ]
    if limits.similarity is not None:
        lines += ['engine = "slots"', f"similarity = {limits.similarity}"]
    if host is not None:
        lines += ["", "[replica.host]"]
        lines += [f"{name} = {getattr(host, name)}" for name in host.__struct_fields__]
    lines += ["", "[replica.cost]"]
    for name in cost.__struct_fields__:
        value = getattr(cost, name)
        lines.append(f"{name} = {msgspec.json.encode(value).decode()}")
    lines.append(f"regimes = {msgspec.json.encode(list(regimes)).decode()}")
    return "\n".join(lines) + "\n"
