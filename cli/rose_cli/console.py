"""rich's console, for output that may be a pipe. Loads rich, which takes a while."""

import rich.console


class Console(rich.console.Console):
    def on_broken_pipe(self) -> None:
        """As with any other output: `main` ends the command. rich would exit with 1.

        Raises: BrokenPipeError
        """
        raise BrokenPipeError
