"""Measures the prose of pages, comments and docstrings, and fails above the limits.

    check_prose.py                          all files except those in PENDING
    check_prose.py --show FILE|FOLDER ...   only these, with each offending sentence
    check_prose.py --commit-message FILE    the subject line of a commit
    check_prose.py --install-hook           does the latter at each commit

Paths are relative to the working directory, which is the root of the repository. Code, tables,
formulas and headings do not count. A question may begin with any word.
"""

import argparse
import ast
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

# Files that are not yet rewritten: paths, folders or patterns. An entry that passes has to go.
PENDING: list[str] = []

PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "medley/README.md"]
FOLDERS = ["medley", "python", "scripts", "testbed", "examples", "benchmarks", "tests"]
PATTERNS = [f"{each}/**/*.md" for each in ("docs", "benchmarks", "testbed", "examples")]
PATTERNS += [f"{each}/**/*{end}" for each in FOLDERS for end in (".h", ".cpp", ".py")]
GROUPS = {".md": "pages", ".h": "headers", ".cpp": "sources", ".py": "python"}

LONG, TOO_LONG = 30, 45  # words of a sentence
MOST_LONG = 8.0  # percent of the sentences
MOST_OPENERS = 1.0  # percent of the sentences
MOST_WHAT, MOST_WHO = 2.0, 0.5  # per 1,000 words
MOST_COLUMNS = 100
MOST_WIDE_CODE = 8  # wider lines of code and console output: a printed program and an error
MOST_README_WORDS = 1_200
MOST_SUBJECT = 72

WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
OPENER = re.compile(r"(What|Who|Whoever|Where|Of|Nobody|Nothing|None|So)\b[^?]*$", re.I)
BANNED = re.compile(r"\b(nobody|somebody|whoever|alike)\b", re.I)
WHAT = re.compile(r"\bwhat\b", re.I)
WHO = re.compile(r"\bwho(?:m|ever)?\b", re.I)
# A sentence ends before a capital, a digit, a quote or a bracket, but not after an abbreviation.
END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)[\"')\]]*\s+(?=[A-Z0-9\"'(\[])")
ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
CODE_NAME = "X"  # stands for inline code and formulas: one word
TOOL_COMMENT = re.compile(r"NOLINT|clang-format|noqa|type: ignore|mypy:|fmt: |ruff:|pragma|!/")
CPP = re.compile(
    r'(?P<comment>//[^\n]*)|/\*.*?\*/|R"(\w*)\(.*?\)\2"|"(?:\\.|[^"\\\n])*"'
    r"|(?<!\w)'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)
SUBJECT = re.compile(r"(fixup! |squash! )?[\w./+-]+(, [\w./+-]+)*: \S|Merge |Revert ")
HOOK = """\
#!/bin/sh
python=.venv/bin/python
[ -x $python ] || python=python3
exec $python scripts/check_prose.py --commit-message "$1"
"""

Line = tuple[int, str]  # its number and its text


@dataclass
class Sentence:
    line: int
    text: str

    def words(self) -> int:
        return len(WORD.findall(self.text))


@dataclass
class Prose:
    """The sentences of one file or of several, with the lines that are too long."""

    sentences: list[Sentence] = field(default_factory=list)
    wide: list[Line] = field(default_factory=list)
    wide_code: list[Line] = field(default_factory=list)
    readme_words: int = 0

    def add(self, other: "Prose") -> None:
        self.sentences += other.sentences
        self.wide += other.wide
        self.wide_code += other.wide_code
        self.readme_words += other.readme_words


@dataclass
class Figures:
    """The measures of a text that have limits."""

    words: int
    sentences: int
    long: float  # percent
    too_long: int
    what: float  # per 1,000 words
    who: float
    openers: float  # percent
    banned: int
    wide: int
    wide_code: int
    readme_words: int


def paragraphs(lines: list[Line]) -> Iterator[list[Line]]:
    """Yields the lines of each paragraph and of each item of a list."""
    part: list[Line] = []
    for number, text in lines:
        item = ITEM.match(text)
        if part and (item or not text.strip()):
            yield part
            part = []
        if text.strip():
            part.append((number, text[item.end() :] if item else text))
    if part:
        yield part


def sentences(lines: list[Line]) -> list[Sentence]:
    """Returns the sentences of some lines of prose, each with the number of its first line."""
    found = []
    for part in paragraphs(lines):
        text, starts = "", []
        for number, line in part:
            starts.append((len(text), number))
            text += line.strip() + " "
        begin = 0
        for end in [*(match.end() for match in END.finditer(text)), len(text)]:
            number = max(number for start, number in starts if start <= begin)
            found.append(Sentence(number, text[begin:end].strip()))
            begin = end
    return [each for each in found if each.words() >= 3]


def without_code(text: str) -> str:
    """Returns a page without inline code, formulas, targets of links and emphasis."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", "", match[0])

    def name(match: re.Match[str]) -> str:
        return CODE_NAME + blank(match)

    text = re.sub(r"<!--.*?-->", blank, text, flags=re.DOTALL)
    text = re.sub(r"\$\$.*?\$\$", name, text, flags=re.DOTALL)
    text = re.sub(r"(`+)(?!`)(?:[^`\n]|\n(?!\s*\n))+?\1(?!`)", name, text)
    text = re.sub(r"\$[^$\n]+\$", name, text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^<>\n]+>", "", text)
    return re.sub(r"\*+|(?<!\w)_|_(?!\w)", "", text)


def page(text: str) -> Prose:
    """Returns the prose of a Markdown page."""
    found = Prose()
    kept, fence, formula = [], "", False
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        mark = re.match(r"`{3,}|~{3,}", bare)
        if fence:
            if bare == fence:
                fence = ""
            elif len(line) > MOST_COLUMNS:
                found.wide_code.append((number, line))
            line = ""
        elif mark:
            fence, line = mark[0], ""
        elif bare.startswith(("|", "#", "<")):
            line = ""
        elif not formula and "$$" not in line:
            width = len(re.sub(r"\]\([^)]*\)", "]", line))
            if width > MOST_COLUMNS and not re.match(r"\[[^\]]+\]: ", line):
                found.wide.append((number, line))
        formula ^= not fence and line.count("$$") % 2 == 1
        kept.append(line)
    bare_lines = without_code("\n".join(kept)).split("\n")
    found.sentences = sentences(list(enumerate(bare_lines, 1)))
    return found


def comment_lines(lines: list[Line]) -> Iterator[Line]:
    """Yields the lines of a comment, empty ones for drawings and for words to tools.

    A drawing is indented by three columns or more, unless it continues an item of a list.
    """
    in_item = False
    for number, text in lines:
        in_item = bool(ITEM.match(text)) or (in_item and text.startswith("  "))
        drawn = text.startswith("   ") and not in_item
        yield number, "" if drawn or TOOL_COMMENT.search(text) else text


def comments(found: list[tuple[int, int, str]]) -> Iterator[list[Line]]:
    """Yields blocks of comments: those in adjacent lines that begin in the same column.

    `found` has the line, the column and the text of each.
    """
    block: list[Line] = []
    last = (-1, -1)
    for number, column, text in found:
        if (number - 1, column) != last:
            yield list(comment_lines(block))
            block = []
        block.append((number, text))
        last = (number, column)
    yield list(comment_lines(block))


def cpp(text: str) -> Prose:
    """Returns the comments of a C++ file."""
    found = []
    for match in CPP.finditer(text):
        if match["comment"]:
            column = match.start() - text.rfind("\n", 0, match.start())
            words = re.sub(r"^//+ ?", "", match[0])
            found.append((text.count("\n", 0, match.start()) + 1, column, words))
    return of_blocks(comments(found))


def python(text: str) -> Prose:
    """Returns the comments and docstrings of a Python file."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [
        (*token.start, re.sub(r"^#+ ?", "", token.string))
        for token in tokens
        if token.type == tokenize.COMMENT
    ]
    blocks = list(comments(found))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node, clean=False)
            if doc is not None:
                first, _, rest = doc.partition("\n")
                lines = [first.strip(), *textwrap.dedent(rest).split("\n")]
                blocks.append(list(comment_lines(list(enumerate(lines, node.body[0].lineno)))))
    return of_blocks(blocks)


