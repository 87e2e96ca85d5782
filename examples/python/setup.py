"""In the wheel cuvmm_reader is a package, so that type checkers take its annotations (PEP 561)."""

import pathlib
import re

from setuptools import setup
from setuptools.command.build_py import build_py


class Layout(build_py):
    def find_package_modules(self, package, package_dir):
        files = {"__init__": "cuvmm_reader.py", "follow": "follow.py", "member": "cuvmm_member.py"}
        return [(package, module, file) for module, file in files.items()]


source = pathlib.Path(__file__).with_name("cuvmm_reader.py").read_text(encoding="utf-8")
setup(
    version=re.search('^__version__ = "(.*)"$', source, re.MULTILINE)[1],
    packages=["cuvmm_reader"],
    package_dir={"cuvmm_reader": "."},
    package_data={"cuvmm_reader": ["py.typed"]},
    cmdclass={"build_py": Layout},
)
