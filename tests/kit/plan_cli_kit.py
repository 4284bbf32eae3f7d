"""Runs `trimtab plan` in this process on models and measurements that a test writes down."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from trimtab.interfaces.plan_cli import plan


class Planned(NamedTuple):
    """How the command ended: its exit code, the answer where there is one, what it said of an error."""

    code: int
    answer: dict[str, Any]
    error: str

    def labels(self, *standings: str) -> list[str]:
        """The layouts of these standings, in their order."""
        return [each["label"] for each in self.answer["layouts"] if each["standing"] in standings]

    def layout(self, **sizes: int) -> dict[str, Any]:
        """The first layout of these sizes; sizes not named are 1, replicas any."""
        wanted = {"tp": 1, "pp": 1, "attention_dp": 1, "moe_ep": 1} | sizes
        return next(
            each
            for each in self.answer["layouts"]
            if all(each["layout"][name] == size for name, size in wanted.items())
        )

    def rules(self, **sizes: int) -> dict[str, dict[str, Any]]:
        """The remarks on a layout by their rule."""
        return {each["rule"]: each for each in self.layout(**sizes)["remarks"]}

    def impossible(self, what: str) -> dict[str, Any]:
        """What is said of a size that cannot be."""
        return next(each for each in self.answer["impossible"] if each["what"] == what)


def planned(*words: object) -> Planned:
    """Run the command with `--json`."""
    done = CliRunner().invoke(plan, [*(str(word) for word in words), "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    answer = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    return Planned(done.exit_code, answer, done.stderr)


def dense_config(
    folder: Path,
    *,
    heads: int,
    kv_heads: int,
    layers: int = 32,
    hidden: int | None = None,
    wide: int | None = None,
    context: int = 131_072,
) -> Path:
    """Write the configuration of a Llama with heads of 128."""
    hidden = hidden or heads * 128
    config = {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "intermediate_size": wide or 4 * hidden,
        "vocab_size": 32_000,
        "max_position_embeddings": context,
        "torch_dtype": "bfloat16",
    }
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


COLUMNS = (
    "id,engine,engine_version,model,system,precision,isl,osl,concurrency,gpus,tp,attention_dp,moe_tp,moe_ep,"
    "ttft_ms,tpot_ms"
)


def measured_table(
    folder: Path,
    times: dict[tuple[int, int], float],
    *,
    model: str,
    system: str,
    isl: int = 1000,
    osl: int = 200,
    ttft_ms: float = 200.0,
    mixture: bool = False,
) -> Path:
    """Write measured times per token by (tensor-parallel size, requests in flight), bf16 on vLLM."""
    rows = [
        f"tp{tp}c{clients},vllm,0.10,{model},{system},bf16,{isl},{osl},{clients},{tp},{tp},1,"
        f"{tp if mixture else 1},1,{ttft_ms},{tpot}"
        for (tp, clients), tpot in times.items()
    ]
    path = folder / "measured.csv"
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return path
