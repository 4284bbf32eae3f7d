"""The `trimtab` command."""

import signal
import sys
import threading

# The imports take a second, in which Ctrl-C has nothing to clean up and ends the process without a traceback.
_QUIET = (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if _QUIET:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import click  # noqa: E402

from trimtab import __version__  # noqa: E402
from trimtab.interfaces.calibrate_cli import calibrate_command  # noqa: E402
from trimtab.interfaces.diagnose_cli import diagnose  # noqa: E402
from trimtab.interfaces.efficiency_cli import efficiency_command  # noqa: E402
from trimtab.interfaces.engine_cli import engine  # noqa: E402
from trimtab.interfaces.export_cli import export  # noqa: E402
from trimtab.interfaces.fleet_cli import fleet  # noqa: E402
from trimtab.interfaces.keys_cli import keys  # noqa: E402
from trimtab.interfaces.ledger_cli import ledger  # noqa: E402
from trimtab.interfaces.load_cli import load  # noqa: E402
from trimtab.interfaces.plan_cli import plan  # noqa: E402
from trimtab.interfaces.prompts_cli import prompts  # noqa: E402
from trimtab.interfaces.quantize_cli import quantize_command  # noqa: E402
from trimtab.interfaces.reload_cli import reload_command  # noqa: E402
from trimtab.interfaces.repeats_cli import repeats  # noqa: E402
from trimtab.interfaces.replay_cli import replay_command  # noqa: E402
from trimtab.interfaces.rollout_cli import freeze, rollout, unfreeze  # noqa: E402
from trimtab.interfaces.simulate_cli import simulate_command  # noqa: E402
from trimtab.interfaces.speculate_cli import speculate_command  # noqa: E402
from trimtab.interfaces.tune_cli import tune  # noqa: E402
from trimtab.interfaces.up_cli import up  # noqa: E402

if _QUIET:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="trimtab")
def main() -> None:
    """Diagnose LLM inference, move one lever at a time on a slice of traffic, keep only what proves itself.

    \b
    Start here:
      trimtab diagnose http://host:8000/metrics      what binds servers that already run
      trimtab plan --model qwen3-32b --hardware H100:8 ...   which layout, on how few accelerators
      trimtab prompts requests.jsonl                 what keeps their prefix cache from hitting
      trimtab repeats requests.jsonl                 which part of them n-gram drafts would hit
      trimtab tune --workload coding --report out/   the whole loop on a local fleet, in minutes
      trimtab up                                     a fleet and its OpenAI-compatible gateway
      trimtab up --attach http://host:8000           the same gateway in front of servers that run already
      trimtab fleet add                              one replica more in a fleet that serves
      trimtab rollout propose lever.toml --start     a lever of your own, on a slice, with gates
      trimtab quantize --report out/                 the precision that costs no quality beyond noise
      trimtab speculate --report out/                where drafting pays, how deep, up to which batch
      trimtab keys add NAME                          an API key; from then on requests need one
      trimtab simulate SCENARIO.toml                 what a policy would do to a traffic, at any size
      trimtab ledger chain NAME                      why a lever is on, in words
      trimtab export grafana -o dashboard.json       a dashboard of what the gateway measures
    """


for command in (
    diagnose,
    plan,
    efficiency_command,
    prompts,
    repeats,
    tune,
    up,
    fleet,
    rollout,
    freeze,
    unfreeze,
    reload_command,
    keys,
    load,
    engine,
    quantize_command,
    speculate_command,
    simulate_command,
    calibrate_command,
    replay_command,
    ledger,
    export,
):
    main.add_command(command)


if __name__ == "__main__":
    sys.exit(main())
