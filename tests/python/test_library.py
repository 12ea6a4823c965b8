"""How the package finds the library, what it refuses, how it is installed, and its types."""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from rig import DRAFT, SOURCE, quern

PACKAGE = SOURCE / "python/quern"
USES = f"import quern; print(quern.library_path); quern.Model({str(DRAFT)!r}).tokenize('x')"


class Rig(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = Path(self.folder.name).resolve()

    def python(self, code, path, **environment):
        """Exit code and output of a program; without QUERN_LIBRARY unless it is given."""
        variables = {k: v for k, v in os.environ.items() if k != "QUERN_LIBRARY"}
        variables.update(environment, PYTHONPATH=str(path))
        done = subprocess.run(
            [sys.executable, "-c", code], env=variables, cwd=self.at, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    def copy_package(self, to):
        shutil.copytree(PACKAGE, to / "quern")  # with the header that the link leads to
        return to

    def fake(self, name, body):
        source = self.at / "fake.c"
        source.write_text(body)
        cc = os.environ.get("CC", "cc")
        subprocess.run([cc, "-shared", "-fPIC", source, "-o", self.at / name], check=True)
        return str(self.at / name)


class Finding(Rig):
    def test_beside_the_package(self):
        path = self.copy_package(self.at / "here")
        beside = path / "quern/libquern.so.0"
        beside.symlink_to(quern.library_path)
        self.assertEqual(self.python(USES, path), (0, f"{beside}\n"))

    def test_in_the_prefix(self):
        path = self.copy_package(self.at / "lib/python3/dist-packages")
        library = self.at / "lib/libquern.so.0"
        library.symlink_to(quern.library_path)
        self.assertEqual(self.python(USES, path), (0, f"{library}\n"))
        there = self.at / "elsewhere.so"
        there.symlink_to(quern.library_path)
        got = self.python(USES, path, QUERN_LIBRARY=str(there))  # it wins
        self.assertEqual(got, (0, f"{there}\n"))

    def test_by_the_system(self):
        path = self.copy_package(self.at / "here")
        (self.at / "libquern.so.0").symlink_to(quern.library_path)
        got = self.python(USES, path, LD_LIBRARY_PATH=str(self.at))
        self.assertEqual(got, (0, "libquern.so.0\n"))

    def test_what_is_not_there(self):
        for variables, words in (
            (
                {"QUERN_LIBRARY": "/no/libquern.so"},
                ["/no/libquern.so", "which QUERN_LIBRARY names"],
            ),
            ({"QUERN_LIBRARY": str(SOURCE / "README.md")}, ["README.md", "QUERN_LIBRARY"]),
        ):
            code, out = self.python("import quern", SOURCE / "python", **variables)
            self.assertEqual(code, 1)
            for word in ["ImportError", *words]:
                self.assertIn(word, out)


class Versions(Rig):
    def refused(self, library):
        code, out = self.python("import quern", SOURCE / "python", QUERN_LIBRARY=library)
        self.assertEqual(code, 1, out)
        self.assertIn("ImportError: quern: ", out)
        return out

    def test_versions_that_do_not_fit(self):
        major, minor, _ = map(int, quern.__version__.split("."))
        for version in (f"{major + 1}.0.0", f"{major}.{minor - 1}.9"):
            body = f'const char *qn_version(void) {{ return "{version}"; }}'
            out = self.refused(self.fake("a.so", body))
            self.assertIn(quern.__version__, out)
            self.assertIn(f"a.so is {version}", out)

    def test_what_is_not_libquern(self):
        self.assertIn("is it libquern?", self.refused(self.fake("a.so", "int x;")))
        odd = 'const char *qn_version(void) { return "new"; }'
        self.assertIn("is it libquern?", self.refused(self.fake("a.so", odd)))
        hollow = f'const char *qn_version(void) {{ return "{quern.__version__}"; }}'
        self.assertIn("has no function qn_", self.refused(self.fake("a.so", hollow)))


class Installing(Rig):
    def test_pip(self):
        wanted = ("pip", "setuptools", "wheel")
        if any(subprocess.run([sys.executable, "-c", f"import {w}"]).returncode for w in wanted):
            self.skipTest("pip, setuptools and wheel are not installed")
        (self.at / "python").mkdir()  # pip would write into the source
        self.copy_package(self.at / "python")
        for name in ("pyproject.toml", "setup.py"):
            shutil.copy(SOURCE / "python" / name, self.at / "python")
        options = (
            "--quiet --no-index --no-build-isolation --no-deps --no-warn-script-location".split()
        )
        subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "pip", "install", *options]
            + ["--disable-pip-version-check", "--root-user-action=ignore"]
            + ["--target", self.at / "site", self.at / "python"],
            check=True,
            env={**os.environ, "PYTHONPATH": "", "HOME": str(self.at)},
        )
        got = self.python(USES, self.at / "site", QUERN_LIBRARY=quern.library_path)
        self.assertEqual(got, (0, f"{quern.library_path}\n"))
        self.assertTrue((self.at / "site/quern/py.typed").exists())
        info = list(self.at.glob("site/quern-*.dist-info"))
        self.assertEqual([path.name for path in info], [f"quern-{quern.__version__}.dist-info"])

    def test_python_3_9_reads_it(self):
        for path in PACKAGE.glob("*.py"):
            ast.parse(path.read_text(), path.name, feature_version=(3, 9))


PROGRAM = """
import quern
model = quern.Model("a.gguf", n_threads=2)
with model.session() as session:
    text: str = session.generate("x", max_tokens=3).text
    for event in session.stream("x"):
        number: int = event.position
chat = model.chat("Be kind.")
reply: quern.Reply = chat.ask("x")
async def work() -> None:
    async for part in chat.stream("x"):
        kind: str = part.kind
"""
WRONG = ["quern.Model(3)", "quern.Sampling(temprature=1)", "x: int = model.name", "model.sesion()"]


class Types(Rig):
    def mypy(self, *arguments):
        if subprocess.run([sys.executable, "-c", "import mypy"], capture_output=True).returncode:
            self.skipTest("mypy is not installed")
        options = "--strict --no-error-summary --hide-error-context --python-version 3.9".split()
        done = subprocess.run(
            [sys.executable, "-m", "mypy", *options, *arguments],
            env={**os.environ, "MYPYPATH": str(SOURCE / "python")},
            cwd=self.at,
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr

    def test_the_package_and_programs(self):
        (self.at / "program.py").write_text(PROGRAM)
        self.assertEqual(self.mypy(PACKAGE, "program.py"), "")
        (self.at / "wrong.py").write_text(PROGRAM + "\n".join(WRONG))
        self.assertEqual(self.mypy("wrong.py").count("error:"), len(WRONG))


if __name__ == "__main__":
    unittest.main()
