"""What the tests of the Python package share. With QUERN_TEST_NUMPY=0 numpy cannot be imported."""

import gc
import os
import subprocess
import sys
import textwrap
import unittest
from pathlib import Path

if os.environ.get("QUERN_TEST_NUMPY") == "0":
    sys.modules["numpy"] = None

import quern  # noqa: E402

SOURCE = Path(__file__).resolve().parents[2]
MINI = SOURCE / "models/quern-mini-Q8_0.gguf"
DRAFT = SOURCE / "models/quern-draft-Q8_0.gguf"
HYBRID = SOURCE / "models/quern-hybrid-Q8_0.gguf"
PROMPT = "Once upon a time"


def has_numpy():
    try:
        import numpy  # noqa: F401
    except ImportError:
        return False
    return True


class Case(unittest.TestCase):
    """One small model for all tests of a class."""

    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.model = quern.Model(DRAFT, n_threads=1)

    @classmethod
    def tearDownClass(cls):
        cls.model.close()

    def check(self, error, *texts):
        """assertRaises, with what the message must contain."""
        case = self

        class Raised:
            def __enter__(self):
                return self

            def __exit__(self, kind, raised, _):
                case.assertIsNotNone(raised, f"nothing was raised; {error.__name__} was expected")
                if not isinstance(raised, error):
                    return False
                for text in texts:
                    case.assertIn(text, str(raised))
                return True

        return Raised()

    def run_script(self, script):
        """What a Python program prints; it must end well, and say nothing on stderr."""
        head = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom rig import *\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", head + textwrap.dedent(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,  # ends what hangs
        )
        self.assertEqual((done.stderr, done.returncode), ("", 0), done.stdout)
        return done.stdout


def is_alive(reference):
    gc.collect()
    return reference() is not None
