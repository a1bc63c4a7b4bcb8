"""The functions the pair learns from: read out of wheels and the standard library, never installed or imported."""

from __future__ import annotations

import ast
import hashlib
import json
import random
import re
import subprocess
import sys
import sysconfig
import textwrap
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

from tqdm import tqdm

from outrider.pipelines.errors import InvalidOption

from .licences import mentions_copyleft, permissive_licence

PACKAGES = Path(__file__).with_name("packages.txt")
MIN_CHARS, MAX_CHARS, MAX_LINE = 50, 720, 110
PER_PACKAGE = 2500  # so that no package dominates
PER_SHAPE = 2  # functions that differ in names and literals only
HELD_OUT_SHARE = 0.08  # of the packages

_SKIPPED_FOLDERS = re.compile(
    r"(^|/)(_?vendor\w*|extern\w*|_?tests?|testing|test_\w+|migrations|locale|site-packages|idlelib|lib2to3|ensurepip|"
    r"turtledemo|pydoc_data|_distutils|thirdparty|third_party|blib2to3|\w*\.dist-info)/"
)
_SKIPPED_FILES = re.compile(r"(^|/)(test_[^/]*|[^/]*_tests?|conftest|[^/]*_pb2|pb2_[^/]*)\.py$")


@dataclass(frozen=True, slots=True)
class Function:
    """One function: dedented `source` without decorators, the `package` it comes from."""

    package: str
    source: str


@dataclass(frozen=True, slots=True)
class Package:
    """One source of functions, as the model card lists it. `licence` is None for one that was left out."""

    name: str
    version: str
    licence: str | None
    held_out: bool
    functions: int


def download(folder: Path) -> None:
    """Fetch the pinned wheels into `folder`; wheels only, so that nothing of theirs runs. Raises InvalidOption."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    try:
        subprocess.run([*command, "-r", str(PACKAGES)], check=True)
    except subprocess.CalledProcessError as error:
        raise InvalidOption(
            f"pip could not download the packages in {PACKAGES}: see above why, or name a folder of their wheels with "
            "--wheels."
        ) from error


def build(wheels: Path, out: Path) -> None:
    """Write `train.jsonl`, `held_out.jsonl` (one function a line) and `packages.json` to the folder `out`.

    Raises InvalidOption if the wheels leave nothing to evaluate on.
    """
    sources: list[tuple[str, str, str | None, Iterator[str]]] = [
        ("python", f"{sys.version_info[0]}.{sys.version_info[1]}", "PSF-2.0", _standard_library())
    ]
    for path in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            metadata = _metadata(wheel)
        licence = permissive_licence(metadata)
        files: Iterator[str] = _wheel_files(path) if licence else iter(())
        sources.append((metadata["Name"].lower().replace("_", "-"), metadata["Version"], licence, files))

    # Training packages first: a held-out function of a shape that was trained on is dropped, not the other way round.
    sources.sort(key=lambda s: (is_held_out(s[0]), s[0]))
    shapes: Counter[str] = Counter()
    functions: dict[bool, list[Function]] = {False: [], True: []}
    packages = []
    for name, version, licence, files in tqdm(sources, desc="reading packages", unit="package"):
        held_out = is_held_out(name)
        found = []
        for function in _functions(name, files):
            key = shape(function.source)
            limit = 1 if held_out else PER_SHAPE
            if shapes[key] < limit:
                shapes[key] += 1
                found.append(function)
        random.Random(name).shuffle(found)
        found = found[:PER_PACKAGE]
        functions[held_out] += found
        packages.append(Package(name, version, licence, held_out, len(found)))

    if not functions[True]:
        raise InvalidOption(
            f"{wheels} has no wheel with functions to evaluate on: name a folder of the wheels of {PACKAGES}."
        )
    out.mkdir(parents=True, exist_ok=True)
    for held_out, file_name in ((False, "train.jsonl"), (True, "held_out.jsonl")):
        random.Random(0).shuffle(functions[held_out])
        (out / file_name).write_text("".join(json.dumps(asdict(f)) + "\n" for f in functions[held_out]))
    (out / "packages.json").write_text(json.dumps([asdict(p) for p in packages], indent=1))


def load(path: Path) -> list[Function]:
    """The functions in one of the files that `build` wrote."""
    return [Function(**json.loads(line)) for line in path.read_text().splitlines()]


def is_held_out(package: str) -> bool:
    """Whether a package is kept for evaluation; depends on the name alone, so it is the same in every run."""
    if package == "python":
        return False
    digest = hashlib.blake2b(package.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**32 < HELD_OUT_SHARE


def extract(module: str) -> Iterator[str]:
    """Sources of the functions and methods of a module's text, dedented, without decorators; nested ones excluded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in other people's strings
            tree = ast.parse(module)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = module.splitlines()
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        for child in reversed(list(ast.iter_child_nodes(node))):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                own_lines = [line.rstrip() for line in lines[child.lineno - 1 : child.end_lineno]]
                source = textwrap.dedent("\n".join(own_lines))
                if _is_wanted(child, source):
                    yield source
            elif isinstance(child, (ast.ClassDef, ast.If, ast.Try)):
                stack.append(child)


def shape(source: str) -> str:
    """A key that two functions share when they differ only in names, literals and layout."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        for field in ("id", "arg", "name", "attr"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                setattr(node, field, names.setdefault(value, f"n{len(names)}"))
        if isinstance(node, ast.Constant):
            node.value = type(node.value).__name__
    return hashlib.blake2b(ast.dump(tree).encode(), digest_size=12).hexdigest()


def _is_wanted(node: ast.FunctionDef | ast.AsyncFunctionDef, source: str) -> bool:
    lines = source.split("\n")
    body = [n for n in node.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    return (
        MIN_CHARS <= len(source) <= MAX_CHARS
        and max(map(len, lines)) <= MAX_LINE
        and "\t" not in source
        and source.isprintable() is False  # at least one newline: no one-line functions
        and all((len(line) - len(line.lstrip())) % 4 == 0 for line in lines[1:2])
        and bool(body)
        and not all(isinstance(n, (ast.Pass, ast.Raise)) for n in body)
        and _parses(source)
    )


def _parses(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return len(ast.parse(source).body) == 1
    except (SyntaxError, ValueError):
        return False


def _functions(package: str, files: Iterable[str]) -> Iterator[Function]:
    for text in files:
        if not mentions_copyleft(text):
            for source in extract(text):
                yield Function(package, source)


def _metadata(wheel: zipfile.ZipFile) -> Message:
    path = next(n for n in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
    return Parser().parsestr(wheel.read(path).decode("utf-8", "replace"), headersonly=True)


def _wheel_files(path: Path) -> Iterator[str]:
    with zipfile.ZipFile(path) as wheel:
        for name in sorted(wheel.namelist()):
            if name.endswith(".py") and not _is_skipped(name):
                yield wheel.read(name).decode("utf-8", "replace")


def _standard_library() -> Iterator[str]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if not _is_skipped(path.relative_to(root).as_posix()):
            yield path.read_text(encoding="utf-8", errors="replace")


def _is_skipped(name: str) -> bool:
    return bool(_SKIPPED_FOLDERS.search(name) or _SKIPPED_FILES.search(name))
