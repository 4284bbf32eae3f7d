"""How many prompts a llama.cpp replica is believed to hold hangs on its role."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from trimtab.core.prefix import PrefixIndex
from trimtab.core.types import Role
from trimtab.runtime.supervisor import System

SLOTS = 4


@pytest.mark.parametrize(("role", "held"), [(Role.MIXED, 4), (Role.DECODE, 4), (Role.PREFILL, 3)])
def test_slot_in_which_prompts_pass_is_not_counted_on(role: Role, held: int) -> None:
    """Where prompts are prefilled for others the first slot keeps nothing, so one prompt fewer is held."""
    index = PrefixIndex(1_000, 16)
    info = SimpleNamespace(
        id="r0", role=role, revision=SimpleNamespace(engine="llamacpp", slots=SLOTS)
    )
    System._set_slots(cast(Any, SimpleNamespace(index=index)), cast(Any, info))
    prompts = [(number * 10 + 1, number * 10 + 2) for number in range(SLOTS)]
    for blocks in prompts:
        index.record("r0", blocks, 0.0)
        index.finished("r0", blocks)
    found = [index.believed("r0", blocks, 8, 32) > 0 for blocks in prompts]
    assert found == [False] * (SLOTS - held) + [True] * held
