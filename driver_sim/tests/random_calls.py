# SPDX-License-Identifier: Apache-2.0
"""Compare the simulated driver with a real one by random sequences of calls.

    random_calls.py record N [--seed S] > FILE     on a real driver: sequences and their answers, compressed
    random_calls.py check FILE                     on the simulated driver: where its answers differ
    random_calls.py compare N --library FOLDER     where both are: differences, each shrunk

Sequences run in child processes, which are replaced when a call has broken them. FOLDER holds the simulated
`libcuda.so.1`; `check` finds the installed one by itself.
"""

import argparse
import collections
import concurrent.futures
import json
import lzma
import os
import select
import subprocess
import sys
import threading
import time

from random_sequences import sequence

TIMEOUT = 20  # seconds for one call
SEQUENCES_OF_A_WORKER = 400  # so that what one leaves behind does not add up


class Worker:
    """A child process that answers sequences on one driver."""

    def __init__(self, library=None):
        self.environment = dict(os.environ)
        if library:
            self.environment["LD_LIBRARY_PATH"] = library
            self.environment["CUDA_DRIVER_SIM_DEVICES"] = "1"
        self.process = None

    def start(self):
        self.done = 0
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.environment,
        )
        self.pending = b""
        self.line(60)

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None

    def line(self, timeout=TIMEOUT):
        """One line of the child, or None when it is gone or silent."""
        end = time.monotonic() + timeout
        while b"\n" not in self.pending:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return None
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                return None
            self.pending += data
        line, _, self.pending = self.pending.partition(b"\n")
        return line

    def answers(self, calls, skip=()):
        """The answers to the calls but those to skip, and `died` when one has broken the process."""
        if self.process is None or self.done >= SEQUENCES_OF_A_WORKER:
            self.stop()
            self.start()
        self.done += 1
        try:
            self.process.stdin.write(json.dumps([calls, list(skip)]).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.stop()
            return self.answers(calls, skip)
        result = []
        while True:
            line = self.line()
            if line is None:
                self.stop()
                return [*result, ["died"]]
            answer = json.loads(line)
            if isinstance(answer, bool):
                if not answer:
                    self.stop()
                return result
            result.append(answer)


def work():
    """What a child does: answer the sequences that come in, call by call."""
    from cuda.bindings import driver as d

    from random_machine import FAULTS, SKIPPED, Machine

    d.cuInit(0)
    d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
    print("ready", flush=True)
    for line in sys.stdin:
        machine = Machine()
        broken = False
        calls, skip = json.loads(line)
        for call in calls:
            answer = SKIPPED if call[0] in skip else machine.answer(call)
            print(json.dumps(answer), flush=True)
            if answer[0] in FAULTS:
                broken = True
                break
        # What the close of a broken context answers is of no interest, and may take long.
        healthy = not broken and machine.close()
        print(json.dumps(healthy), flush=True)
        if not healthy:
            os._exit(0)


def difference(calls, real, simulated):
    """The place of the first answer that differs, or None.

    What comes behind a parting of addresses cannot be compared: a reservation that is where it was asked
    for on one driver only, or a call that only the simulated driver had to skip.
    """
    for place in range(len(calls)):
        if place >= len(real) or real[place] == ["died"]:
            return None
        if place >= len(simulated):
            return place
        if real[place] != simulated[place]:
            parted = calls[place][1] == "reserve" and real[place][:2] == simulated[place][:2]
            return None if parted or simulated[place] == ["skipped"] else place
    return None


def skipped(calls, answers):
    """The numbers of the calls that a driver has skipped, for the other to follow."""
    return [call[0] for call, answer in zip(calls, answers, strict=False) if answer == ["skipped"]]


class Team:
    """One worker of a kind for every thread."""

    def __init__(self, **arguments):
        self.arguments, self.local, self.all = arguments, threading.local(), []

    def answers(self, calls, skip=()):
        if not hasattr(self.local, "worker"):
            self.local.worker = Worker(**self.arguments)
            self.all.append(self.local.worker)
        return self.local.worker.answers(calls, skip)

    def stop(self):
        for worker in self.all:
            worker.stop()


def in_parallel(function, items, threads, seconds):
    """The results of the items that were begun in time."""
    end = time.monotonic() + seconds
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return [r for r in pool.map(lambda i: function(i) if time.monotonic() < end else None, items) if r]


def record(options):
    team = Team()

    def one(seed):
        calls = sequence(seed, options.length)
        return {"seed": seed, "calls": calls, "answers": team.answers(calls)}

    seeds = range(options.seed, options.seed + options.number)
    records = in_parallel(one, seeds, options.threads, options.seconds)
    team.stop()
    sys.stdout.buffer.write(packed(records))
    print(f"{len(records)} sequences recorded", file=sys.stderr)


def packed(records):
    text = "".join(json.dumps(r, separators=(",", ":")) + "\n" for r in records)
    return lzma.compress(text.encode(), preset=6)


def read(file):
    with lzma.open(file, "rt") as lines:
        return [json.loads(line) for line in lines]


def shown(calls, real, simulated, place):
    lines = []
    for at in range(place + 1):
        if real[at] != ["skipped"] or at == place:
            lines.append(f"    {calls[at]} -> {real[at]}")
    there = simulated[place] if place < len(simulated) else "nothing"
    return "\n".join([*lines, f"    here {there}"])


def signature(call, real, simulated):
    return f"{call[1]}: {real} here {simulated}"


def report(records, answers, limit):
    """Print what differs, and return how many sequences and calls there were and how many agree."""
    counts, examples = collections.Counter(), {}
    sequences = calls = same = same_calls = died = 0
    for item, simulated in zip(records, answers, strict=True):
        real = item["answers"]
        place = difference(item["calls"], real, simulated)
        died += real[-1] == ["died"]
        made = [a for a in real if a not in (["skipped"], ["died"])]
        sequences += 1
        calls += len(made)
        if place is None:
            same += 1
            same_calls += len(made)
            continue
        same_calls += len([a for a in real[:place] if a != ["skipped"]])
        there = simulated[place] if place < len(simulated) else "nothing"
        key = signature(item["calls"][place], real[place], there)
        counts[key] += 1
        if key not in examples or place < examples[key][1]:
            text = f"  seed {item['seed']}\n" + shown(item["calls"], real, simulated, place)
            examples[key] = (text, place)
    for key, count in counts.most_common(limit):
        print(f"{count} x {key}\n{examples[key][0]}")
    print(
        f"{same} of {sequences} sequences agree, {same_calls} of {calls} calls; {died} broke the real driver"
    )
    return sequences, same, calls, same_calls


def check(options):
    team = Team(library=options.library or installed_library())
    records = read(options.file)
    answers = in_parallel(
        lambda r: team.answers(r["calls"], skipped(r["calls"], r["answers"])),
        records,
        options.threads,
        options.seconds,
    )
    team.stop()
    sequences, same, _, _ = report(records[: len(answers)], answers, options.limit)
    sys.exit(same != sequences)


def installed_library():
    import cuda_driver_sim

    return os.path.dirname(cuda_driver_sim.library_path())


def shrink(calls, differs, seconds):
    """Leave calls out, the last first, as long as the same answer differs."""
    end = time.monotonic() + seconds
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for at in reversed(range(len(calls) - 1)):
            shorter = calls[:at] + calls[at + 1 :]
            if time.monotonic() < end and differs(shorter):
                calls, changed = shorter, True
    return calls


def compare(options):
    """Run sequences on both drivers, and shrink one of every kind of difference."""
    real_team, simulated_team = Team(), Team(library=options.library)
    seen, lock = {}, threading.Lock()
    last_shrink = time.monotonic() + options.seconds

    def both(calls):
        real = real_team.answers(calls)
        simulated = simulated_team.answers(calls, skipped(calls, real))
        return real, simulated, difference(calls, real, simulated)

    def one(seed):
        calls = sequence(seed, options.length)
        real, simulated, place = both(calls)
        result = {"seed": seed, "calls": calls, "answers": real}
        if place is None:
            return result, simulated
        there = simulated[place] if place < len(simulated) else "nothing"
        key = signature(calls[place], real[place], there)
        with lock:
            seen[key] = seen.get(key, 0) + 1
            first = seen[key] <= options.examples and time.monotonic() < last_shrink
        if first:
            wanted = calls[place][0], real[place], there

            def differs(shorter):
                r, s, at = both(shorter)
                return (
                    at is not None and (shorter[at][0], r[at], s[at] if at < len(s) else "nothing") == wanted
                )

            short = shrink(calls[: place + 1], differs, 5)
            r, s, at = both(short)
            if at is not None:
                with lock:
                    print(f"{key}\n{shown(short, r, s, at)}", flush=True)
        return result, simulated

    seeds = range(options.seed, options.seed + options.number)
    results = in_parallel(one, seeds, options.threads, options.seconds)
    real_team.stop()
    simulated_team.stop()
    for key, count in sorted(seen.items(), key=lambda item: -item[1]):
        print(f"{count} x {key}")
    if options.save:
        with open(options.save, "wb") as file:
            file.write(packed([r for r, _ in results]))
    report([r for r, _ in results], [s for _, s in results], 0)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("worker")
    for command in ("record", "compare"):
        sub = commands.add_parser(command)
        sub.add_argument("number", type=int)
        sub.add_argument("--seed", type=int, default=0)
        sub.add_argument("--length", type=int, default=24)
    sub = commands.add_parser("check")
    sub.add_argument("file")
    sub.add_argument("--limit", type=int, default=40, help="how many kinds of difference to show")
    for command in ("record", "check", "compare"):
        sub = commands.choices[command]
        sub.add_argument("--threads", type=int, default=os.cpu_count())
        sub.add_argument("--seconds", type=float, default=3600, help="begin no sequence after this time")
        if command != "record":
            sub.add_argument(
                "--library", required=command == "compare", help="folder of the simulated libcuda.so.1"
            )
    commands.choices["compare"].add_argument(
        "--examples", type=int, default=1, help="how many of a kind to shrink"
    )
    commands.choices["compare"].add_argument(
        "--save", help="keep the sequences and the real answers in this file"
    )
    options = parser.parse_args()
    {"worker": lambda _: work(), "record": record, "check": check, "compare": compare}[options.command](
        options
    )


if __name__ == "__main__":
    main()
