"""What every configuration section is made of."""

import math

import msgspec


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every configuration section."""


def check_finite(section: Strict, path: str) -> None:
    """Refuse numbers without end or that are none, which TOML can say; raises ValueError with the key's path."""
    for name in section.__struct_fields__:
        value = getattr(section, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{path}.{name} = {value} must be a finite number")
