"""What the scripts of this folder share: running quern and others, medians, pictures."""
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def fail(message):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {message}")


def find_quern(given):
    path = pathlib.Path(given) if given else HERE.parent / "build" / "quern"
    if not path.is_file():
        fail(f"{path} is not there: build it, or name another with --quern")
    return str(path)


def run_json(command):
    """The JSON that a command prints; a command that fails ends the script with its last words."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or ["no message"]
        fail(f"{command[0]}: exit code {done.returncode}: {words[-1]}")
    try:
        return json.loads(done.stdout)
    except ValueError:
        fail(f"{command[0]}: printed no JSON, but {done.stdout[:80]!r}")


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


# --- peers: name, and a function (model, prompt, tokens, depths, threads) -> {test: tokens/s} ---

def test_name(test, depth):
    return test if depth == 0 else f"{test} at {depth}"


class NodePeer:
    """node-llama-cpp from npm, in a folder that has it or in a temporary one."""

    def __init__(self, folder):
        self.own = None if folder else tempfile.mkdtemp(prefix="quern-peer-")
        self.folder = pathlib.Path(folder or self.own)
        self.package = self.folder / "node_modules" / "node-llama-cpp"
        if not self.package.is_dir():
            print(f"installing node-llama-cpp into {self.folder}", file=sys.stderr)
            command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(self.folder),
                       "node-llama-cpp"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                self.close()
                fail(f"npm: {done.stderr.strip().splitlines()[-1:]}")
        version = json.loads((self.package / "package.json").read_text())["version"]
        self.name = f"node-llama-cpp {version}"

    def run(self, script, model, *words):
        """The JSON that a script prints, given node-llama-cpp, the model and words."""
        return run_json(["node", HERE / script, self.package / "dist" / "index.js", os.path.abspath(model), *words])

    def measure(self, model, prompt, tokens, depths, threads):
        return self.run("peer.mjs", model, prompt, tokens, ",".join(str(d) for d in depths), threads)

    def close(self):
        if self.own:
            shutil.rmtree(self.own, ignore_errors=True)


class LlamaBenchPeer:
    """A llama-bench by path."""

    def __init__(self, path):
        self.path = path
        self.name = "llama.cpp"

    def measure(self, model, prompt, tokens, depths, threads):
        rows = run_json([self.path, "-m", model, "-p", prompt, "-n", tokens, "-d", ",".join(str(d) for d in depths),
                         "-t", threads, "-r", 1, "-ngl", 0, "-o", "json"])
        speeds = {}
        for row in rows:
            depth = row.get("n_depth", 0)
            if row["n_gen"] == 0 and depth == 0:
                speeds["prefill"] = row["avg_ts"]
            elif row["n_prompt"] == 0:
                speeds[test_name("decode", depth)] = row["avg_ts"]
        return speeds

    def close(self):
        pass


def open_peer(text):
    """`node`, `node:FOLDER`, or the path of a llama-bench."""
    kind, _, rest = text.partition(":")
    if kind == "node":
        return NodePeer(rest)
    if not os.access(text, os.X_OK):
        fail(f"peer '{text}': want node, node:FOLDER or the path of a llama-bench")
    return LlamaBenchPeer(text)


# --- bars ---

COLOURS = ["#2f6db5", "#2e8b57", "#c2571a", "#8e4fa8"]


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


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
