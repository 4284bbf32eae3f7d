"""What a plan for 64 accelerators takes: the first one of a model and device, and those after it.

    python bench/bench_plan.py [--rounds N]

Each round starts a process for each model with an empty cache, imports, and then plans: first (nothing is kept of the
kernel tables), again, with another load, and with prompts of another length. Beside it, in a process of its own and in
turns: what the package of the kernel tables takes to read its tables for the same device and model, by its own means,
for the three engines that a plan asks; no layout is searched there. Further cases are only planned, first and again: a
model that no node holds, loads in requests a second, and models of which the device lacks measured kernels. Printed are
wall and CPU seconds, medians over the rounds with the range, and what imports took.
"""

import argparse
import importlib
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Final

MODELS: Final = {
    "llama-3.1-70b": ("meta-llama/Meta-Llama-3.1-70B", "H100:8x8", "h100_sxm"),
    "deepseek-v3": ("deepseek-ai/DeepSeek-V3", "H200:8x8", "h200_sxm"),
    "qwen3-235b-a22b": ("Qwen/Qwen3-235B-A22B", "H100:8x8", "h100_sxm"),
}
ENGINES: Final = ("vllm", "sglang", "trtllm")
CASES: Final = {
    "deepseek-v3, no node holds it": ("deepseek-v3", "H100:8x8", ("--concurrency", "2000")),
    "deepseek-v3, by rate": ("deepseek-v3", "H200:8x8", ("--rate", "20")),
    "qwen3-235b-a22b, by rate": ("qwen3-235b-a22b", "H100:8x8", ("--rate", "10")),
    "gpt-oss-120b, kernels lack": ("gpt-oss-120b", "H100:8x2", ("--concurrency", "300")),
    "deepseek-v3, a width lacks": ("deepseek-v3", "A100:8x8", ("--concurrency", "500")),
}
"""Plans that take longer than those of the models above: model, hardware, load."""

ROUNDS: Final = 3
ASKS: Final = {
    "first": ("2000", "300", "2000"),
    "again": ("2000", "300", "2000"),
    "another load": ("2000", "300", "500"),
    "other lengths": ("12000", "900", "500"),
}


class Watch:
    """Wall and CPU seconds since it was last read, of this process with all its threads."""

    def __init__(self) -> None:
        self._at = (time.perf_counter(), time.process_time())

    def read(self) -> tuple[float, float]:
        """Return what passed and start anew."""
        wall, cpu = self._at
        self._at = (time.perf_counter(), time.process_time())
        return self._at[0] - wall, self._at[1] - cpu


def words_of(name: str) -> dict[str, list[str]]:
    """Return what is asked of a model, or of a case, by what it is called."""
    if name in CASES:
        model, hardware, load = CASES[name]
        words = ["--model", model, "--hardware", hardware, "--isl", "2000", "--osl", "300", *load]
        return {"first": words, "again": words}
    common = ["--model", name, "--hardware", MODELS[name][1]]
    return {
        what: [*common, "--isl", isl, "--osl", osl, "--concurrency", clients]
        for what, (isl, osl, clients) in ASKS.items()
    }


def plan_once(name: str) -> dict[str, tuple[float, float]]:
    """Import and plan a model's asks, or a case twice; returns wall and CPU seconds by what was done."""
    watch = Watch()
    from click.testing import CliRunner

    from trimtab.interfaces.plan_cli import plan
    from trimtab.runtime.kernel_sdk import sdk

    sdk()
    told = {"import": watch.read()}
    for what, asked in words_of(name).items():
        words = [*asked, "--node-link", "ib400", "--tpot-ms", "50", "--json"]
        watch.read()
        done = CliRunner().invoke(plan, words)
        told[what] = watch.read()
        assert done.exit_code in (0, 1), done.output
    return told


def read_once(name: str) -> dict[str, tuple[float, float]]:
    """Read the tables by the package's own means and ask for one step of each engine."""
    watch = Watch()
    logging.disable(logging.CRITICAL)
    core: Any = importlib.import_module("aiconfigurator_core")
    config_builders, engine, models, perf_database = (
        importlib.import_module(f"aiconfigurator_core.sdk.{part}")
        for part in ("config_builders", "engine", "models", "perf_database")
    )
    told = {"import": watch.read()}
    checkpoint, _, system = MODELS[name]
    mixture = name != "llama-3.1-70b"
    for backend in ENGINES:
        config = config_builders.build_model_config(
            tp_size=8,
            pp_size=1,
            attention_dp_size=1,
            moe_tp_size=1 if mixture else 8,
            moe_ep_size=8 if mixture else 1,
            kvcache_quant_mode="bfloat16",
            fmha_quant_mode="bfloat16",
        )
        database = perf_database.get_database_view(system, backend, "current")
        model = models.get_model(checkpoint, config, backend)
        spec = engine.build_engine_spec_json(
            model, model_path=checkpoint, system=system, backend=backend,
            backend_version=database.version, kv_block_size=None, systems_path=None, nextn=0,
            database=database,
        )  # fmt: skip
        sdk_engine = core.AicEngine.from_spec(bytes(core.engine_spec_bincode_from_json(spec)), None)
        sdk_engine.decode_step_latency(8, 1024, 2)
        sdk_engine.predict_prefill_latency(1, 1024, 0)
    told["package reads its tables"] = watch.read()
    return told


def child(kind: str, name: str) -> dict[str, tuple[float, float]]:
    """Run one of the two in a process of its own with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--child", kind, name],
            env=os.environ | {"XDG_CACHE_HOME": folder},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: dict[str, tuple[float, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def told_of(seconds: list[float]) -> str:
    """Return the median with the range."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def main() -> None:
    """Run all rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--child", nargs=2, metavar=("KIND", "MODEL"))
    asked = parser.parse_args()
    if asked.child:
        kind, name = asked.child
        print(json.dumps(plan_once(name) if kind == "plan" else read_once(name)))
        return
    told: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(asked.rounds):
        for name in (*MODELS, *CASES):
            for kind in ("plan", "read") if name in MODELS else ("plan",):
                for what, seconds in child(kind, name).items():
                    said = "import of the package" if (kind, what) == ("read", "import") else what
                    told.setdefault((name, said), []).append(seconds)
    print(f"{'model':<32}{'what':<28}{'wall s':>22}{'CPU s':>22}   n={asked.rounds}")
    for (name, what), rounds in told.items():
        wall, cpu = ([one[place] for one in rounds] for place in (0, 1))
        print(f"{name:<32}{what:<28}{told_of(wall):>22}{told_of(cpu):>22}")


if __name__ == "__main__":
    main()
