# SPDX-License-Identifier: Apache-2.0
"""A process that measures on demand: requests come as JSON lines on standard input, answers go to standard output.

Each side of a comparison has a process of its own, so that a released cuda-core from another environment can take turns
with this package.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import sys


def held():
    """Return what this process holds, kind to number: a look at free memory would count every other process too.

    The simulated driver counts what it gave this process; on a GPU the package's own count has to do, and the release
    has none.
    """
    with contextlib.suppress(ImportError):
        import cuda_driver_sim

        if cuda_driver_sim.is_active():
            return {f"driver: {kind}": number for kind, number in cuda_driver_sim.live().items()}
    try:
        from cuda.core._memory import _counters
    except ImportError:
        return {}
    return dict(_counters.live())


def facts(workloads):
    """Return what the report says about this side."""
    import cuda.core
    from cuda.bindings import driver
    from workloads import check

    result, free, total = driver.cuMemGetInfo()
    check((result,))
    return {
        "cuda-core": cuda.core.__version__,
        "cuda-bindings": importlib.metadata.version("cuda-bindings"),
        "python": platform.python_version(),
        "device": workloads.device.name,
        "driver": check(driver.cuDriverGetVersion()),
        "free": free,
        "total": total,
        "held": held(),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--raw", help="the compiled raw_driver.c, for the process that measures plain calls too"
    )
    options = parser.parse_args()
    answers = sys.stdout
    # Whatever else prints (the release prints its complaints) must not get between the answers.
    with contextlib.redirect_stdout(sys.stderr):
        from workloads import Workloads

        layer = Workloads()
        # The thread that measures, and no other: one CPU can be twice as fast as the next one of the same machine, and
        # all sides are measured on the same.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        sides = {"layer": layer, "facts": None}
        if options.raw:
            from raw_driver import RawDriver

            sides["raw"] = RawDriver(options.raw, 0, int(layer.stream.handle))
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if request["side"] == "facts":
                    answer = {"facts": facts(layer)}
                else:
                    measure = getattr(sides[request["side"]], request["name"])
                    answer = {"ns": measure(request["count"], *request["arguments"])}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
