"""What must be equal beside the text for two prompts to share cached KV, and the class of keys a request belongs to.

Two requests share cache only if model revision, tokenizer and template revision, adapter and salt are the same, and if
their prompts were counted in the same unit. All of that begins the chain of block hashes (`BlockHasher.blocks(prompt,
space)`), so a request never gets credit for what another tenant, adapter or model left on a replica.
"""

from typing import Literal

import msgspec


class PrefixScope(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of a prefix key but the text. An empty field is "none": the plain model, no adapter, no salt.

    `unit`: whether blocks are cut from the prompt's bytes or from its token ids, which never match each other.
    """

    model: str = ""
    template: str = ""
    adapter: str = ""
    salt: str = ""
    unit: Literal["bytes", "tokens"] = "bytes"

    @property
    def space(self) -> bytes:
        """The scope as bytes; different scopes give different bytes. Empty for the plain scope."""
        if self == _PLAIN:
            return b""
        return msgspec.json.encode([self.model, self.template, self.adapter, self.salt, self.unit])

    @property
    def key_class(self) -> str:
        """The class of keys about which router and engine may disagree: by adapter, salt and unit."""
        parts = [
            name for name, given in (("adapter", self.adapter), ("salted", self.salt)) if given
        ]
        if self.unit == "tokens":
            parts.append("tokens")
        return " ".join(parts) or "plain"


_PLAIN = PrefixScope()
