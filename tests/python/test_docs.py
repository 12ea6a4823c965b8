"""The examples of docs/python.md are one program, which prints what stands below them."""

import contextlib
import io
import os
import re
import unittest

from rig import SOURCE

BLOCK = re.compile(r"^```(python|)\n(.*?)^```$", re.M | re.S)


def examples(text):
    """Each example with what it prints: the block without a language that follows it."""
    blocks = BLOCK.findall(text)
    for (kind, code), (next_kind, output) in zip(blocks, blocks[1:] + [("python", "")]):
        if kind == "python":
            yield code, output if next_kind == "" else ""


class Docs(unittest.TestCase):
    maxDiff = None

    def test_examples_of_the_guide(self):
        os.chdir(SOURCE)
        names, n = {}, 0
        for code, want in examples((SOURCE / "docs/python.md").read_text()):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "docs/python.md", "exec"), names)
            self.assertEqual(printed.getvalue(), want, f"docs/python.md:\n{code}")
            n += 1
        self.assertGreater(n, 10)

    def test_the_guide_names_what_there_is(self):
        import quern

        text = (SOURCE / "docs/python.md").read_text()
        for name in re.findall(r"`quern\.(\w+)", text):
            self.assertTrue(hasattr(quern, name), name)
        for name in re.findall(r"`(\w+Error)`", text):
            self.assertTrue(issubclass(getattr(quern, name), quern.QuernError), name)


if __name__ == "__main__":
    unittest.main()
