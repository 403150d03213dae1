"""Triton's interpreter without what takes two fifths of its time.

It patches the language anew at each call of a device function, and holds each sum of numbers to an
overflow, which shapes as small as those of tests cannot have.
"""

from collections.abc import Callable
from typing import Any

from triton.runtime import interpreter


def lighten() -> None:
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched = set[int]()
    """Within a launch: whose language is patched, by the globals of a function."""

    def patch_once(fn: Callable[..., Any]) -> Any:
        if id(fn.__globals__) in patched:
            return None
        patched.add(id(fn.__globals__))
        return patch(fn)

    def launch_patched(kernel: Any, *arguments: Any, **constants: Any) -> None:
        patched.clear()
        launch(kernel, *arguments, **constants)

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = launch_patched
    options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter.interpreter_builder.options = options
