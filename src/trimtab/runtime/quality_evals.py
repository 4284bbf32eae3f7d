"""Evals on a live arm: items read from a file, answered through the path that serves users, judged by their checks."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from trimtab.core.ports import LaunchError
from trimtab.quality.evals import (
    EvalError,
    EvalItem,
    Item,
    PairItem,
    SchemaCheck,
    is_right,
    read_items,
)
from trimtab.quality.paired import Direction, Margin, PairedResult, compare_right, family_level
from trimtab.quality.quantized import EvalOutcome
from trimtab.runtime.quality_arm import QualityArm, Window
from trimtab.runtime.quality_texts import TextError

SEED: Final = 20
PAIR_CONTEXT_TOKENS: Final = 1
"""A sentence is scored from its first token after what the model begins a text with."""


class EvalSet(msgspec.Struct, frozen=True, kw_only=True):
    """Items that are asked, and how many the files hold."""

    items: tuple[Item, ...]
    total: int

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the items, in order of appearance."""
        return tuple(dict.fromkeys(item.kind for item in self.items))


def read_evals(paths: Sequence[Path], *, items_max: int) -> EvalSet:
    """Read eval files and draw at most `items_max` items by a fixed seed; raises `TextError`."""
    found: list[Item] = []
    for path in paths:
        try:
            with path.open("rb") as file:
                found += read_items(iter(file), name=path.name)
        except EvalError as error:
            raise TextError(str(error)) from error
        except OSError as error:
            raise TextError(f"{path} cannot be read: {error.strerror}") from error
    seen: set[str] = set()
    for item in found:
        if item.id in seen:
            raise TextError(
                f"the eval item {item.id!r} comes twice in {', '.join(str(path) for path in paths)}: "
                "ids must differ, and so must the names of the files"
            )
        seen.add(item.id)
    chosen = found
    if len(found) > items_max:
        places = sorted(random.Random(SEED).sample(range(len(found)), items_max))
        chosen = [found[place] for place in places]
    return EvalSet(items=tuple(chosen), total=len(found))


async def answered(arm: QualityArm, evals: EvalSet) -> tuple[bool, ...]:
    """Return which items an arm gets right; raises `ArmError`."""
    return tuple([await _right(arm, item) for item in evals.items])


async def _right(arm: QualityArm, item: Item) -> bool:
    if isinstance(item, PairItem):
        good = await _loss(arm, item.good)
        return good < await _loss(arm, item.bad)
    return is_right(await arm.answer(item), item, _fits)


async def _loss(arm: QualityArm, sentence: str) -> float:
    """Return -log p of a whole sentence, in nats."""
    tokens = await arm.tokens(sentence)
    window = Window(kind="pair", name="pair", tokens=tokens, first=PAIR_CONTEXT_TOKENS)
    return sum((await arm.score(window)).losses)


def eval_gates(
    evals: EvalSet, base: Sequence[bool], rung: Sequence[bool], margin_share: float
) -> dict[str, PairedResult]:
    """Compare item by item within each kind; all kinds are held at once."""
    margin = Margin(value=margin_share, unit="of items", direction=Direction.HIGHER_IS_BETTER)
    level = family_level(len(evals.kinds))
    gates: dict[str, PairedResult] = {}
    for kind in evals.kinds:
        places = [at for at, item in enumerate(evals.items) if item.kind == kind]
        gates[eval_gate(kind)] = compare_right(
            [base[at] for at in places], [rung[at] for at in places], margin, level=level
        )
    return gates


def outcomes(evals: EvalSet, right: Sequence[bool]) -> tuple[EvalOutcome, ...]:
    """Return each item with whether the original got it right."""
    return tuple(
        EvalOutcome(item.id, item.kind, was) for item, was in zip(evals.items, right, strict=True)
    )


def eval_gate(kind: str) -> str:
    """Name the gate on a kind of eval."""
    return f"evals, {kind}"


def check_schemas(evals: EvalSet) -> None:
    """Raise `LaunchError` where a schema is none, or is to be checked and the package for it is missing."""
    checks = [
        (item.id, check.value)
        for item in evals.items
        if isinstance(item, EvalItem)
        for check in item.checks
        if isinstance(check, SchemaCheck)
    ]
    if not checks:
        return
    try:
        import jsonschema
    except ImportError as error:
        raise LaunchError(
            "json_schema checks need the jsonschema package: pip install 'trimtab[quantize]'"
        ) from error
    for name, schema in checks:
        try:
            jsonschema.validators.validator_for(schema).check_schema(schema)
        except jsonschema.SchemaError as error:
            raise LaunchError(
                f"eval item {name}: its json_schema is none: {error.message}"
            ) from error


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    import jsonschema

    try:
        jsonschema.validate(value, schema)
    except jsonschema.ValidationError:
        return False
    return True
