"""A llama.cpp server that nobody of trimtab starts: the engine's own, in a process of its own, on a given port.

Run as a script: MODEL PORT. Nothing of trimtab is imported.
"""

import signal
import sys

import xllamacpp


def main() -> None:
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.model_alias = {"small"}
    params.hostnames = ["127.0.0.1"]
    params.port = int(sys.argv[2])
    params.n_parallel = 2
    params.n_ctx = 4096
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.verbosity = 1
    server = xllamacpp.Server(params)
    assert server.listening_address
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
