"""The version of the package is that of the header it carries; all else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

header = Path(__file__).with_name("quern").joinpath("quern.h").read_text(encoding="ascii")
numbers = re.findall(r"^#define QN_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.M)
setup(version=".".join(numbers))
