"""What else than the text makes a prefix key."""

import itertools

from trimtab.core.prefix import BlockHasher
from trimtab.core.prefix_key import PrefixScope

SCOPES = (
    PrefixScope(),
    PrefixScope(model="m"),
    PrefixScope(template="m"),
    PrefixScope(adapter="m"),
    PrefixScope(salt="m"),
    PrefixScope(unit="tokens"),
    PrefixScope(model="m", salt="n"),
    PrefixScope(model="mn"),
)


def test_prompts_of_different_scopes_share_no_block() -> None:
    """Model, template, adapter, salt and unit each make another chain from its first block on."""
    hasher = BlockHasher(b"k", 16)
    chains = [set(hasher.blocks(b"x" * 160, scope.space)) for scope in SCOPES]
    assert [len(chain) for chain in chains] == [10] * len(SCOPES)
    assert not any(a & b for a, b in itertools.combinations(chains, 2))


def test_class_of_keys_names_kinds_and_no_values() -> None:
    """Two tenants are one class: what may differ between router and engine is how a salt is used, not which."""
    assert [
        PrefixScope().key_class,
        PrefixScope(salt="a").key_class,
        PrefixScope(salt="b", adapter="x").key_class,
        PrefixScope(unit="tokens").key_class,
    ] == ["plain", "salted", "adapter salted", "tokens"]
