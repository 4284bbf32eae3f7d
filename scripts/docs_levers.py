"""What each lever says of itself: budgets, narrowness, gates and triggers, read from the levers' own modules.

The amounts depend on what was measured, so they are those of one made-up situation; the gates, their margins, the
triggers and their marks are those of every record that the lever writes.
"""

import sys
from pathlib import Path

import docs_tables as tables

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "kit"))

from situations import LABELS, PREFILL_BOUND, readings, situation

from trimtab.core.gate import GateSpec
from trimtab.core.lever import LeverRecord, LeverRecordError, TriggerSpec
from trimtab.core.types import Technique
from trimtab.diagnosis.names import Name
from trimtab.levers.catalog import catalog

LONG_GAPS = {
    Name.CHUNK_GAP_MS_BESIDE_PREFILL: 8000.0,
    Name.CHUNK_GAP_MS_ALONE: 700.0,
}
SITUATIONS = {
    Technique.PREFILL_CHUNKING: situation(readings(**LONG_GAPS)),
    Technique.PREFIX_CACHING: situation(readings(**PREFILL_BOUND)),
    Technique.SPECULATION: situation(readings(**LABELS)),
}


def lever_part(technique: Technique) -> str:
    """Return the generated part of a technique's page."""
    given = SITUATIONS.get(technique, situation(readings()))
    lever = next(each for each in catalog().values() if _technique(each.name) is technique)
    said = lever.assess(given)
    moves = [
        [move.budget.value, "pays" if move.spends else "is relieved", _plain(move.because)]
        for move in said.moves
    ]
    narrow = said.narrowness
    parts = [
        f"Lever `{lever.name}`. Quality exposure {_words(narrow.quality.name)}, needs {_words(narrow.dependency.name)} "
        f"beside what is there, moved {_words(narrow.actuation.name)}, scope {_words(narrow.scope.name)}, back "
        f"in {narrow.reverse_s:g} s.\n\n",
        tables.table(["budget", "it", "because"], moves),
    ]
    try:
        record = lever.propose(given, said, "for the documents")
    except LeverRecordError as error:
        if not str(error).startswith(f"{lever.name} cannot be proposed"):
            # The made-up situation lacks evidence: the lever does write records.
            raise
        return "".join(
            [
                *parts,
                "\nThis version writes no record for it itself: a person does.\n",
            ]
        )
    return "".join([*parts, "\n", _gates(record), "\n", _triggers(record)])


def _technique(name: str) -> Technique:
    return catalog()[name].assess(situation(readings())).technique


def _gates(record: LeverRecord) -> str:
    rows = [
        [
            f"`{gate.name}`",
            gate.question.value,
            f"{gate.margin:.0%}",
            "all" if gate.cut is None else f"`{gate.cut}`",
            _asked(gate),
            "yes" if gate.required else "no",
        ]
        for gate in record.gates
    ]
    return tables.table(["gate", "question", "margin", "cut", "asked in", "required"], rows)


def _asked(gate: GateSpec) -> str:
    return ", ".join(state.value for state in gate.during)


def _triggers(record: LeverRecord) -> str:
    rows = [
        [
            f"`{each.name}`",
            f"`{each.signal.value}`",
            _marks(each),
            "never by itself"
            if each.on_at is None
            else f"{each.on_at:.3g}, after {each.lockout_s:g} s",
            _words(each.action.value),
            _plain(each.because),
        ]
        for each in record.triggers
    ]
    return tables.table(["trigger", "signal", "acts", "lets go", "does", "because"], rows)


def _marks(trigger: TriggerSpec) -> str:
    side = "above" if trigger.off_when_above else "below"
    return f"{side} {trigger.off_at:.3g} for {trigger.ticks} ticks"


def _words(name: str) -> str:
    return name.lower().replace("_", " ")


def _plain(text: str) -> str:
    return text.replace("|", "/")
