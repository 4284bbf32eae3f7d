"""How many prompts a llama.cpp replica is believed to hold hangs on its role, and on its being there."""

import random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from trimtab.core.decision import columns_for
from trimtab.core.prefix import PrefixIndex
from trimtab.core.types import Role
from trimtab.policies.loadstate import LoadState
from trimtab.policies.router import Router
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
        index.record("r0", blocks)
        index.finished("r0", blocks)
    found = [index.believed("r0", blocks, 8, 32) > 0 for blocks in prompts]
    assert found == [False] * (SLOTS - held) + [True] * held


def test_slots_of_a_replica_that_left_the_fleet_are_not_kept() -> None:
    """A departure is no restart: the index keeps no empty slots for a name that may never come back."""
    index = PrefixIndex(1_000, 16)
    index.set_slots("r0", SLOTS)
    router = Router(LoadState(), index, {}, random.Random(0))
    System.forget(cast(Any, MagicMock(router=router)), "r0")
    assert index.held_columns((1,), 8, 32).matches(columns_for(("r0",)), 1) == []