def of_blocks(blocks: Iterator[list[Line]] | list[list[Line]]) -> Prose:
    found = Prose()
    for block in filter(None, blocks):
        bare = without_code("\n".join(text for _, text in block)).split("\n")
        numbered = [(number, text) for (number, _), text in zip(block, bare, strict=True)]
        found.sentences += sentences(numbered)
    found.sentences.sort(key=lambda each: each.line)
    return found


def prose_of(path: Path) -> Prose:
    text = path.read_text()
    found = {".md": page, ".h": cpp, ".cpp": cpp, ".py": python}[path.suffix](text)
    if path.name == "README.md" and path.resolve() == Path("README.md").resolve():
        found.readme_words = len([word for word in text.split() if re.search(r"\w", word)])
    return found


def figures_of(prose: Prose) -> Figures:
    texts = [each.text for each in prose.sentences]
    lengths = [each.words() for each in prose.sentences]
    words, number = max(sum(lengths), 1), max(len(texts), 1)
    return Figures(
        words=sum(lengths),
        sentences=len(texts),
        long=100 * sum(length > LONG for length in lengths) / number,
        too_long=sum(length > TOO_LONG for length in lengths),
        what=1000 * sum(len(WHAT.findall(text)) for text in texts) / words,
        who=1000 * sum(len(WHO.findall(text)) for text in texts) / words,
        openers=100 * sum(bool(OPENER.match(text)) for text in texts) / number,
        banned=sum(len(BANNED.findall(text)) for text in texts),
        wide=len(prose.wide),
        wide_code=len(prose.wide_code),
        readme_words=prose.readme_words,
    )


def problems_of(figures: Figures) -> list[str]:
    """Returns a line for each limit that is exceeded."""
    limits = [
        (figures.long, MOST_LONG, f"% of the sentences have more than {LONG} words"),
        (figures.too_long, 0, f" sentences have more than {TOO_LONG} words"),
        (figures.what, MOST_WHAT, " times `what` per 1,000 words"),
        (figures.who, MOST_WHO, " times `who` per 1,000 words"),
        (
            figures.openers,
            MOST_OPENERS,
            "% of the sentences begin with What, Who, Where, Of, So...",
        ),
        (figures.banned, 0, " times nobody, somebody, whoever or alike"),
        (figures.wide, 0, f" lines have more than {MOST_COLUMNS} columns"),
        (figures.readme_words, MOST_README_WORDS, " words in README.md"),
    ]
    return [
        f"{value:.4g}{text}, expected at most {most:g}"
        for value, most, text in limits
        if value > most
    ]


def shown(name: str, prose: Prose) -> Iterator[str]:
    """Yields a line for each sentence and line of a file that counts against a limit."""
    for each in prose.sentences:
        why = [f"{each.words()} words"] if each.words() > LONG else []
        why += [match[1].lower() + " first" for match in [OPENER.match(each.text)] if match]
        for pattern in (WHAT, WHO, BANNED):
            why += [match[0].lower() for match in pattern.finditer(each.text)]
        if why:
            yield f"{name}:{each.line}: {', '.join(dict.fromkeys(why))}: {each.text}"
    for number, text in [*prose.wide, *prose.wide_code]:
        yield f"{name}:{number}: {len(text)} columns"


def all_files(root: Path) -> list[Path]:
    found = [root / name for name in PAGES if (root / name).exists()]
    return found + [path for each in PATTERNS for path in sorted(root.glob(each))]


def is_in(name: str, entry: str) -> bool:
    """Returns whether a file belongs to an entry of PENDING."""
    return name == entry or name.startswith(f"{entry}/") or fnmatch(name, entry)


