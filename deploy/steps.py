"""What a command is doing: a spinner that says so on a terminal, one line for each step elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape


class Steps:
    """Maintains the step that is shown. Use as a context; nothing of a spinner is left after it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")
        self._said = ""

    def __enter__(self) -> Steps:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.hide()

    def say(self, step: str) -> None:
        if self._console.is_terminal:
            self._status.update(f"{escape(step)} …")
            self._status.start()
        elif step != self._said:
            self._console.print(f"{step} …", markup=False, soft_wrap=True)
        self._said = step

    def hide(self) -> None:
        """Until the next step."""
        self._status.stop()
