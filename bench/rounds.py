"""Measurements in turn, kept in a JSON file.

A plan is a list of runs. Each is measured once in a round, in turn, every other round backwards, so that a machine whose
speed drifts is fair to all. The file is written after each run: what was stopped goes on with --append, also in slices of
--seconds.
"""
import datetime
import json
import os
import pathlib
import platform
import re
import sys
import time

import tool

FORMAT = 1


def add_words(parser, rounds):
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", metavar="OUT", help="keep what was measured in this file")
    parser.add_argument("--append", action="store_true", help="go on with the file of --json until it has --rounds rounds")
    parser.add_argument("--seconds", type=float, help="begin no run that would end later than this; go on with --append")


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    name = re.search(r"model name\s*:\s*(.*)", text)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cpu": name.group(1) if name else platform.machine(), "cores": os.cpu_count(),
            "family": " ".join(f"{key} {value}" for key, value in re.findall(
                r"(?m)^(cpu family|model|stepping)\s*: (\d+)", text)[:3]),
            "memory_gib": round(memory, 1), "kernel": platform.release()}


def check_number(object_, what):
    if isinstance(object_, bool) or not isinstance(object_, (int, float)):
        tool.fail(f"{what}: want a number, not {object_!r}")


class Record:
    """What was measured: `about`, a dict of facts, and for each run its samples, dicts of numbers."""

    def __init__(self, about, path=None):
        self.about, self.path, self.runs = about, path, {}

    @staticmethod
    def load(path):
        try:
            text = json.loads(pathlib.Path(path).read_text())
        except OSError as error:
            tool.fail(f"{path}: {error.strerror}")
        except ValueError as error:
            tool.fail(f"{path}: no JSON: {error}")
        if not isinstance(text, dict) or text.get("format") != FORMAT:
            tool.fail(f"{path}: not written by these scripts: want format {FORMAT}")
        record = Record(text.get("about"), path)
        record.runs = text.get("runs")
        if not isinstance(record.about, dict) or not isinstance(record.runs, dict):
            tool.fail(f"{path}: about and runs are missing")
        for name, run in record.runs.items():
            for sample in run["samples"] if isinstance(run, dict) and isinstance(run.get("samples"), list) else [None]:
                if not isinstance(sample, dict):
                    tool.fail(f"{path}: run {name!r}: want a list of samples")
                for column, value in sample.items():
                    check_number(value, f"{path}: run {name!r}, {column}")
        return record

    @staticmethod
    def begin(words, about):
        """A new one, or with --append the one of the file, if it is of the same programs, model and machine."""
        if words.append and not words.json:
            tool.fail("--append goes on with the file of --json OUT, which is missing")
        about = {**about, "date": datetime.date.today().isoformat(), "machine": machine(),
                 "command": " ".join(["bench/" + pathlib.Path(sys.argv[0]).name, *sys.argv[1:]])}
        if not words.append or not os.path.exists(words.json):
            return Record(about, words.json)
        record = Record.load(words.json)
        for key, value in about.items():
            if key not in ("date", "command") and record.about.get(key) != value:
                tool.fail(f"{words.json}: {key} was {record.about.get(key)!r}, and is {value!r}: give another file")
        return record

    def save(self):
        if not self.path:
            return
        text = json.dumps({"format": FORMAT, "about": self.about, "runs": self.runs}, indent=1)
        beside = pathlib.Path(f"{self.path}.new")
        beside.write_text(text + "\n")
        beside.replace(self.path)

    def add(self, name, sample, seconds):
        run = self.runs.setdefault(name, {"seconds": 0, "samples": []})
        run["samples"].append({column: value for column, value in sample.items() if value is not None})
        run["seconds"] = seconds
        self.save()

    def count(self, name):
        return len(self.runs[name]["samples"]) if name in self.runs else 0

    def values(self, name, column):
        return [s[column] for s in self.runs.get(name, {}).get("samples", []) if column in s]

    def median(self, name, column):
        return tool.median(self.values(name, column))


def minutes(seconds):
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


class Progress:
    """A line on stderr: the run that is next, and the time left as far as runs are known."""

    def __init__(self):
        self.is_terminal = sys.stderr.isatty()

    def show(self, text):
        sys.stderr.write(f"\r{text[:118]}\x1b[K" if self.is_terminal else f"{text}\n")
        sys.stderr.flush()

    def end(self):
        if self.is_terminal:
            sys.stderr.write("\r\x1b[K")


def measure(record, plan, words):
    """plan: [(name, function that gives a sample)]; a name ending in `!` is measured in one round only. True when all
    rounds are there."""
    runs = {name.rstrip("!"): run for name, run in plan}
    wanted = {name.rstrip("!"): 1 if name.endswith("!") else words.rounds for name, _ in plan}
    start, progress = time.monotonic(), Progress()

    def expected(name):
        known = [run["seconds"] for run in record.runs.values()]
        return record.runs[name]["seconds"] if name in record.runs else sum(known) / len(known) if known else 0

    while True:
        left = {name: wanted[name] - record.count(name) for name in runs if wanted[name] > record.count(name)}
        if not left:
            break
        fewest = min(record.count(name) for name in left)
        turn = [name for name in left if record.count(name) == fewest]
        name = turn[-1] if fewest % 2 else turn[0]
        if words.seconds and time.monotonic() - start + expected(name) > words.seconds:
            break
        n_all, n_left = sum(wanted.values()), sum(left.values())
        progress.show(f"run {n_all - n_left + 1} of {n_all}: {name}, about "
                      f"{minutes(sum(n * expected(each) for each, n in left.items()))} left")
        before = time.monotonic()
        record.add(name, runs[name](), round(time.monotonic() - before, 2))
    progress.end()
    if left:
        again = "go on with --append" if record.path else "without --json there is no going on"
        print(f"stopped after {words.seconds:g} s with {sum(left.values())} runs left: {again}", file=sys.stderr)
    return not left
