"""Compiles the kernels' sources beside each other: setuptools takes those of a library in turn.

All else that is to be said of the package stands in pyproject.toml.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext


class BuildBeside(build_ext):
    """On each core a source."""

    def build_extensions(self) -> None:
        compile_in_turn = self.compiler.compile

        def compile_beside(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                compiled = pool.map(lambda source: compile_in_turn([source], **options), sources)
                return [target for targets in compiled for target in targets]

        self.compiler.compile = compile_beside
        super().build_extensions()


setup(cmdclass={"build_ext": BuildBeside})
