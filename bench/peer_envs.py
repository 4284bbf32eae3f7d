"""Make the environments of the proxies that trimtab is compared with, once, outside the clone.

    python -m bench.peer_envs            make what is missing; instant if nothing is
    python -m bench.peer_envs --where    print the folders and make nothing

Each peer has an environment of its own below trimtab's cache folder, under a name made of what is in it. nginx is
Debian's package, unpacked there and not installed, so that no service starts. An environment counts as whole only once
a file says so that is written last.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from trimtab.runtime.vllm_env import WHOLE, cache_folder

REQUIREMENTS = {
    "vllm-router": ("vllm-router==0.1.17",),
    "sglang-router": ("sglang-router==0.3.2",),
    "litellm": ("litellm[proxy]==1.106.12",),
}
NGINX = "nginx"
PEERS = (*REQUIREMENTS, NGINX)


class PeerError(RuntimeError):
    """A peer's environment could not be had; the message says why."""


def environment(peer: str) -> Path:
    """Return where a peer's environment lies or would lie."""
    wanted = "\n".join(REQUIREMENTS.get(peer, (peer,)))
    return cache_folder() / f"peer-{peer}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"


def program(peer: str) -> Path:
    """Return a peer's program, for Python peers their interpreter; raises `PeerError` where it is not there."""
    folder = environment(peer)
    if not (folder / WHOLE).is_file():
        raise PeerError(f"{peer} has no environment; make it with python -m bench.peer_envs")
    return folder / ("usr/sbin/nginx" if peer == NGINX else "bin/python")


def version(peer: str) -> str:
    """Return what a peer's environment says it is."""
    return str(json.loads((environment(peer) / WHOLE).read_text())["version"])


def make(peer: str) -> Path:
    """Make a peer's environment unless it is whole, and return its folder; raises `PeerError`."""
    folder = environment(peer)
    if (folder / WHOLE).is_file():
        return folder
    began_s = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = make_nginx(folder) if peer == NGINX else make_python(folder, REQUIREMENTS[peer])
    took_s = time.monotonic() - began_s
    (folder / WHOLE).write_text(json.dumps({"version": made, "seconds": round(took_s)}) + "\n")
    print(f"{peer} {made}: {took_s:.0f} s, {folder}", flush=True)
    return folder


def make_python(folder: Path, wanted: tuple[str, ...]) -> str:
    """Make a virtual environment with the requirements and return the version of the first."""
    venv.create(folder, with_pip=True, clear=True)
    python = folder / "bin" / "python"
    pip = (str(python), "-m", "pip", "--no-input", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--prefer-binary", *wanted)
    name = wanted[0].partition("==")[0].partition("[")[0]
    ask = f"import importlib.metadata; print(importlib.metadata.version({name!r}))"
    return run(str(python), "-c", ask)


def make_nginx(folder: Path) -> str:
    """Unpack Debian's nginx and return its version; its libraries are those of the base system."""
    with tempfile.TemporaryDirectory() as download:
        run("apt-get", "download", NGINX, cwd=download)
        for package in Path(download).glob("*.deb"):
            run("dpkg-deb", "--extract", str(package), str(folder))
    said = run(str(folder / "usr/sbin/nginx"), "-v")
    return said.rpartition("/")[2]


def run(*command: str, cwd: str | None = None) -> str:
    """Run a command and return the last line that it printed; raises `PeerError` with its complaint."""
    drop = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    kept = {key: value for key, value in os.environ.items() if key not in drop}
    done = subprocess.run(
        command, cwd=cwd, env=kept, text=True, capture_output=True, check=False, timeout=1_200
    )
    if done.returncode != 0:
        raise PeerError(f"{command[0]} failed: {done.stderr.strip()[-2_000:]}")
    return (done.stdout.strip() or done.stderr.strip()).rpartition("\n")[2]


def main() -> int:
    """Make all, and go on with the next where one cannot be had."""
    if "--where" in sys.argv[1:]:
        print("\n".join(str(environment(peer)) for peer in PEERS))
        return 0
    failed = False
    for peer in PEERS:
        try:
            make(peer)
        except (PeerError, OSError, subprocess.TimeoutExpired) as error:
            print(f"{peer}: {error}", file=sys.stderr, flush=True)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
