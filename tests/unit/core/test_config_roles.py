"""Configuration of roles and hand-overs, and what replicas that prefill may run otherwise: what is refused, by key."""

import pytest

from trimtab.core.config import ConfigError, parse_config
from trimtab.core.config_roles import PrefillEngineConfig
from trimtab.core.revision import Speculation, SpeculationMethod

ATTACHED = '[[fleet.attached]]\nurl = "http://one:8000"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[roles]\nact_below = 0.6",
            "roles.act_below = 0.6 must be below roles.act_above = 0.55",
        ),
        (
            "[roles]\ncooldown_s = 0\nwindow_s = 600",
            "roles.cooldown_s = 0 must be at least roles.window_s = 600",
        ),
        ("[roles]\nttft_ms = inf", "roles.ttft_ms = inf must be a finite number"),
        ("[handover]\nsetup_ms = inf", "handover.setup_ms = inf must be a finite number"),
        ("[handover]\nms_per_token = inf", "handover.ms_per_token = inf must be a finite number"),
        (
            "[handover]\nparcel_lease_s = 1\ntransfer_timeout_s = 100",
            "handover.parcel_lease_s = 1 must be at least handover.transfer_timeout_s = 100",
        ),
    ],
)
def test_value_that_leaves_no_room_is_refused_by_the_names_of_its_keys(
    text: str, words: str
) -> None:
    """At the start, and not by roles that flap or parcels that are gone."""
    with pytest.raises(ConfigError) as refused:
        parse_config(text, source="trimtab.toml")
    assert words in str(refused.value)
    assert str(refused.value).startswith("trimtab.toml: ")


def test_mark_of_hand_overs_is_the_engines_chunk_unless_it_is_told() -> None:
    """0 stands for it."""
    usual = parse_config("", source="c").handover
    own = parse_config("[handover]\nchunk_tokens = 256", source="c").handover
    assert (usual.mark_tokens(2048), own.mark_tokens(2048)) == (2048, 256)


def refused(text: str) -> str:
    """Why a file cannot be used."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="f.toml")
    return str(caught.value)


def test_settings_of_replicas_that_prefill_are_a_table_beside_those_of_the_engine() -> None:
    """Chunk, threads and speculation; whatever is not said is the engine's."""
    text = '[roles.prefill_engine]\nchunk_tokens = 64\nthreads = 3\nspeculation = {method = "off"}'
    expected = PrefillEngineConfig(chunk_tokens=64, threads=3, speculation=Speculation())
    assert parse_config(text, source="f").roles.prefill_engine == expected
    deeper = '[roles.prefill_engine.speculation]\nmethod = "ngram_mod"\ndraft_tokens_max = 8'
    drafts = parse_config(deeper, source="f").roles.prefill_engine.speculation
    assert drafts == Speculation(method=SpeculationMethod.NGRAM_MOD, draft_tokens_max=8)
    assert parse_config("", source="f").roles.prefill_engine == PrefillEngineConfig()


@pytest.mark.parametrize("key", ["model", "blocked_weights", "kv_type", "context_tokens", "slots"])
def test_what_the_kv_key_hangs_on_cannot_differ_by_role(key: str) -> None:
    """KV of such a replica would fit nobody: the error says why and names the key's path."""
    said = refused(f"[roles.prefill_engine]\n{key} = 1")
    assert f"`$.roles.prefill_engine.{key}`" in said
    assert "only where model, slots, context and KV type are equal" in said


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("chunk_tokens = 65_537", "$.roles.prefill_engine.chunk_tokens"),
        ("threads = -1", "$.roles.prefill_engine.threads"),
        ("chunk_tokens = 31", "chunk_tokens = 31 must be 0 or at least 32"),
        ('layout = "tp2"', "unknown field `layout` - at `$.roles.prefill_engine`"),
    ],
)
def test_value_out_of_range_or_unknown_is_refused_with_its_path(line: str, path: str) -> None:
    """The file and the key are named."""
    said = refused(f"[roles.prefill_engine]\n{line}")
    assert said.startswith("f.toml: ")
    assert path in said


def test_attached_servers_are_given_no_settings() -> None:
    """trimtab does not start them; a table that nothing follows is an error, an empty one is none."""
    said = refused(f"{ATTACHED}[roles.prefill_engine]\nthreads = 1")
    assert "roles.prefill_engine: attached servers run what they were started with" in said
    empty = parse_config(f"{ATTACHED}[roles.prefill_engine]\n", source="f")
    assert empty.roles.prefill_engine == PrefillEngineConfig()
