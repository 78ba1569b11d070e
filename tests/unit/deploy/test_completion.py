"""What a shell is offered for completion: commands, options and roles."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from deploy.cli import app


def offered(words: str) -> str:
    """By the protocol of bash: the words so far, and which of them is to be completed."""
    environment = {
        "_PDSERVE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    return CliRunner().invoke(app, [], prog_name="pdserve", env=environment).output


@pytest.mark.parametrize(
    ("words", "completion"),
    [
        ("pdserve doc", "doctor"),
        ("pdserve up --det", "--detach"),
        ("pdserve role decode-1 pre", "prefill"),
        ("pdserve drill ch", "chaos"),
    ],
)
def test_a_word_that_is_begun_is_completed(words: str, completion: str) -> None:
    assert offered(words).split() == [completion]
