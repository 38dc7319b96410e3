"""Run the fenced blocks of a Markdown page, and compare their output with the page."""

import contextlib
import io
import logging
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from onnxfold.cli import main

FENCE = re.compile(r"^( *)```(\w*) *(.*)$")
MARK = re.compile(r"<!-- (not run|any figures): (.+) -->")

FIGURES = re.compile(
    r"[\d.,]+ (?:us|ms|s|MB|GB)\b|[\d.]+ times as fast|saves time after [\d,]+ runs"
    r"|error [\d.]+e-\d+"
)
"""Figures that are not compared.

Times, memory and speeds differ between runs, and errors between versions of onnxruntime.
"""

NUMBER = re.compile(r"\d[\d.,]*(?:e-\d+)?x?|\b(?:us|ms|s)\b|within spread")
"""Numbers, units of time and comparisons that are masked in blocks marked with "any figures"."""


@dataclass
class Block:
    """A fenced block of a page."""

    place: str
    """The name of the page and the number of the first line."""
    language: str
    title: str | None
    """The path of the file that contains the text of the block, or None."""
    text: str
    mark: str | None
    """"not run" or "any figures" from a comment before the block, or None."""
    follows: bool
    """Whether only blank lines separate the block from the previous one."""


def blocks_of(path: Path) -> list[Block]:
    found: list[Block] = []
    fence: re.Match[str] | None = None
    before = ""
    start = 0
    inside = []
    follows = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = FENCE.match(line)
        if fence is None and match is not None:
            fence = match
            start = number
            inside = []
        elif fence is not None and match is not None and not match[2]:
            title = re.search(r'title="(.+?)"', fence[3])
            mark = MARK.fullmatch(before)
            indent = len(fence[1])
            text = "".join(f"{each[indent:]}\n" for each in inside)
            place = f"{path.name}:{start}"
            title, mark = title and title[1], mark and mark[1]
            found.append(Block(place, fence[2], title, text, mark, follows))
            fence = None
            before = ""
            follows = True
        elif fence is not None:
            inside.append(line)
        elif line.strip():
            before = line.strip()
            follows = False
    assert fence is None, f"{path}: a block does not end"
    return found


class Reader:
    """Runs the blocks of a page in the working directory."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {"__name__": "a page"}
        self.exit_code = 0
        self.printed: str | None = None

    def follow(self, block: Block) -> None:
        """Run a block, write a block with a title to its file, or compare a block with the output.

        Raises:
            AssertionError: The output differs from the page, or the block cannot be run and has no
                mark "not run".
        """
        printed, self.printed = self.printed, None
        if block.mark == "not run":
            return
        if block.language == "text" and block.follows and printed is not None:
            check(block, "output", printed, block.text)
        elif block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.text, block.place, "exec"), self.names)
            self.printed = out.getvalue()
        elif block.language == "console":
            for command, expected in commands_of(block):
                check(block, command, self.run(command), expected)
        else:
            raise AssertionError(f"{block.place}: the block cannot be run and has no mark")

    def run(self, command: str) -> str:
        """Return the output of a command.

        Commands of onnxfold without pipes and redirections run in this process, which is faster.
        """
        words = shlex.split(command)
        if words[0] == "onnxfold" and not {"|", ">", "<"} & set(words):
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                self.exit_code = main(words[1:])
            logging.getLogger("onnxfold").handlers.clear()
            return out.getvalue().replace(os.getcwd(), "/home/you")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", f"(exit {self.exit_code}); {command}"],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path},
        )
        self.exit_code = done.returncode
        return done.stdout + done.stderr


def commands_of(block: Block) -> list[tuple[str, str]]:
    """Return the commands of a console block with their expected output."""
    first, *parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert not first, f"{block.place}: the block does not start with a command"
    return [part.partition("\n")[::2] for part in parts]


def check(block: Block, command: str, printed: str, expected: str) -> None:
    """Raise an AssertionError if the printed lines differ from the expected lines.

    An expected line of three dots matches any number of lines.
    """
    any_figures = block.mark == "any figures"
    got = masked(printed, any_figures)
    lines = masked(expected, any_figures)
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in lines.splitlines()
    )
    if not re.fullmatch(pattern, got):
        message = f"{block.place}: {command}\nprints\n{printed}\nbut the page has\n{expected}"
        raise AssertionError(message)


def masked(text: str, any_figures: bool) -> str:
    """Return the text without varying figures and without the widths of columns.

    With `any_figures`, all numbers are removed.
    """
    text = FIGURES.sub("#", text.strip("\n"))
    text = NUMBER.sub("#", text) if any_figures else text
    text = re.sub(r"[ ─]+", lambda m: m[0][0], text)
    return "".join(f"{line.strip()}\n" for line in text.splitlines())
