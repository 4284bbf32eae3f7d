"""Windows of texts: as many positions as were asked for, none scored twice, none beyond the context."""

from typing import cast

import pytest

from trimtab.core.ports import LaunchError
from trimtab.runtime.quality_arm import QualityArm
from trimtab.runtime.quality_texts import QualityText
from trimtab.runtime.quantize_original import CONTEXT_TOKENS, beginnings_of, windows_of


class Words:
    """An arm to which a character is a token."""

    async def tokens(self, text: str) -> tuple[int, ...]:
        return tuple(range(len(text)))


ARM = cast(QualityArm, Words())


def text(kind: str, size: int) -> QualityText:
    return QualityText(kind, f"{kind}.txt", "x" * size)


@pytest.mark.parametrize("positions", [64, 512, 2048, 100_000])
async def test_no_position_is_scored_twice_or_beyond_the_context(positions: int) -> None:
    """However many are asked for of one text."""
    windows = await windows_of(ARM, [text("code", 20_000)], positions)
    scored = [at for one in windows for at in range(one.first, len(one.tokens))]
    assert len(scored) == len(set(scored))
    assert max(scored) < CONTEXT_TOKENS
    assert len(scored) >= min(positions, 1900)


async def test_positions_are_shared_by_the_texts_of_a_kind() -> None:
    """Two texts of code bear half each; prose is counted apart."""
    texts = [text("code", 5000), text("code", 5000), text("prose", 5000)]
    windows = await windows_of(ARM, texts, 512)
    counts = {
        kind: sum(one.scored for one in windows if one.kind == kind) for kind in ("code", "prose")
    }
    assert counts == {"code": 512, "prose": 512}


async def test_text_that_is_too_short_says_how_long_it_must_be() -> None:
    """And names its kind."""
    with pytest.raises(
        LaunchError, match="'letters' is long enough to be scored: at least 320 tokens"
    ):
        await windows_of(ARM, [text("letters", 200)], 512)


async def test_beginnings_are_spread_over_all_texts() -> None:
    """Twelve of four texts come from each of them."""
    texts = [QualityText("code", f"{at}.txt", "x" * 5000) for at in range(4)]
    windows = await windows_of(ARM, texts, 512)
    assert {one.name for one in beginnings_of(windows, 12)} == {one.name for one in texts}
