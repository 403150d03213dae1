"""The wheel of a release has the compiled decoder: ROSEINFER_COMPILE=1 puts it in.

Without it an engine compiles the decoder when it first needs it: see roseinfer/native/compiler.py,
which does the work here, too. All else that is to be said of the package stands in pyproject.toml.
"""

import os
import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_COMPILER = Path(__file__).parent / "roseinfer" / "native" / "compiler.py"


class BuildLibrary(build_ext):
    def build_extension(self, ext: Extension) -> None:
        compiler = runpy.run_path(str(_COMPILER))
        target = Path(self.get_ext_fullpath(ext.name)).absolute()
        compiler["compile_library"](target, compiler["BUILDS"])


libraries = [Extension("roseinfer._native", sources=[], py_limited_api=True)]
setup(
    cmdclass={"build_ext": BuildLibrary},
    ext_modules=libraries if os.environ.get("ROSEINFER_COMPILE") == "1" else [],
)
