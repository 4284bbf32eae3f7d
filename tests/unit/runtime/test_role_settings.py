"""What replicas of a role run, what is refused before one takes it, and on which cores its threads run."""

import msgspec
import pytest

from trimtab.core.config import Config
from trimtab.core.config_roles import PrefillEngineConfig, RolesConfig
from trimtab.core.ports import LaunchError, Placement
from trimtab.core.revision import Model, Revision, Speculation, SpeculationMethod
from trimtab.core.types import Role
from trimtab.interfaces.web.page import own_settings
from trimtab.runtime.fleet_member import Member, with_threads
from trimtab.runtime.role_settings import (
    RoleSettings,
    check_settings,
    settings_for,
    settings_words,
)

DRAFTS = Speculation(method=SpeculationMethod.NGRAM_MOD, match_tokens=6, draft_tokens_max=15)
BASELINE = Revision(
    engine="llamacpp",
    engine_version="1",
    model=Model(path="/m", sha256="0", name="m"),
    speculation=DRAFTS,
    slots=4,
    chunk_tokens=256,
)
SHARE = Placement(
    replica="r0", host="h", port=1, threads=2, cpus=(4, 5), slot_dir="/", log_path="/"
)


def roles(**own: object) -> RolesConfig:
    """Roles with these settings of replicas that prefill."""
    return RolesConfig(prefill_engine=msgspec.convert(own, PrefillEngineConfig))


def checked(cores: int = 8, **own: object) -> None:
    """Check settings on a machine of so many cores."""
    check_settings(Config(roles=roles(**own)), BASELINE, cores=cores)


def test_only_what_is_said_differs_and_only_where_a_replica_prefills() -> None:
    """Mixed and decode replicas run the engine's settings; the KV key is the same for all."""
    config = roles(threads=3, chunk_tokens=512, speculation={"method": "off"})
    there = settings_for(Role.PREFILL, config, BASELINE)
    assert there.threads == 3
    assert there.revision == BASELINE.replace(chunk_tokens=512, speculation=Speculation())
    assert there.revision.kv_key == BASELINE.kv_key
    for role in (Role.MIXED, Role.DECODE):
        assert settings_for(role, config, BASELINE) == RoleSettings(revision=BASELINE)


@pytest.mark.parametrize("own", [{}, {"chunk_tokens": 256}])
def test_settings_that_say_what_the_engine_says_do_not_differ(own: dict[str, object]) -> None:
    """So that a role stays routing alone."""
    assert settings_for(Role.PREFILL, roles(**own), BASELINE) == RoleSettings(revision=BASELINE)


def test_more_threads_than_cores_are_refused_with_the_key() -> None:
    """As many as there are may be had."""
    checked(cores=8, threads=8)
    with pytest.raises(LaunchError, match=r"roles.prefill_engine.threads = 9 .* the 8 cores"):
        checked(cores=8, threads=9)


def test_chunk_too_small_for_what_drafting_slots_verify_is_refused() -> None:
    """4 slots with drafts of 15 verify 64 tokens in a step, which the engine would end at; without drafts none."""
    checked(chunk_tokens=64)
    with pytest.raises(LaunchError, match=r"64 tokens in a step .* their chunk of 32: raise roles"):
        checked(chunk_tokens=32)
    checked(chunk_tokens=32, speculation={"method": "off"})


@pytest.mark.parametrize(
    ("threads", "runs", "cpus"), [(0, 2, (4, 5)), (1, 1, (4, 5)), (2, 2, (4, 5)), (3, 3, ())]
)
def test_threads_beyond_a_share_are_not_pinned_to_it(
    threads: int, runs: int, cpus: tuple[int, ...]
) -> None:
    """Three threads on two CPUs would take turns there; fewer stay where the replica was."""
    placed = with_threads(SHARE, threads)
    assert (placed.threads, placed.cpus) == (runs, cpus)


def test_page_says_what_replicas_differ_in() -> None:
    """Chunk and threads, of each of them; nothing where they are all alike."""
    whole = Member(SHARE, BASELINE).info(None)
    own = Member(SHARE, BASELINE.replace(chunk_tokens=64), Role.PREFILL, 1).info(None)
    assert own_settings(whole, [whole, whole]) == ""
    said = [own_settings(one, [whole, own]) for one in (whole, own)]
    assert said == ["chunk 256, 2 threads", "chunk 64, 1 thread"]


def test_settings_are_told_in_words() -> None:
    """For whoever asked for the role."""
    said = settings_words(BASELINE.replace(speculation=Speculation()), 3)
    assert said == "3 threads, chunk 256, speculation off"
    assert settings_words(BASELINE, 1) == "1 thread, chunk 256, speculation ngram mod"
