"""Where drafting pays, measured on the real engine: few requests, one depth, small batches, short loops."""

import pytest

from trimtab.core.config import EngineConfig
from trimtab.interfaces.speculate_lever import lever_record
from trimtab.levers.speculation_found import Pays
from trimtab.rollout.short_record import parse_record
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.sources import standard_library
from trimtab.runtime.speculate import Speculator
from trimtab.runtime.speculate_ask import SpeculateAsk
from trimtab.workloads.draft_samples import SCHEMA_LABEL, standard_samples

pytestmark = [pytest.mark.engine_llamacpp, pytest.mark.alone, pytest.mark.timeout(600)]


async def test_edits_gain_alone_and_nothing_is_claimed_of_free_text() -> None:
    """The rule drafts what the engine drafts; edits gain alone, questions and chats show no gain; JSON stays valid."""
    pytest.importorskip("jsonschema", reason="the jsonschema package is not installed")
    ask = SpeculateAsk(
        engine=EngineConfig(),
        samples=standard_samples(standard_library(), each=4, seed=1),
        depths=(8,),
        batches=(1, 2),
        temperatures=(0.0,),
        rounds=2,
        loop_s=0.5,
    )
    found = await Speculator(ask, SystemClock(), lambda *_: None).run()
    assert found.judged_label == "edit"
    assert found.rule_drafted == found.engine_drafted
    greedy = {one.label: one for one in found.cuts if one.temperature == 0.0}
    edits = greedy["edit"].tpot_ms.ratio
    assert edits is not None
    assert edits < 1.0
    assert greedy["edit"].counts.coverage is not None
    assert greedy["edit"].counts.coverage > 0.3
    assert Pays.GAINS not in {greedy["question"].pays, greedy["chat"].pays}
    assert greedy[SCHEMA_LABEL].valid_on == greedy[SCHEMA_LABEL].valid_off
    record = lever_record(found)
    assert (record is None) != found.pays
    if record is not None:
        assert parse_record(record, source="lever.toml").revision is not None