def by_group(files: dict[str, Prose]) -> dict[str, Figures]:
    groups: dict[str, Prose] = {}
    for name, prose in files.items():
        groups.setdefault(GROUPS[Path(name).suffix], Prose()).add(prose)
    return {group: figures_of(prose) for group, prose in groups.items()}


def check(files: dict[str, Prose], pending: list[str]) -> list[str]:
    """Returns the problems of all groups of files, and of entries that are pending no more."""
    errors = []
    for entry in pending:
        of_it = {name: prose for name, prose in files.items() if is_in(name, entry)}
        if not any(map(problems_of, by_group(of_it).values())):
            errors.append(f"{entry}: passes: remove it from PENDING")
    kept = {n: p for n, p in files.items() if not any(is_in(n, entry) for entry in pending)}
    for group, figures in by_group(kept).items():
        found = [f"{group}: {problem}" for problem in problems_of(figures)]
        own = {n: p for n, p in kept.items() if GROUPS[Path(n).suffix] == group}
        faulty = [n for n, p in own.items() if problems_of(figures_of(p))]
        errors += [*found, f"{group}: see --show {' '.join(faulty)}"] if found else []
    return errors


def row(name: str, f: Figures) -> str:
    return (
        f"{name:<48}{f.words:>8}{f.long:>7.1f}{f.too_long:>5}{f.what:>6.1f}{f.who:>6.1f}"
        f"{f.openers:>6.1f}{f.banned:>5}{f.wide:>5}{f.wide_code:>5}"
    )


def table(files: dict[str, Prose]) -> Iterator[str]:
    """Yields a row for each file, then one for each group."""
    yield (
        f"{'':<48}{'words':>8}{'>30 %':>7}{'>45':>5}{'what':>6}{'who':>6}{'open%':>6}{'ban':>5}"
        f"{'wide':>5}{'code':>5}"
    )
    yield from (row(name, figures_of(prose)) for name, prose in files.items())
    yield from (row(f"all {group}", figures) for group, figures in by_group(files).items())


def message_problems(message: str) -> list[str]:
    """Returns the problems of a commit message."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    found = []
    if len(subject) > MOST_SUBJECT:
        found.append(f"subject: {len(subject)} characters, expected at most {MOST_SUBJECT}")
    if not SUBJECT.match(subject):
        found.append("subject: no module, expected `module: imperative verb object`")
    return found


def install_hook(root: Path) -> None:
    """Writes the commit-msg hook, if this is a clone without one."""
    hook = root / ".git" / "hooks" / "commit-msg"
    if (root / ".git").is_dir() and not hook.exists():
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(HOOK)
        hook.chmod(0o755)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="only these files and folders")
    parser.add_argument("--show", action="store_true", help="print the offending sentences")
    parser.add_argument("--commit-message", type=Path, metavar="FILE")
    parser.add_argument("--install-hook", action="store_true")
    asked = parser.parse_args()
    if asked.install_hook:
        install_hook(Path())
        return 0
    if asked.commit_message:
        errors = message_problems(asked.commit_message.read_text())
    else:
        paths = all_files(Path())
        if asked.paths:
            inside = [p for each in asked.paths if each.is_dir() for p in sorted(each.rglob("*"))]
            paths = [p for p in [*asked.paths, *inside] if p.suffix in GROUPS and p.is_file()]
        files = {path.as_posix(): prose_of(path) for path in paths}
        if asked.show:
            print(*(line for n, prose in files.items() for line in shown(n, prose)), sep="\n")
        if asked.show or asked.paths:
            print(*table(files), sep="\n")
        errors = check(files, [] if asked.paths else PENDING)
        wide = sum(len(prose.wide_code) for prose in files.values())
        if wide > MOST_WIDE_CODE and not asked.paths:
            errors.append(f"{wide} lines of code over {MOST_COLUMNS}, expected {MOST_WIDE_CODE}")
    for error in errors:
        print(error)
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
