"""bench/speed and bench/compare: pages, tables, going on in slices, errors; on programs that are made up."""
import contextlib
import html.parser
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
BENCH = HERE.parent.parent / "bench"
FAKE = str(HERE / "fake.py")
XHTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"
sys.path.insert(0, str(BENCH))
import page
import rounds
import tool

HOSTILE = '<script src="http://x.example/">&\x01\'"</svg>'


class Reader(html.parser.HTMLParser):
    """Tags as a browser sees them, and whether each end has its beginning."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> in {self.open}"
        self.open.pop()


class Scripts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """A page that several tests look at: full.html and full.json."""
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = cls.path("model & co.gguf")
        pathlib.Path(cls.model).write_bytes(b"GGUF")
        subprocess.run([sys.executable, "-B", str(BENCH / "speed"), "--quern", FAKE, "--model", cls.model, "-t", "2", "--page",
                        cls.path("full.html"), "--rounds", "2", "--peer", FAKE], capture_output=True, check=True)

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    def full(self):
        return rounds.Record.load(self.path("full.json"))

    def run_script(self, script, *words, code=0, **environment):
        done = subprocess.run([sys.executable, "-B", str(BENCH / script), *[str(w) for w in words]], capture_output=True,
                              text=True, check=False, env={**os.environ, **environment})
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def speed(self, *words, **more):
        return self.run_script("speed", "--quern", FAKE, "--model", self.model, "-t", "2", *words, **more)

    def compare(self, *words, **more):
        return self.run_script("compare", self.model, "--quern", FAKE, "-t", "2", *words, **more)

    def read(self, path):
        """The page as XML and as a browser reads it; it asks for nothing from elsewhere and runs nothing."""
        text = pathlib.Path(path).read_text(encoding="utf-8")
        reader = Reader()
        reader.feed(text)
        self.assertEqual(reader.open, [])
        self.assertNotIn("script", reader.tags)
        self.assertFalse({"link", "img", "iframe", "object", "image", "use"} & set(reader.tags))
        for name, value in reader.attributes:
            self.assertFalse(name.startswith("on") or name in ("href", "src", "xlink:href"), name)
            self.assertTrue(name == "xmlns" or "//" not in (value or ""), value)
        self.assertNotIn("url(", text)
        self.assertNotIn("@import", text)
        return xml.etree.ElementTree.fromstring(text.encode())

    def sections(self, tree):
        return {s.get("id"): s for s in tree.iter(f"{XHTML}section")}

    # --- the page ---

    def test_page_has_each_picture(self):
        sections = self.sections(self.read(self.path("full.html")))
        for name in ("roofline", "rows", "sequences", "depth", "threads", "peers", "error"):
            self.assertIn(name, sections)
            self.assertTrue(list(sections[name].iter(f"{SVG}svg")), name)
        text = "".join(sections["how"].itertext())
        for wanted in ("0123456789ab", "gcc 12.2.0", "avx512", "model & co.gguf", "llama.cpp", "--page", "2;"):
            self.assertIn(wanted, text)
        self.assertTrue(all(len(run["samples"]) == (1 if name.startswith("error/") else 2)
                            for name, run in self.full().runs.items()))

    def test_page_tells_the_numbers(self):
        record = self.full()
        record.runs["rows/exact/512"]["samples"] = [{"tps": 611.0}, {"tps": 633.0}, {"tps": 622.0}]
        sections = self.sections(xml.etree.ElementTree.fromstring(page.render([record]).encode()))
        self.assertIn("622 (611 to 633)", "".join(sections["rows"].itertext()))
        self.assertIn("622 tokens/s, 3.11 \u00d7", "".join(sections["peers"].itertext()))  # theirs: 200
        self.assertIn("1.0 \u00d7 10\u207b\u00b3", "".join(sections["error"].itertext()))
        roofline = "".join(sections["roofline"].itertext())
        self.assertIn("reading: 50.0 GB/s", roofline)
        self.assertIn("attention of decode at 4096", roofline)

    def test_points_of_the_roofline(self):
        record = rounds.Record({"shape": {"layers": 2, "heads": 4, "kv_heads": 2, "head_size": 8}})
        record.add("depth/exact/0", {"tps": 100, "rows": 1, "weight_bytes": 1e6, "state_bytes": 0, "int_ops": 2e6,
                                     "float_ops": 1e6}, 1)
        record.add("depth/exact/1024", {"tps": 50, "rows": 1, "weight_bytes": 1e6, "state_bytes": 1024 * 2 * 2 * 8 * 4,
                                        "int_ops": 2e6, "float_ops": 1e6}, 1)
        (step,) = page.step_points(record)
        self.assertAlmostEqual(step.intensity, 3)
        self.assertAlmostEqual(step.gops, 3e6 * 100 * 1e-9)
        (attention,) = page.attention_points(record)  # 4 operations for each head, value and token, 10 ms longer
        self.assertAlmostEqual(attention.intensity, 2)
        self.assertAlmostEqual(attention.gops, 4 * 2 * 4 * 8 * 1024 / 0.01 * 1e-9)
        record.runs["depth/exact/1024"]["samples"][0]["state_bytes"] /= 2  # a window in half of the layers
        self.assertEqual(page.attention_points(record), [])

    def quick(self, name, **more):
        self.speed("--page", self.path(f"{name}.html"), "--quick", "--seconds", "1e9", "--label", name, **more)
        return self.path(f"{name}.json")

    def test_two_records(self):
        before, after = self.quick("before"), self.quick("after", FAKE_SPEED="150")
        kept = rounds.Record.load(before).runs
        self.assertNotIn("depth/exact/8192", kept)
        self.assertTrue(all(len(run["samples"]) == 1 for run in kept.values()))
        done = self.run_script("speed", "--page", self.path("both.html"), "--from", before, "--from", after, "--growth")
        self.assertIn("| 512 |", done.stdout)
        sections = self.sections(self.read(self.path("both.html")))
        text = "".join(sections["changes"].itertext())
        self.assertIn("before", text)
        self.assertIn("1.50", text)
        self.assertNotIn("1.49", text)
        dashes = [p for p in sections["rows"].iter(f"{SVG}path") if p.get("stroke-dasharray")]
        self.assertEqual(len(dashes), 2)  # exact and fast of the first

    def test_hostile_names(self):
        record = self.full()
        record.about.update({key: HOSTILE for key in ("model", "label", "level", "commit", "command", "date", "threads")},
                            machine={"cpu": HOSTILE}, peers=[HOSTILE])
        record.runs = {name.replace("llama.cpp", HOSTILE): run for name, run in record.runs.items()}
        path = self.path("hostile.html")
        page.write(path, [record, record])
        sections = self.sections(self.read(path))
        self.assertIn(HOSTILE.replace("\x01", "?"), "".join(sections["peers"].itertext()))

    def test_odd_values(self):
        """Zeros, one point, and nothing at all are drawn, too."""
        record = rounds.Record({})
        self.assertEqual(set(self.sections(xml.etree.ElementTree.fromstring(page.render([record]).encode()))), {"how"})
        for name, value in (("rows/exact/1", 0.0), ("threads/decode/1", 5.0), ("depth/exact/0", 1e-9),
                            ("sequences/exact/8", 1e12)):
            record.add(name, {"tps": value}, 1)
        xml.etree.ElementTree.fromstring(page.render([record]).encode())

    # --- slices ---

    def test_goes_on_where_it_was(self):
        kept = self.path("slices.json")
        words = ("--peer", FAKE, "--rounds", "1", "--numerics", "exact", "--json", kept)
        done = self.compare(*words, "--seconds", "1e-9")
        self.assertIn("go on with --append", done.stderr)
        self.assertEqual(os.path.exists(kept), False)
        self.compare(*words)
        self.compare(*words, "--rounds", "2", "--append")
        runs = json.loads(pathlib.Path(kept).read_text())["runs"]
        self.assertEqual({len(run["samples"]) for run in runs.values()}, {2})

    def test_appends_only_to_its_like(self):
        kept = self.path("kept.json")
        self.compare("--peer", FAKE, "--rounds", "1", "--json", kept)
        done = self.compare("--peer", FAKE, "--rounds", "2", "--json", kept, "--append", code=1, FAKE_COMMIT="fedcba987654")
        self.assertIn("commit was '0123456789ab', and is 'fedcba987654'", done.stderr)
        self.assertIn("--json OUT", self.compare("--peer", FAKE, "--append", code=1).stderr)

    def test_every_other_round_runs_backwards(self):
        record, order = rounds.Record({}), []
        plan = [(name, lambda name=name: order.append(name) or {"x": 1}) for name in ("a", "b", "once!")]

        class Words:
            rounds, seconds = 3, None

        with contextlib.redirect_stderr(io.StringIO()) as told:
            self.assertTrue(rounds.measure(record, plan, Words))
        self.assertIn("run 7 of 7: b, about", told.getvalue())
        self.assertEqual(order, ["a", "b", "once!", "b", "a", "a", "b"])
        self.assertEqual([record.count(name) for name in ("a", "b", "once")], [3, 3, 1])

    # --- compare ---

    def test_compares_two_querns(self):
        older = self.path("older")
        pathlib.Path(older).write_text(f"#!/bin/sh\nFAKE_SPEED=125 FAKE_COMMIT=aaaaaaaaaaaa exec {sys.executable} {FAKE} \"$@\"\n")
        os.chmod(older, 0o755)
        words = ("--peer", f"quern:{older}", "-p", "512,256", "-d", "0,1024", "-b", "8", "--open", "--numerics", "exact",
                 "--rounds", "2", "--json", self.path("pairs.json"), "--append")
        done = self.compare(*words)
        lines = [line for line in done.stdout.splitlines() if "| quern exact |" in line]
        self.assertEqual(len(lines), 7)
        self.assertTrue(all(line.endswith("| 0.80 (0.80 to 0.80) |") for line in lines), lines)  # openings, too
        self.assertIn("quern aaaaaaa exact", done.stdout)
        done = self.compare(*words, "--least", "0.98", code=1)
        self.assertIn("decode at 1024, quern exact: 0.800 of the peer's speed, below 0.98", done.stderr)
        self.compare(*words, "--least", "0.79")

    def test_compares_with_llama_bench(self):
        done = self.compare("--peer", FAKE, "--rounds", "2", "-b", "8", "--svg", self.path("bars.svg"))
        self.assertIn("| decode | llama.cpp | 50.0 (50.0 to 50.0) | 1 |", done.stdout)
        self.assertIn("| decode | quern exact | 105.0 (105.0 to 105.0) | 2.10 (2.10 to 2.10) |", done.stdout)
        self.assertIn("| 8 sequences | quern exact |", done.stdout)
        xml.etree.ElementTree.parse(self.path("bars.svg"))

    def test_a_bare_name_is_a_file_here(self):
        os.symlink(FAKE, self.path("quern"))
        words = [sys.executable, "-B", str(BENCH / "compare"), self.model, "--quern", "quern", "--peer", FAKE, "--rounds", "1"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=self.folder.name)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_error_of_logits(self):
        self.assertEqual(tool.relative_error([[1.0, 2.0, 6.0]], [[0.0, 1.0, 5.0]]), 0)  # log-probabilities: shifted
        self.assertAlmostEqual(tool.relative_error([[-2.0, 2.0]], [[-1.0, 1.0]]), 1)

    # --- what goes wrong ---

    def test_errors_say_what_is_missing(self):
        missing = self.path("nothing")
        for script, words, wanted in (
                ("compare", (self.model, "--quern", missing), "build it, or name another with --quern"),
                ("compare", (missing, "--quern", FAKE, "--peer", FAKE), "name a model's file"),
                ("compare", (self.model, "--quern", FAKE, "--peer", missing), "want node, node:FOLDER"),
                ("speed", ("--quern", FAKE, "--model", missing, "--page", self.path("x.html")), "name a model's file"),
                ("speed", ("--from", missing), "it needs --page OUT.html or --growth"),
                ("speed", ("--from", missing, "--growth"), "No such file"),
                ("speed", ("--page", self.path("x.json"), "--quern", FAKE), "does not end in .json"),
                ("speed", ("--from", self.model, "--growth"), "no JSON")):
            done = self.run_script(script, *words, code=1)
            self.assertIn(wanted, done.stderr)
            self.assertNotIn("Traceback", done.stderr)
        done = self.speed("--page", self.path("x.html"), code=1, FAKE_FAIL="bench")
        self.assertIn("exit code 1: quern: bench: out of luck", done.stderr)

    def test_refuses_files_of_others(self):
        for text, wanted in (('{"format": 9}', "want format 1"), ("[]", "want format 1"),
                             ('{"format": 1, "about": {}, "runs": {"a": 3}}', "want a list of samples"),
                             ('{"format": 1, "about": {}, "runs": {"a": {"samples": [{"tps": "1"}]}}}', "want a number"),
                             ('{"format": 1, "runs": {}}', "missing")):
            pathlib.Path(self.path("odd.json")).write_text(text)
            done = self.run_script("speed", "--growth", "--from", self.path("odd.json"), code=1)
            self.assertIn(wanted, done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_help(self):
        for script in ("speed", "compare"):
            self.assertIn("--append", self.run_script(script, "--help").stdout)


unittest.main()
