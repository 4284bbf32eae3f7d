"""vLLM's ladder up to the point where a server starts: its rungs, their folders, their recipes, what is refused."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from checkpoint_kit import made

from trimtab.core.ports import LaunchError
from trimtab.engines.compressed_tensors import CheckpointPlan
from trimtab.engines.gguf_tensors import Group
from trimtab.quality.ladder import Rung
from trimtab.runtime import quantize_vllm
from trimtab.runtime.checkpoints import Checkpoint, write_checkpoint
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.quality_pair import plain_session
from trimtab.runtime.quantize_ask import QuantizeAsk, WalkEngine
from trimtab.runtime.quantize_engine import RungError
from trimtab.runtime.quantize_vllm import VllmLadder
from trimtab.runtime.vllm_env import VllmEnvironment


def ask(folder: Path, *ignore: str) -> QuantizeAsk:
    return QuantizeAsk(
        model=str(folder / "model"),
        engine=WalkEngine.VLLM,
        folder=folder / "out",
        texts=(),
        kv_types=("auto", "fp8"),
        ignore=ignore,
    )


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without vLLM in it: nothing here starts a server."""
    found = VllmEnvironment(python=tmp_path / "python", checkpoints=tmp_path)
    monkeypatch.setattr(quantize_vllm, "find_environment", lambda: found)
    made(tmp_path / "model")


@pytest_asyncio.fixture
async def ladder(tmp_path: Path) -> AsyncIterator[VllmLadder]:
    async with plain_session() as session:
        one = VllmLadder(ask(tmp_path), session, SystemClock())
        yield one
        await one.close()


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def named(ladder: VllmLadder, name: str) -> Rung:
    return next(rung for rung in ladder.rungs(None) if rung.label == name)


async def test_rung_is_written_with_its_recipe_and_says_what_it_holds(
    ladder: VllmLadder, tmp_path: Path
) -> None:
    """Feed-forward layers at 8 bits, attention as it was; the original's folder is what it was."""
    facts = await ladder.write(named(ladder, "ffn w8a8"), None)
    assert facts.effective["ffn_up"] == {"I8": 2}
    assert facts.effective["attention_q"] == {"BF16": 2}
    assert 8.0 < facts.bits_per_weight < 16.0
    recipe = (tmp_path / "out" / "recipes" / "ffn-w8a8.yaml").read_text()
    assert "QuantizationModifier" in recipe
    assert (await ladder.write(named(ladder, "bf16"), None)).bits_per_weight == 16.0


async def test_rung_that_is_over_leaves_its_recipe_alone(
    ladder: VllmLadder, tmp_path: Path
) -> None:
    """Its weights are gone."""
    await ladder.write(named(ladder, "w4a16"), None)
    ladder.discard()
    left = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert left == ["w4a16.yaml"]


async def test_chosen_rung_is_moved_beside_the_report_whole(
    ladder: VllmLadder, tmp_path: Path
) -> None:
    """With configuration and tokenizer; closing takes nothing of it. KV alone needs no other folder."""
    rung = named(ladder, "fp8")
    await ladder.write(rung, None)
    kept = Path(await ladder.keep(rung))
    await ladder.close()
    assert kept == tmp_path / "out" / "model.fp8"
    assert {"config.json", "tokenizer.json"} < names_in(kept)
    assert await ladder.keep(named(ladder, "bf16, KV fp8")) == str(tmp_path / "model")


async def test_ignore_rule_that_matches_nothing_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    """It names the folder, the rule and the nearest module."""
    async with plain_session() as session:
        with pytest.raises(
            LaunchError, match=r"model: the ignore rule 'mlp\.down' matched nothing; nearest: model"
        ):
            VllmLadder(ask(tmp_path, "mlp.down"), session, SystemClock())


async def test_ignored_layers_stay_and_are_named_to_whoever_loads_the_folder(
    tmp_path: Path,
) -> None:
    """One layer's down projection, by a pattern."""
    async with plain_session() as session:
        ladder = VllmLadder(ask(tmp_path, r"re:.*\.1\.mlp\.down_proj"), session, SystemClock())
        facts = await ladder.write(named(ladder, "w8a8"), None)
        await ladder.close()
    assert facts.effective["ffn_down"] == {"I8": 1, "BF16": 1}
    recipe = (tmp_path / "out" / "recipes" / "w8a8.yaml").read_text()
    assert '- "model.layers.1.mlp.down_proj"' in recipe


async def test_interrupted_writing_leaves_nothing_behind(
    ladder: VllmLadder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes goes on when the walk is cancelled: what it wrote is removed too."""
    begun, go, over = threading.Event(), threading.Event(), threading.Event()

    def slow(checkpoint: Checkpoint, target: Path, plan: CheckpointPlan) -> Path:
        begun.set()
        go.wait(10.0)
        written = write_checkpoint(checkpoint, target, plan)
        over.set()
        return written

    monkeypatch.setattr(quantize_vllm, "write_checkpoint", slow)
    writing = asyncio.create_task(ladder.write(named(ladder, "ffn w8a8"), None))
    await asyncio.to_thread(begun.wait, 10.0)
    writing.cancel()
    ending = asyncio.create_task(_ended(writing, ladder, go))
    with pytest.raises(asyncio.CancelledError):
        await ending
    await asyncio.to_thread(over.wait, 10.0)
    assert [path.name for path in (tmp_path / "out" / "models").glob("rung-*")] == []


async def _ended(writing: asyncio.Task[object], ladder: VllmLadder, go: threading.Event) -> None:
    """Close as a walk does that is interrupted; the writing goes on meanwhile."""
    asyncio.get_running_loop().call_later(0.05, go.set)
    try:
        await writing
    finally:
        await ladder.close()


async def test_group_of_which_no_layer_can_be_rounded_is_not_probed(tmp_path: Path) -> None:
    """Columns that do not divide into groups of 32: the group stays as it is, and the walk goes on."""
    (tmp_path / "odd").mkdir()
    made(tmp_path / "odd" / "model", down_columns=80)
    async with plain_session() as session:
        ladder = VllmLadder(ask(tmp_path / "odd"), session, SystemClock())
        plans = ladder._probe_plans()
        await ladder.close()
    assert Group.FFN_DOWN not in plans
    assert Group.FFN_UP in plans


async def test_rung_that_the_model_cannot_have_is_told_as_that(tmp_path: Path) -> None:
    """No layer is left for it: no failure of the machine, which would end the walk."""
    async with plain_session() as session:
        ladder = VllmLadder(ask(tmp_path, "re:.*"), session, SystemClock())
        with pytest.raises(RungError, match=r"w8a8: no linear layer is left"):
            await ladder.write(named(ladder, "w8a8"), None)
        await ladder.close()
