"""Configuration of roles and hand-overs: values that leave no room between them are refused, with the keys."""

import pytest

from trimtab.core.config import ConfigError, parse_config


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
