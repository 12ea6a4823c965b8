"""quern.h as ctypes: its structs, enums, callbacks and functions are read from the header itself.

The package carries the header, so nothing is written down twice and nothing can go stale: what the
C compiler makes of every struct is compared with what this module makes of it by the tests
(tests/python/test_layout.py). It reads the C that quern.h is written in, and refuses the rest.
"""

import ctypes
import re
from typing import Any, Dict, List, NamedTuple, Tuple

_SCALARS: Dict[str, Any] = {
    "bool": ctypes.c_bool,
    "char": ctypes.c_char,
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}

_STRUCT = re.compile(r"typedef struct (\w+)(?: \{(.*)\} \1| \1)", re.S)
_ENUM = re.compile(r"(?:typedef )?enum(?: \w+)? \{(.*)\}(?: (\w+))?", re.S)
_FUNCTION = re.compile(r"(typedef |QN_API )(?:QN_MUST_CHECK )?(.*?)(\w+)\((.*)\)", re.S)
_DECLARATOR = re.compile(r"(\**)\s*(?:const\s*)?(\**)\s*(\w+)\s*(?:\[(\d+)\])?")
_BASE = re.compile(r"(?:const\s+)?(?:struct\s+)?(\w+)\s*(?:const\b)?\s*(.*)", re.S)


class Function(NamedTuple):
    """What ctypes has to know of a function of the library."""

    result: Any
    arguments: List[Any]


class Header:
    """What is declared: `types` and `functions` by name, the values of `constants`, and the names
    of those of each of the `enums`."""

    def __init__(self, text: str) -> None:
        self.types: Dict[str, Any] = {}
        self.functions: Dict[str, Function] = {}
        self.constants: Dict[str, int] = {}
        self.enums: Dict[str, List[str]] = {}
        self._fields: Dict[str, str] = {}
        self.version = _version(text)
        for declaration in _declarations(text):
            self._declare(declaration)
        # Fields come last: structs point to callbacks and structs that are declared below them.
        for name, body in self._fields.items():
            self.types[name]._fields_ = self._struct_fields(body)

    def _declare(self, text: str) -> None:
        struct = _STRUCT.fullmatch(text)
        enum = _ENUM.fullmatch(text)
        function = _FUNCTION.fullmatch(text)
        if struct:
            self._struct(struct.group(1))
            if struct.group(2) is not None:
                self._fields[struct.group(1)] = struct.group(2)
        elif enum:
            names = self._enumerators(enum.group(1))
            if enum.group(2):
                self.types[enum.group(2)] = ctypes.c_int
                self.enums[enum.group(2)] = names
        elif function:
            kind, result, name, arguments = function.groups()
            made = Function(self._result(result), self._arguments(arguments))
            if kind == "QN_API ":
                self.functions[name] = made
            else:
                self.types[name] = ctypes.CFUNCTYPE(made.result, *made.arguments)
        elif not re.fullmatch(r"struct \w+", text):
            raise SyntaxError(f"quern.h: this declaration is not understood: {text}")

    def _struct(self, name: str) -> Any:
        if name not in self.types:
            self.types[name] = type(name, (ctypes.Structure,), {})
        return self.types[name]

    def _enumerators(self, body: str) -> List[str]:
        value, names = -1, []
        for item in body.split(","):
            name, _, given = (part.strip() for part in item.partition("="))
            if not name:
                continue
            if given and not re.fullmatch(r"-?\d+", given):
                continue  # an expression, such as a limit, which nobody here needs
            value = int(given) if given else value + 1
            self.constants[name] = value
            names.append(name)
        return names

    def _struct_fields(self, body: str) -> List[Tuple[str, Any]]:
        fields = []
        for line in filter(None, (part.strip() for part in body.split(";"))):
            base, declarators = self._base(line)
            for declarator in declarators.split(","):
                stars, name, count = _declarator(declarator)
                made = self._pointer(base, stars)
                fields.append((name, made * int(count) if count else made))
        return fields

    def _arguments(self, text: str) -> List[Any]:
        if text.strip() == "void":
            return []
        made = []
        for argument in text.split(","):
            base, declarator = self._base(argument.strip())
            stars = _declarator(declarator)[0]
            # Texts that go in may be `bytes`; those in structs and results are pointers, whose
            # sizes stand beside them.
            is_text = base == "char" and stars == 1
            made.append(ctypes.c_char_p if is_text else self._pointer(base, stars))
        return made

    def _result(self, text: str) -> Any:
        base, stars = self._base(text.strip() + " ")
        return None if base == "void" and not stars else self._pointer(base, stars.count("*"))

    def _base(self, text: str) -> Tuple[str, str]:
        match = _BASE.fullmatch(text)
        if not match:
            raise SyntaxError(f"quern.h: this type is not understood: {text}")
        return match.group(1), match.group(2)

    def _pointer(self, base: str, stars: int) -> Any:
        made: Any
        if base == "void":
            made, stars = ctypes.c_void_p, stars - 1
        elif base.endswith("_fn"):
            made, stars = self.types[base], stars - 1  # ctypes has no functions, only pointers
        else:
            made = _SCALARS.get(base) or self.types.get(base) or self._struct(base)
        for _ in range(stars):
            made = ctypes.POINTER(made)
        return made


def _version(text: str) -> Tuple[int, int, int]:
    found = re.findall(r"^#define QN_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", text, re.M)
    major, minor, patch = (int(number) for number in found)
    return major, minor, patch


def _declarations(text: str) -> List[str]:
    """The declarations of a header without comments, preprocessor lines and extra blanks."""
    text = re.sub(r"//[^\n]*", "", text)
    statuses = "".join(f"QN_{name}, " for name in re.findall(r"^ +X\((\w+),", text, re.M))
    text = re.sub(
        r"^QN_STATUS_MAP\(.*$|^ *QN_STATUS_MAP\(QN_STATUS_ENUM\)$", statuses, text, flags=re.M
    )
    text = re.sub(r"^#(?:.*\\\n)*.*$", "", text, flags=re.M)
    text = re.sub(r"\s+", " ", text.replace('extern "C" {', ""))
    made, depth, begin = [], 0, 0
    for match in re.finditer(r"[{};]", text):
        depth += {"{": 1, "}": -1, ";": 0}[match.group()]
        if match.group() == ";" and depth == 0:
            made.append(text[begin : match.start()].strip())
            begin = match.end()
    return made


def _declarator(text: str) -> Tuple[int, str, str]:
    match = _DECLARATOR.fullmatch(text.strip())
    if not match:
        raise SyntaxError(f"quern.h: this declaration is not understood: {text}")
    before, after, name, count = match.groups()
    return len(before) + len(after), name, count
