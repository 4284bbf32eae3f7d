"""Which groups of tensors stay high, and which tensors are heavy in outliers."""

import pytest

from trimtab.core.stats import Interval
from trimtab.core.types import Verdict
from trimtab.engines.gguf_tensors import Group
from trimtab.quality.paired import Direction, Margin, PairedResult
from trimtab.quality.sensitivity import (
    GroupDamage,
    Sensitivity,
    TensorSpread,
    choose_groups,
    heavy_tensors,
    shares_of,
)


def damage(group: Group, low: float, high: float, share: float = 0.5) -> GroupDamage:
    margin = Margin(value=0.02, unit="nats", direction=Direction.LOWER_IS_BETTER)
    found = PairedResult(
        verdict=Verdict.HOLD,
        because="made",
        n=16,
        harm=0.5 * (low + high),
        interval=Interval(low=low, high=high, level=0.95),
        margin=margin,
        base=2.0,
        candidate=2.0,
    )
    return GroupDamage(group=group, share=share, result=found)


def test_group_shown_harmless_is_lowered_whatever_its_kind() -> None:
    """Attention begins as kept and may be lowered by evidence."""
    [choice] = choose_groups([damage(Group.ATTENTION_Q, -0.01, 0.01, 1.0)], margin=0.1)
    assert choice.lowered


def test_group_shown_harmful_stays_whatever_its_kind() -> None:
    """Feed-forward begins as lowered and may be kept by evidence."""
    [choice] = choose_groups([damage(Group.FFN_DOWN, 0.2, 0.4, 1.0)], margin=0.1)
    assert not choice.lowered
    assert "shown harmful" in choice.because


@pytest.mark.parametrize(
    ("group", "lowered"),
    [(Group.FFN_UP, True), (Group.ATTENTION_V, False), (Group.EMBEDDING, False)],
)
def test_undecided_group_stays_as_its_kind_usually_is(group: Group, lowered: bool) -> None:
    """Embedding, head and attention stay high unless shown harmless."""
    [choice] = choose_groups([damage(group, -0.2, 0.4, 1.0)], margin=0.1)
    assert choice.lowered is lowered


def test_margin_is_shared_by_weight() -> None:
    """A group that saves little may cost little."""
    small, large = choose_groups(
        [damage(Group.FFN_UP, 0.03, 0.05, 0.1), damage(Group.FFN_DOWN, 0.03, 0.05, 0.9)],
        margin=0.1,
    )
    assert (small.lowered, large.lowered) == (False, True)


def spread(layer: int, peak: float, group: Group = Group.FFN_UP) -> TensorSpread:
    return TensorSpread(
        name=f"blk.{layer}.{group.value}",
        group=group,
        layer=layer,
        values=10,
        peak=peak,
        kurtosis=3.0,
    )


def test_tensor_with_far_outliers_is_heavy() -> None:
    """Compared with its own group."""
    spreads = [spread(layer, 5.0) for layer in range(5)] + [spread(9, 40.0)]
    assert [one.layer for one in heavy_tensors(spreads)] == [9]


def test_heavy_tensor_is_kept_only_in_a_lowered_group() -> None:
    """Where nothing is lowered there is nothing to keep."""
    heavy = (spread(9, 40.0),)
    lowered = choose_groups([damage(Group.FFN_UP, -0.01, 0.01, 1.0)], margin=0.1)
    kept = choose_groups([damage(Group.FFN_UP, 0.5, 0.6, 1.0)], margin=0.1)
    assert Sensitivity(groups=lowered, outliers=heavy, probe="q4_0").kept_tensors == {heavy[0].name}
    assert Sensitivity(groups=kept, outliers=heavy, probe="q4_0").kept_tensors == frozenset()


def test_shares_are_of_all_weights() -> None:
    """They sum to one."""
    assert shares_of({Group.FFN_UP: 30, Group.FFN_DOWN: 10}) == {
        Group.FFN_UP: 0.75,
        Group.FFN_DOWN: 0.25,
    }
