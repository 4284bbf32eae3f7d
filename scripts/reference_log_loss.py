"""Writes what transformers, in float32, says a few texts cost: the reference that the live arm is held against.

Run in an environment with torch, transformers and gguf, on the F16 expansion of the packaged model:

    python scripts/reference_log_loss.py FOLDER/original-f16.gguf

The tokens stand in the file, so that the test asks for the very same ones.
"""

import importlib
import inspect
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TARGET = Path(__file__).resolve().parent.parent / "tests" / "engines" / "reference_log_loss.json"
FIRST, SCORED = 64, 128
CHARS = 4000


def texts() -> dict[str, str]:
    """Return code and prose that every Python has."""
    topics = importlib.import_module("pydoc_data.topics").topics
    code = inspect.getsource(importlib.import_module("heapq"))
    return {"code": code[:CHARS], "prose": topics["typesseq"][:CHARS]}


def main(model_path: Path) -> None:
    """Score both texts and write the reference."""
    given = {"gguf_file": model_path.name}
    tokenizer = AutoTokenizer.from_pretrained(model_path.parent, **given)
    model = AutoModelForCausalLM.from_pretrained(model_path.parent, dtype=torch.float32, **given)
    rows = []
    for kind, text in texts().items():
        tokens = tokenizer(text)["input_ids"][: FIRST + SCORED]
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0].double()
        spread = torch.log_softmax(logits, dim=-1)
        losses = [-spread[at - 1, tokens[at]].item() for at in range(FIRST, len(tokens))]
        rows.append({"kind": kind, "first": FIRST, "tokens": tokens, "losses": losses})
        print(kind, sum(losses) / len(losses))
    TARGET.write_text(json.dumps(rows) + "\n")
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
