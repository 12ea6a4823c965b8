"""What the scripts of this folder share: running quern and others, medians, pictures."""
import array
import html
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import typing

HERE = pathlib.Path(__file__).resolve().parent


def fail(message):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {message}")


def find_quern(given):
    path = pathlib.Path(given) if given else HERE.parent / "build" / "quern"
    if not path.is_file():
        fail(f"{path} is not there: build it, or name another with --quern")
    return str(path.resolve())  # a bare name would be looked for in PATH


def run(command):
    """What a command prints; one that fails ends the script with its last words."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    except OSError as error:
        fail(f"{command[0]}: {error.strerror}")
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or ["no message"]
        fail(f"{command[0]}: exit code {done.returncode}: {words[-1]}")
    return done.stdout


def run_json(command):
    text = run(command)
    try:
        return json.loads(text)
    except ValueError:
        fail(f"{command[0]}: printed no JSON, but {text[:80]!r}")


def find_model(path):
    if not os.path.exists(path):
        fail(f"{path} is not there: name a model's file, or let `quern synth SHAPE TYPE OUT` make one of random weights")
    return path


def bench(quern, model, *options):
    return run_json([quern, "bench", model, "--json", *options])


def row_of(report, test, depth=0):
    for row in report["results"]:
        if row["test"] == test and row["depth"] == depth:
            return row
    return fail(f"no row {test} at depth {depth}")


def median(values):
    values = [v for v in values if v is not None]
    return statistics.median(values) if values else None


def spread(values, form="{:.2f}"):
    """Median, and least to most in brackets."""
    values = [v for v in values if v is not None]
    if not values:
        return "-"
    return f"{form.format(median(values))} ({form.format(min(values))} to {form.format(max(values))})"


def quartiles(values, form="{:.2f}"):
    """Median, and the first to the third quartile in brackets."""
    if len(values) < 2:
        return spread(values, form)
    first, middle, third = statistics.quantiles(values, method="inclusive")
    return f"{form.format(middle)} ({form.format(first)} to {form.format(third)})"


def synth(quern, folder, shape, kind):
    path = pathlib.Path(folder) / f"{shape}-{kind}.gguf"
    if not path.is_file():
        done = subprocess.run([quern, "synth", shape, kind, str(path)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            fail(done.stderr.strip())
    return str(path)


class BusyLoop:
    """Another program that takes one core for as long as the block runs."""

    def __enter__(self):
        self.process = subprocess.Popen(["sh", "-c", "while :; do :; done"])
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def beside_busy_loop(quern, model, rounds, *options):
    """Speeds of decode, alone and beside a busy loop, measured in turn."""
    quiet, busy = [], []

    def measure():
        return row_of(bench(quern, model, "-p", 1, "-r", 1, *options), "decode")["tps"]

    for _ in range(rounds):
        quiet.append(measure())
        with BusyLoop():
            busy.append(measure())
    return quiet, busy


# --- programs, each with a name and measure(model, test, threads) -> {column: number}, without what it cannot do ---

class Test(typing.NamedTuple):
    """kind: prefill, decode or open. Opening is told in seconds, the others in tokens/s of all sequences."""
    kind: str
    n: int = 0
    depth: int = 0
    sequences: int = 1

    @property
    def name(self):
        words = {"prefill": f"prefill {self.n}", "decode": "decode", "open": "open"}[self.kind]
        words = words if self.sequences == 1 else f"{self.sequences} sequences"
        return words if self.depth == 0 else f"{words} at {self.depth}"


class Quern:
    """A quern program in one of its modes."""

    def __init__(self, path, mode="exact", cache=None, label="quern"):
        self.path, self.mode, self.name = find_quern(path), mode, f"{label} {mode}"
        self.cache = ["--cache-dir", cache] if cache else []

    def bench(self, model, *options):
        return bench(self.path, model, "--numerics", self.mode, "-r", 1, *self.cache, *options)

    def measure(self, model, test, threads):
        if test.kind == "open":
            opening = self.bench(model, "-p", 1, "-n", 1, "-t", threads, "--open")["open"]
            return {"open warm": opening["warm_s"], "open cold": opening["cold_s"]}
        sizes = ("-p", test.n, "-n", 1) if test.kind == "prefill" else ("-p", 1, "-n", test.n)
        report = self.bench(model, *sizes, "-d", test.depth, "-b", test.sequences, "-t", threads)
        return {test.name: row_of(report, test.kind, test.depth)["tps"]}

    def logits(self, model, ids, n_rows, reference=False):
        """Of the last n_rows tokens, one list after another."""
        with tempfile.TemporaryDirectory(prefix="quern-logits-") as folder:
            path = os.path.join(folder, "logits.safetensors")
            run([self.path, "logits", model, "--ids", ",".join(str(i) for i in ids), "--all", "-o", path,
                 *(["--ref"] if reference else ["--numerics", self.mode])])
            data = pathlib.Path(path).read_bytes()
        size = int.from_bytes(data[:8], "little")
        place = json.loads(data[8:8 + size])["logits"]
        vocabulary = place["shape"][1]
        values = array.array("f", data[8 + size:][place["data_offsets"][0]:place["data_offsets"][1]])
        return [values[i * vocabulary:(i + 1) * vocabulary] for i in range(len(ids) - n_rows, len(ids))]

    def close(self):
        pass


def version_of(quern):
    """What a program tells of itself, empty where it does not: version, commit, compiler, level."""
    text = run([quern, "--version"])
    told = {key: re.search(pattern, text, re.M) for key, pattern in (
        ("version", r"^quern (\S+)"), ("commit", r"^commit +(\S+)"), ("compiler", r"^compiler +(.+)"),
        ("level", r"^CPU level +(\S+)"))}
    return {key: found.group(1) if found else "" for key, found in told.items()}


class NodePeer:
    """node-llama-cpp from npm, in a folder that has it or in a temporary one."""

    def __init__(self, folder):
        self.own = None if folder else tempfile.mkdtemp(prefix="quern-peer-")
        self.folder = pathlib.Path(folder or self.own)
        self.package = self.folder / "node_modules" / "node-llama-cpp"
        if not self.package.is_dir():
            self.install()
        version = json.loads((self.package / "package.json").read_text())["version"]
        self.name = f"node-llama-cpp {version}"

    def install(self):
        print(f"installing node-llama-cpp into {self.folder}", file=sys.stderr)
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(self.folder),
                   "node-llama-cpp"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            self.close()
            fail(f"npm: {error.strerror}")
        if done.returncode != 0:
            self.close()
            fail(f"npm: {done.stderr.strip().splitlines()[-1:]}")

    def run(self, script, model, *words):
        """The JSON that a script prints, given node-llama-cpp, the model and words."""
        return run_json(["node", HERE / script, self.package / "dist" / "index.js", os.path.abspath(model), *words])

    def measure(self, model, test, threads):
        if test.kind == "open":
            return {}
        report = self.run("peer.mjs", model, test.kind, test.n, test.depth, test.sequences, threads)
        return {test.name: report["tps"]}

    def logits(self, model, ids, n_rows):
        """Logarithms of probabilities: logits but for a number added to a whole row."""
        return self.run("peer_logits.mjs", model, ",".join(str(i) for i in ids), n_rows)["rows"]

    def close(self):
        if self.own:
            shutil.rmtree(self.own, ignore_errors=True)


class LlamaBenchPeer:
    """A llama-bench by path. It runs one sequence, and tells no logits."""

    logits = None

    def __init__(self, path):
        self.path = path
        self.name = "llama.cpp"

    def measure(self, model, test, threads):
        if test.kind == "open" or test.sequences > 1:
            return {}
        sizes = ["-p", test.n, "-n", 0] if test.kind == "prefill" else ["-p", 0, "-n", test.n]
        rows = run_json([self.path, "-m", model, *sizes, "-d", test.depth, "-t", threads, "-r", 1, "-ngl", 0, "-o", "json"])
        return {test.name: row["avg_ts"] for row in rows}

    def close(self):
        pass


def open_peer(text):
    """`node`, `node:FOLDER`, or the path of a llama-bench."""
    kind, _, rest = text.partition(":")
    if kind == "node":
        return NodePeer(rest)
    if not os.access(text, os.X_OK) or not os.path.isfile(text):
        fail(f"peer '{text}': want node, node:FOLDER or the path of a llama-bench")
    return LlamaBenchPeer(text)


def relative_error(rows, reference):
    """Root mean square of the difference over that of the reference; a number added to a whole row does not count."""
    difference = size = 0.0
    for row, wanted in zip(rows, reference):
        if len(row) != len(wanted):
            fail(f"logits: {len(row)} of one program, {len(wanted)} of the reference")
        shift = (sum(row) - sum(wanted)) / len(row)
        middle = sum(wanted) / len(wanted)
        difference += sum((a - b - shift) ** 2 for a, b in zip(row, wanted))
        size += sum((b - middle) ** 2 for b in wanted)
    return (difference / size) ** 0.5 if size else None


# --- bars ---

COLOURS = ["#2f6db5", "#2e8b57", "#c2571a", "#8e4fa8"]


def escape(text):
    """As HTML and XML want it: markup escaped, no character that XML does not allow."""
    return html.escape("".join(c if c >= " " and c not in "\x7f\ufffe\uffff" and not "\ud800" <= c <= "\udfff" else "?"
                               for c in str(text)))


def draw_bars(path, title, note, groups):
    """groups: [(test, [(name, [speeds])])]. Each test has a scale of its own; whiskers are least and most."""
    left, width, bar, gap = 300, 340, 20, 26
    lines, y = [], 82
    for test, entries in groups:
        most = max(max(speeds) for _, speeds in entries)
        lines.append(f'<text x="24" y="{y + 15}" font-weight="600">{escape(test)}</text>')
        for i, (name, speeds) in enumerate(entries):
            end = left + median(speeds) / most * width
            low, high = (left + v / most * width for v in (min(speeds), max(speeds)))
            lines.append(f'<text x="{left - 10}" y="{y + 15}" text-anchor="end">{escape(name)}</text>'
                         f'<rect x="{left}" y="{y}" width="{end - left:.1f}" height="{bar}" rx="2" '
                         f'fill="{COLOURS[i % len(COLOURS)]}"/>'
                         f'<path d="M{low:.1f} {y + bar / 2}H{high:.1f}M{low:.1f} {y + 5}v{bar - 10}M{high:.1f} {y + 5}'
                         f'v{bar - 10}" stroke="#1d2733"/>'
                         f'<text x="{high + 8:.1f}" y="{y + 15}">{median(speeds):.1f} tokens/s, '
                         f'{median(speeds) / median(entries[-1][1]):.2f} x</text>')
            y += gap
        y += 16
    page = (f'<svg xmlns="http://www.w3.org/2000/svg" width="860" height="{y + 10}" viewBox="0 0 860 {y + 10}" '
            f'font-family="system-ui, sans-serif" font-size="13" fill="#1d2733">\n<title>{escape(title)}</title>\n'
            f'<rect width="860" height="{y + 10}" fill="#fff"/>\n'
            f'<text x="24" y="34" font-size="17" font-weight="600">{escape(title)}</text>\n'
            f'<text x="24" y="55" fill="#5a6675">{escape(note)}</text>\n' + "\n".join(lines) + "\n</svg>\n")
    pathlib.Path(path).write_text(page)
