# SPDX-License-Identifier: Apache-2.0
"""How the times of virtual memory change with the size of a buffer and with the number of its grows, as two plots.

    python benchmarks/curves.py [--driver auto|sim|gpu] [--rounds N] [--json FILE] [--plots FOLDER]
    python benchmarks/curves.py --read FILE --plots FOLDER

``grow.svg``: growing by 2 MiB inside reserved addresses, against the size of the buffer, 2 MiB to 64 GiB.
``release.svg``: releasing a buffer, against how often it has grown, with exact and with geometric growth.

Each point is measured with the package and with the same driver calls looped in C, in turns. The second form draws what
a machine without a screen has measured. Nothing but Python is needed to draw.
"""

import argparse
import json
import sys
from pathlib import Path

from log_plot import log_plot
from raw_driver import compile_library
from run import (
    MIB,
    STEP,
    Work,
    Worker,
    choose,
    description,
    kept_by,
    microseconds,
    ratio_text,
    spread,
    time_work,
)

SIZES = tuple(STEP << power for power in range(16))
GROWS = tuple(1 << power for power in range(11))


def grow_at(size):
    return Work(text_of_bytes(size), "grow_in_place", 16, (size, STEP), size + 16 * STEP, True, False)


def release_of(grows, growth):
    name, memory = ("release", 1) if growth == "exact" else ("release_geometric", 1.5)
    count = max(1, 32 // grows)
    return Work(f"{grows}, {growth}", name, count, (grows, STEP), memory * grows * STEP, True, False)


def measure(worker, free, rounds):
    """Return the points of both plots. What the device has no room for is left out."""

    def points(title, works):
        print(f"\n{title:<34}  {'raw C us':>10}  {'this us':>10}  this / raw (quartiles)")
        found = []
        for key, work in works:
            if work.memory + 256 * MIB > free:
                continue
            times = time_work(work, worker, None, rounds)
            ratio = ratio_text(times["layer"], times["raw"])
            cells = microseconds(times["raw"]), microseconds(times["layer"])
            print(f"{work.title:<34}  {cells[0]:>10}  {cells[1]:>10}  {ratio}", flush=True)
            found.append({**key, "raw": times["raw"], "this": times["layer"]})
        return found

    return {
        "grow": points("grow by 2 MiB, at", [({"bytes": size}, grow_at(size)) for size in SIZES]),
        "release": points(
            "release after so many grows",
            [
                ({"grows": grows, "growth": growth}, release_of(grows, growth))
                for growth in ("exact", "geometric")
                for grows in GROWS
            ],
        ),
    }


def text_of_bytes(size):
    return f"{size // MIB} MiB" if size < 1024 * MIB else f"{size // (1024 * MIB)} GiB"


def text_of_time(nanoseconds):
    for unit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if nanoseconds >= unit:
            return f"{nanoseconds / unit:g} {name}"
    return f"{nanoseconds:g} ns"


def series(points, x, side):
    """Return points as x, quartile, median, quartile."""
    found = []
    for point in points:
        middle, low, high = spread(point[side])
        found.append((point[x], low, middle, high))
    return found


def draw(report, folder):
    """Write both plots and return their paths."""
    where = f"{report['this']['device']}, {report['driver']}, {report['date']}; medians of {report['rounds']} rounds"
    grow = report["grow"]
    release = {
        growth: [point for point in report["release"] if point["growth"] == growth]
        for growth in ("exact", "geometric")
    }
    plots = {
        "grow.svg": log_plot(
            "Growing by 2 MiB inside reserved addresses",
            where,
            ("size of the buffer", text_of_bytes),
            ("time of one grow", text_of_time),
            [
                ("this package", "#1f5fbf", False, series(grow, "bytes", "this")),
                ("driver calls from C", "#444444", True, series(grow, "bytes", "raw")),
            ],
        ),
        "release.svg": log_plot(
            "Releasing a buffer that has grown by 2 MiB at a time",
            where,
            ("number of grows", str),
            ("time of the release", text_of_time),
            [
                ("exact", "#1f5fbf", False, series(release["exact"], "grows", "this")),
                ("exact, driver calls from C", "#444444", True, series(release["exact"], "grows", "raw")),
                ("geometric", "#c0501f", False, series(release["geometric"], "grows", "this")),
                (
                    "geometric, driver calls from C",
                    "#999999",
                    True,
                    series(release["geometric"], "grows", "raw"),
                ),
            ],
        ),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in plots.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in plots]


def run(options):
    """Measure, and return the report."""
    driver_text = choose(options.driver)
    worker = Worker(sys.executable, raw=compile_library())
    report = description(driver_text, options.rounds, worker)
    print(f"{report['date']}, {report['processor']}, {report['cpus']} CPUs")
    print(f"driver: {driver_text}, {report['this']['device']}; medians of {options.rounds} rounds")
    report |= measure(worker, report["this"]["free"], options.rounds)
    kept = kept_by(worker, report["this"]["held"])
    complaints = worker.close()
    print(f"\nkept by the process after all rounds: {kept or 'nothing'}")
    if kept or complaints:
        raise SystemExit(f"what was measured does not work as it should\n{complaints[:2000]}")
    return report


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--driver", choices=("auto", "sim", "gpu"), default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="write grow.svg and release.svg there")
    parser.add_argument(
        "--read", type=Path, metavar="FILE", help="measure nothing: draw what --json has written"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"at least one round is needed, got {options.rounds}")
    report = json.loads(options.read.read_text()) if options.read else run(options)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.plots:
        for path in draw(report, options.plots):
            print(path)


if __name__ == "__main__":
    main()
