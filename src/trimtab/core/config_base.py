"""What every configuration section is made of."""

import msgspec


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every configuration section."""
