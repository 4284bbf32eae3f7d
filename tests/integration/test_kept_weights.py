"""Rules of a lever record about weights that must not be lowered, held against the artifacts on disk."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from case_kit import other_weights
from control_kit import HandClock
from events_kit import REVISION
from gguf_kit import gguf

from trimtab.core.config import Config
from trimtab.core.lever import LeverRecord, LeverRecordError
from trimtab.engines.gguf import read_header
from trimtab.engines.gguf_rewrite import plan_conversion, rewritten
from trimtab.engines.gguf_tensors import Group, TensorKind
from trimtab.rollout.short_record import complete, parse_record
from trimtab.runtime.fleet_known import known_of
from trimtab.runtime.gguf_codec import GGUFCodec
from trimtab.runtime.model import find_model
from trimtab.runtime.secret import Secret

WEIGHTS = np.ones((64, 64))


@pytest.fixture
def lowered(tmp_path: Path) -> tuple[Path, Path]:
    """The artifact of the baseline, and one of which the feed-forward layers alone have eight bits."""
    before, after = tmp_path / "f16.gguf", tmp_path / "q8.gguf"
    data = gguf({"output.weight": WEIGHTS, "blk.0.ffn_up.weight": WEIGHTS})
    before.write_bytes(data)
    plan = plan_conversion(read_header(data, file_bytes=len(data)), {Group.FFN_UP: TensorKind.Q8_0})
    after.write_bytes(b"".join(rewritten(data, plan, GGUFCodec())))
    return before, after


def proposed(rule: str, baseline: Path, artifact: Path) -> LeverRecord:
    """The record with that rule as the fleet of the baseline completes it."""
    found = REVISION.replace(model=find_model(str(baseline)))
    system: Any = SimpleNamespace(
        config=Config(),
        attached=None,
        clock=HandClock(),
        secret=Secret(bytes(32)),
        baseline=found,
    )
    text = other_weights(rule).replace("four-bit", str(artifact))
    return complete(
        parse_record(text, source="lever.toml"),
        baseline=found,
        now_s=1.0,
        known=known_of(system),
    )


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("lm_head", "the rule 'lm_head' matched nothing"),
        ("blk.0.ffn_up", "blk.0.ffn_up is held at 8.5 bits, where 16 were to stay"),
        (r"re:blk\\..*ffn", "it was lowered although the rule names it"),
        ("re:(", "is no pattern"),
    ],
)
def test_rule_that_the_artifact_does_not_keep_is_refused(
    lowered: tuple[Path, Path], rule: str, said: str
) -> None:
    """A name of another format, weights that were lowered all the same, a pattern that is none."""
    with pytest.raises(LeverRecordError) as refused:
        proposed(rule, *lowered)
    assert str(refused.value).startswith("$.revision.keep[0]: ")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "rule", ["output", "output.weight", "re:out", "re:output.weight$", r"re:output\\.weight"]
)
def test_rule_that_the_artifact_keeps_stands_in_the_record(
    lowered: tuple[Path, Path], rule: str
) -> None:
    """The head has as many bits as in the baseline's file."""
    assert proposed(rule, *lowered).keep == (rule.replace("\\\\", "\\"),)


def test_rule_without_another_artifact_is_refused(lowered: tuple[Path, Path]) -> None:
    """The baseline's own weights are not lowered by a cache of eight bits."""
    text = other_weights("output").replace('model = "four-bit"', 'kv_type = "q8_0"')
    with pytest.raises(LeverRecordError, match=r"\$\.revision\.keep is about another artifact"):
        complete(parse_record(text, source="lever.toml"), baseline=REVISION, now_s=1.0)
