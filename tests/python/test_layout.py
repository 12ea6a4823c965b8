"""What the package reads out of quern.h is what the C compiler makes of it, and all of it."""

import ctypes
import inspect
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from rig import SOURCE, quern
from quern._header import Header
from quern._library import header, lib

C_NAMES = {
    ctypes.c_bool: "bool",
    ctypes.c_char: "char",
    ctypes.c_int32: "int32_t",
    ctypes.c_uint32: "uint32_t",
    ctypes.c_int64: "int64_t",
    ctypes.c_uint64: "uint64_t",
    ctypes.c_float: "float",
    ctypes.c_double: "double",
    ctypes.c_void_p: "void *",
    ctypes.c_char_p: "char *",
}
# What the compiler calls a field: enums count as the integers that they are.
KINDS = """
#define KIND(x) _Generic((x), bool: "bool", char: "char", int32_t: "int32_t", \\
    uint32_t: "uint32_t", int64_t: "int64_t", uint64_t: "uint64_t", float: "float", \\
    double: "double", default: "pointer")
"""


def structs():
    return {n: t for n, t in header.types.items() if getattr(t, "_fields_", None)}


def compile_c(lines, *flags, text="#include <quern.h>"):
    """Compiles a program that includes quern.h, and returns the lines that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "a.c"), Path(folder, "a")
        source.write_text("\n".join([text, "#include <stdio.h>", KINDS, *lines]))
        cc = [os.environ.get("CC", "cc"), "-std=c17", f"-I{SOURCE}/include", *flags]
        subprocess.run([*cc, source, "-o", program], check=True, capture_output=True)
        if "-c" in flags:
            return []
        done = subprocess.run([program], check=True, capture_output=True, text=True)
        return done.stdout.splitlines()


def kind_of(made):
    """The same name for what ctypes has."""
    if hasattr(made, "_length_"):
        made = made._type_
    for kind, name in C_NAMES.items():
        if made is kind and "*" not in name:
            return name
    return "pointer"


def c_type(made):
    """A type of ctypes as C spells it, without const."""
    if made in C_NAMES:
        return C_NAMES[made]
    for name, known in header.types.items():
        if made is known:
            return name + (" *" if name.endswith("_fn") else "")
    return c_type(made._type_) + " *"


# What Python programs say in another way, and what they cannot say.
LEFT_OUT = {
    "qn_engine_opts": "cache_use plans profile_text prefill_plans decode_plans prefill_capacity "
    "decode_capacity split shares rank_timeout_ms",
    "qn_session_opts": "share trace",
    "qn_batch_opts": "trace",
    "qn_sample_opts": "flags",
    "qn_generate_opts": "sample logits_fn draft_fn naive flags",
    "qn_chat_opts": "prompt generate keeps_nothing token_fn like max_grammar_steps "
    "max_token_steps culprit",
    "qn_chat_prompt_opts": "no_generation_prompt kwargs progress",
    "qn_grammar_opts": "",
}


def parameters(kind):
    return set(inspect.signature(kind).parameters)


class Names(unittest.TestCase):
    def test_options_of_the_library_have_names_here(self):
        for struct, kind in (
            ("qn_engine_opts", quern.Model),
            ("qn_session_opts", quern.Session),
            ("qn_batch_opts", quern.Batch),
            ("qn_sample_opts", quern.Sampling),
            ("qn_generate_opts", quern.Options),
            ("qn_chat_opts", quern.ChatOptions),
            ("qn_chat_prompt_opts", quern.ChatOptions),
            ("qn_grammar_opts", quern.Grammar),
        ):
            fields = {
                name
                for name, _ in header.types[struct]._fields_
                if not name.startswith("n_") or name in ("n_threads", "n_top")
            }
            fields -= {name for name in fields if name.endswith("_arg")} | {"size", "stop"}
            told = f"{struct} has fields that quern.{kind.__name__} lacks: add them there, or here"
            self.assertEqual(fields - parameters(kind), set(LEFT_OUT[struct].split()), told)


class Layout(unittest.TestCase):
    def test_structs_are_those_of_the_compiler(self):
        lines, want = ["int main(void) {"], []
        for name, struct in structs().items():
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            want.append(f"{name} {ctypes.sizeof(struct)}")
            for field, kind in struct._fields_:
                at = getattr(struct, field)
                x = f"(({name} *)0)->{field}"
                item = f"{x}[0]" if hasattr(kind, "_length_") else x
                lines.append(
                    f'printf("{name}.{field} %zu %zu %s\\n", offsetof({name}, {field}), '
                    f"sizeof({x}), KIND({item}));"
                )
                want.append(f"{name}.{field} {at.offset} {at.size} {kind_of(kind)}")
        got = compile_c([*lines, "}"])
        # The compiler's enums without negative values are unsigned.
        enums = re.compile(r" uint32_t$")
        got = [enums.sub(" int32_t", line) for line in got]
        self.assertEqual(got, [enums.sub(" int32_t", line) for line in want])
        self.assertGreater(len(got), 400)

    def test_constants_are_those_of_the_compiler(self):
        lines = [f'printf("{n} %d\\n", (int){n});' for n in header.constants]
        got = compile_c(["int main(void) {", *lines, "}"])
        self.assertEqual(got, [f"{n} {v}" for n, v in header.constants.items()])
        self.assertEqual(header.constants["QN_STOPPED"], 9)

    def test_functions_take_what_the_compiler_expects(self):
        """Declares every function again as ctypes has it; the compiler compares both. ctypes knows
        neither const nor the names of enums, so they are taken out of the header first."""
        text = re.sub(r"//.*", "", (SOURCE / "include/quern.h").read_text())
        enums = "|".join(re.findall(r"typedef enum (\w+)", text))
        text = re.sub(rf"\b(?:{enums})\b(?!\s*[{{;])", "int", text)
        text = re.sub(r"\bconst\b", "", text)
        lines = []
        for name, (result, arguments) in header.functions.items():
            back = "void" if result is None else c_type(result)
            lines.append(f"{back} {name}({', '.join(map(c_type, arguments)) or 'void'});")
        compile_c(lines, "-c", text=text)
        self.assertGreater(len(lines), 150)
        wrong = "qn_status qn_session_mark(qn_session *session, int32_t n, qn_err *err);"
        with self.assertRaises(subprocess.CalledProcessError):
            compile_c([wrong], "-c", text=text)

    def test_functions_are_all_that_the_library_has(self):
        out = subprocess.run(
            ["nm", "-D", "--defined-only", lib.place], check=True, capture_output=True, text=True
        )
        symbols = {line.split()[-1].split("@")[0] for line in out.stdout.splitlines()}
        self.assertEqual(symbols, set(header.functions))

    def test_what_is_not_understood_is_refused(self):
        version = (
            "#define QN_VERSION_MAJOR 0\n#define QN_VERSION_MINOR 1\n#define QN_VERSION_PATCH 0\n"
        )
        for text in (
            "QN_API int qn_f(int (*g)(void));",
            "typedef struct qn_s { int a : 3; } qn_s;",
            "typedef union qn_u { int a; } qn_u;",
            "extern int qn_state;",
        ):
            with self.assertRaises(SyntaxError, msg=text):
                Header(version + text)

    def test_versions(self):
        self.assertEqual(quern.__version__, quern.library_version)
        self.assertRegex(quern.__version__, r"^\d+\.\d+\.\d+$")


if __name__ == "__main__":
    unittest.main()
