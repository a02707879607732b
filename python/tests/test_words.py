"""Sources and documents use the standard terms of the field, not the private words of private_words.py; lines end in time."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from private_words import WORDS, Word

ROOT = Path(__file__).parents[2]
FOLDERS = ("core", "cuda", "pybind", "python", "tools", "docs", "examples")
SUFFIXES = {".go", ".c", ".h", ".cu", ".cuh", ".py", ".md", ".toml"}
GENERATED = ("pybind/native/native.*", "*/_native.pyi", "*.gen.*", "CHANGELOG.md", "python/tests/private_words.py")
NATIVE_SUFFIXES = (".go", ".c", ".h", ".cu", ".cuh")
COMMENT, CODE = 100, 120  # columns of a line, at most
IDENTIFIER = re.compile(r"[^\W\d]\w*")
PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Comments and strings of Go, C and CUDA.
UNREAD = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|`[^`]*`|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)


@cache
def sources() -> dict[str, str]:
    """The text of each source and document file, by its path from the root."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "Makefile"]
    for folder in FOLDERS:
        files += [file for file in (ROOT / folder).rglob("*") if file.suffix in SUFFIXES]
    found = {file.relative_to(ROOT).as_posix(): file for file in files}
    return {path: file.read_text() for path, file in sorted(found.items()) if not matches(path, GENERATED)}


def matches(path: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatch(path, glob) for glob in globs)


def identifiers(text: str) -> Iterator[tuple[int, str]]:
    """Each identifier of a text with the number of its line."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in IDENTIFIER.finditer(line):
            yield number, match[0]


Places = dict[str, dict[str, list[int]]]  # of each identifier, by file the lines


@cache
def occurrences() -> Places:
    """The identifiers of all files, comments and strings included."""
    return by_identifier({path: collect(text) for path, text in sources().items()})


@cache
def code() -> Places:
    """The identifiers of the code of all files."""
    return by_identifier({path: collect(code_of(path, text)) for path, text in sources().items()})


def by_identifier(files: dict[str, dict[str, list[int]]]) -> Places:
    found: Places = {}
    for path, identifiers in files.items():
        for identifier, lines in identifiers.items():
            found.setdefault(identifier, {})[path] = lines
    return found


def code_of(path: str, text: str) -> str:
    """A text without its comments and strings, whose lines keep their numbers."""
    if not path.endswith(".py"):
        return UNREAD.sub(lambda match: "\n" * match[0].count("\n") or " ", text)
    lines = [""] * (text.count("\n") + 1)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            lines[token.start[0] - 1] += f"{token.string} "
    return "\n".join(lines)


def collect(text: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for number, identifier in identifiers(text):
        found.setdefault(identifier, []).append(number)
    return found


@cache
def parts_of(identifier: str) -> set[str]:
    return {part.lower() for part in PARTS.findall(identifier)}


def has(word: Word, identifier: str) -> bool:
    if word.shape == "name":
        return re.fullmatch(word.pattern, identifier) is not None
    return word.pattern in parts_of(identifier)


def complaints(word: Word, places: Places) -> list[str]:
    """A line for each occurrence of a private word: where it is, and what to write."""
    return [
        f"{path}:{number}: {identifier}: write {word.standard}"
        for identifier, files in places.items()
        if has(word, identifier)
        for path, lines in files.items()
        if matches(path, word.files) and not matches(path, tuple(word.exceptions))
        for number in lines
    ]


def read(word: Word) -> Places:
    return code() if word.shape == "name" else occurrences()


def test_no_private_words() -> None:
    found = [line for word in WORDS for line in complaints(word, read(word))]
    assert not found, f"{len(found)} private words:\n" + "\n".join(sorted(found))


@pytest.mark.parametrize("word", WORDS, ids=lambda word: word.planted)
def test_planted_word(word: Word) -> None:
    """Each entry finds its word in a file that it covers, alone and, if it is a part, within an identifier."""
    path = next(path for path in sources() if matches(path, word.files) and not matches(path, tuple(word.exceptions)))
    planted = [word.planted]
    if word.shape == "part":
        planted += [f"first_{word.planted}", f"k{word.planted.title()}Rows", f"{word.planted}Rows"]
    for identifier in planted:
        found = complaints(word, by_identifier({path: collect(f"int harmless;\nint {identifier} = 0;\n")}))
        assert found == [f"{path}:2: {identifier}: write {word.standard}"]


def test_names_are_looked_for_in_code_alone() -> None:
    text = 'int a; // strip\n/* strip\n strip */ int strip; char *s = "strip";\n'
    assert collect(code_of("a.c", text))["strip"] == [3]
    text = 'a = 1  # strip\n"""strip\nstrip"""; strip = "strip"\n'
    assert collect(code_of("a.py", text))["strip"] == [3]


def test_exceptions_are_needed() -> None:
    """An exception whose files no longer have the word is taken out of the list."""
    for word in WORDS:
        for glob, reason in word.exceptions.items():
            files = {path for identifier, files in read(word).items() if has(word, identifier) for path in files}
            assert any(matches(path, (glob,)) and matches(path, word.files) for path in files), (
                f"{word.pattern}: nothing in {glob} needs the exception ({reason})"
            )


# --- Columns ------------------------------------------------------------------------------------------------------------


def long_lines(path: str, text: str) -> list[str]:
    """The lines of comments over 100 columns, and in C and CUDA those of code over 120. A tab has 4 columns."""
    found, comment = [], False
    for number, line in enumerate(text.splitlines(), 1):
        start = line.strip()
        alone = comment or start.startswith(("//", "/*"))
        if "/*" in line and "*/" not in line[line.rindex("/*") :]:
            comment = True
        elif "*/" in line:
            comment = False
        most = COMMENT if alone else CODE
        if start.startswith("//go:") or (path.endswith(".go") and not alone):
            continue
        if len(line.expandtabs(4)) > most:
            found.append(f"{path}:{number}: {len(line.expandtabs(4))} columns, at most {most}")
    return found


def test_columns() -> None:
    paths = [path for path in sources() if path.endswith(NATIVE_SUFFIXES)]
    found = [line for path in paths for line in long_lines(path, sources()[path])]
    assert not found, f"{len(found)} long lines:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "line", "long"),
    [
        ("a.go", "// " + "x" * 98, True),
        ("a.go", "// " + "x" * 97, False),
        ("a.go", "\t// " + "x" * 94, True),
        ("a.c", "/* a\n" + "x" * 101 + " */", True),
        ("a.c", "int a; /* b */\nint " + "x" * 117 + ";", True),
        ("a.cuh", "int " + "x" * 115 + ";", False),
        ("a.go", "x := " + "y" * 200, False),
    ],
)
def test_planted_long_line(path: str, line: str, long: bool) -> None:
    assert bool(long_lines(path, line)) == long
