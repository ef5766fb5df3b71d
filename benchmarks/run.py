# SPDX-License-Identifier: Apache-2.0
"""Time this package against plain driver calls from C, and against a released cuda-core where one is given.

    python benchmarks/run.py [--driver auto|sim|gpu] [--released ENVIRONMENT] [--rounds N] [--json FILE]

Absolute times only show the size of a thing; what counts is the ratio. In every round the sides take turns, so that
a machine that slows down slows down all of them.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import bare_object
from raw_driver import compile_library

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
STEP = 2 * MIB

Work = namedtuple("Work", "title name count arguments memory raw released")


def plan(free, quick):
    """Return the work to time, as far as it fits into the device's free memory."""
    works = [
        Work("pool: allocate 1 KiB and close", "pool_pair", 5000, (1024,), 64 * MIB, True, True),
        Work(
            "the same, raw beside captures",
            "pool_pair_beside_captures",
            5000,
            (1024,),
            64 * MIB,
            True,
            False,
        ),
        Work(
            "the two calls, bare from Python",
            "pool_pair_of_a_bare_object",
            5000,
            (1024,),
            64 * MIB,
            True,
            False,
        ),
        Work("allocate 2 MiB and close", "allocate_and_close", 40, (STEP,), 40 * STEP, True, True),
        *(
            Work(f"grow by 2 MiB in place, at {text}", "grow_in_place", 32, (size, STEP), size, True, False)
            for text, size in (
                ("2 MiB", STEP),
                ("64 MiB", 64 * MIB),
                ("1 GiB", 1024 * MIB),
                ("64 GiB", 65536 * MIB),
            )
        ),
        *(
            Work(
                f"grow by moving {n} chunks",
                "grow_by_moving",
                max(1, 64 // n),
                (n, STEP),
                n * STEP,
                True,
                False,
            )
            for n in (1, 8, 64, 512)
        ),
        *(
            Work(f"release {n} chunks", "release", max(1, 64 // n), (n, STEP), n * STEP, True, False)
            for n in (1, 8, 64, 512)
        ),
        *(
            Work(
                f"release {n} grows, geometric",
                "release_geometric",
                max(1, 64 // n),
                (n, STEP),
                3 * n * STEP // 2,
                True,
                False,
            )
            for n in (8, 64, 512)
        ),
        Work("borrow (from_handle) and close", "borrow_and_close", 5000, (), 0, False, True),
        Work("resource in Python, and close", "python_resource_and_close", 5000, (), 0, False, True),
    ]
    works = [work for work in works if work.memory + 256 * MIB <= free]
    return [work for work in works if work.memory <= 1024 * MIB] if quick else works


class ProcessEnded(SystemExit):
    """A measuring process is gone; the text says what it wrote last."""


class Worker:
    """One side's process. The driver it loads is the one that this process chose for all."""

    def __init__(self, python, packages=None, raw=None):
        self.complaints = os.memfd_create("complaints")  # a pipe could fill up and block the process
        environment = dict(os.environ)
        if packages is not None:
            environment["PYTHONPATH"] = str(packages)
        self.process = subprocess.Popen(
            [python, str(HERE / "worker.py"), *(["--raw", str(raw)] if raw else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            env=environment,
        )

    @classmethod
    def of_release(cls, environment):
        """Start the process of a release: in a virtual environment, or in a folder made by pip install --target."""
        python = environment / "bin" / "python"
        return cls(str(python), packages="") if python.exists() else cls(sys.executable, packages=environment)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise ProcessEnded(f"a measuring process ended with code {code}:\n{self.close()[-2000:]}")
        return json.loads(line)

    def measure(self, side, work):
        """Return nanoseconds for one operation."""
        answer = self.ask(side=side, name=work.name, count=work.count, arguments=work.arguments)
        if "error" in answer:
            raise SystemExit(f"{work.title}, {side}: {answer['error']}")
        return answer["ns"]

    def close(self):
        """End the process and return what it wrote to standard error."""
        self.process.stdin.close()
        self.process.wait(60)
        os.lseek(self.complaints, 0, os.SEEK_SET)
        with open(self.complaints) as stream:
            return stream.read()


def time_work(work, ours, released, rounds):
    """Return the times of each side, a list each, the sides having taken turns."""
    times = {"raw": [], "layer": [], "released": []}
    for number in range(rounds + 1):
        taken = {"layer": ours.measure("layer", work)}
        if work.raw:
            taken["raw"] = ours.measure("raw", work)
        if released is not None and work.released:
            taken["released"] = released.measure("layer", work)
        if number:  # the first round warms up
            for side, nanoseconds in taken.items():
                times[side].append(nanoseconds)
    return times


def spread(values):
    """Return the median and the quartiles."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def ratio_text(above, below):
    """Return the median ratio of paired rounds, with its quartiles, as a text."""
    if not below:
        return "-"
    middle, low, high = spread([a / b for a, b in zip(above, below, strict=True)])
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def microseconds(times):
    return f"{spread(times)[0] / 1000:.2f}" if times else "-"


COLUMNS = (
    ("work", 32),
    ("raw C us", 9),
    ("this us", 9),
    ("this / raw (quartiles)", 22),
    ("1.2.2 us", 9),
    ("this / 1.2.2 (quartiles)", 24),
)


def print_row(cells):
    aligned = (
        f"{c:<{w}}" if i == 0 else f"{c:>{w}}"
        for i, (c, (_, w)) in enumerate(zip(cells, COLUMNS, strict=True))
    )
    print("  ".join(aligned), flush=True)


def processor():
    """Return the processor's name as Linux gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def description(driver_text, rounds, worker):
    """Return what every report says first."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "driver": driver_text,
        "rounds": rounds,
        "this": worker.ask(side="facts")["facts"],
    }


def kept_by(worker, before):
    """Return what the process holds that it did not hold before, kind to number."""
    after = worker.ask(side="facts")["facts"]["held"]
    return {
        kind: number - before.get(kind, 0) for kind, number in after.items() if number > before.get(kind, 0)
    }


def choose(driver):
    """Choose the driver, once: the processes that measure inherit it. Returns what it is, in words."""
    sys.path.insert(0, str(HERE.parent / "examples"))
    try:
        from grow_buffer import choose_driver
    finally:
        del sys.path[0]
    return choose_driver(driver)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--driver", choices=("auto", "sim", "gpu"), default="auto")
    parser.add_argument(
        "--released",
        type=Path,
        metavar="ENVIRONMENT",
        help="a virtual environment, or a folder made by pip install --target, with cuda-core 1.2.2 in it",
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="three rounds, and no work above 1 GiB")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there too")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds = 3
    return options


def main(arguments=None):
    options = parse(arguments)
    driver_text = choose(options.driver)
    bare_object.compile_module()
    ours = Worker(sys.executable, packages=os.environ.get("PYTHONPATH"), raw=compile_library())
    released, released_facts, not_timed = None, None, ""
    if options.released:
        released = Worker.of_release(options.released)
        try:
            released_facts = released.ask(side="facts")["facts"]
        except ProcessEnded as ended:
            released, not_timed = None, f"the release was not timed: {ended}"
    report = {**description(driver_text, options.rounds, ours), "released": released_facts, "work": []}
    this = report["this"]
    print(f"{report['date']}, {report['processor']}, {report['cpus']} CPUs")
    print(f"driver: {driver_text}, interface {this['driver']}, {this['device']}")
    for name, side in (("this", this), ("1.2.2", report["released"])):
        if side:
            versions = f"cuda-core {side['cuda-core']}, cuda-bindings {side['cuda-bindings']}"
            print(f"{name}: {versions}, Python {side['python']}")
    print(f"medians of {options.rounds} rounds in which the sides take turns; ratios with their quartiles\n")
    print_row([title for title, _ in COLUMNS])
    for work in plan(this["free"], options.quick):
        times = time_work(work, ours, released, options.rounds)
        raw, layer, old = times["raw"], times["layer"], times["released"]
        print_row(
            [
                work.title,
                microseconds(raw),
                microseconds(layer),
                ratio_text(layer, raw),
                microseconds(old),
                ratio_text(layer, old),
            ]
        )
        report["work"].append({"title": work.title, "operations": work.count, "nanoseconds": times})
    kept = kept_by(ours, this["held"])
    complaints = ours.close()
    if released is not None:
        released.close()  # it complains about every close
    print(f"\nkept by the process of this package after all rounds: {kept or 'nothing'}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if kept or complaints:
        raise SystemExit(f"what was measured does not work as it should\n{complaints[:2000]}")
    if not_timed:
        raise SystemExit(not_timed)


if __name__ == "__main__":
    main()
