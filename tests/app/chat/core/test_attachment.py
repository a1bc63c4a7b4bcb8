"""Which files go into a prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.app.chat.core.attachment import LARGEST_TOGETHER, BadAttachment, read_attachments
from outrider.app.chat.core.conversation import File, Turn


def test_text_is_taken_as_it_is_and_line_ends_and_marks_as_python_has_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo ü".encode())
    (tmp_path / "b.py").write_bytes(b"x = 1\n")
    assert read_attachments([tmp_path / "a.txt", tmp_path / "b.py"], [File("c", "c")]) == (
        File("c", "c"), File("a.txt", "one\ntwo ü"), File("b.py", "x = 1\n"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x89PNG\x00", "isn't a text file"),
        (b"gr\xfcn", "isn't UTF-8 text"),
        (b"x" * (LARGEST_TOGETHER + 1), "only 256,000 of the 256,000 for all files are left"),
    ],
)
def test_what_is_no_text_or_too_much_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BadAttachment, match=f"^file .*{reason}"):
        read_attachments([tmp_path / "file"])


def test_the_limit_is_for_all_files_together(tmp_path: Path) -> None:
    (tmp_path / "half").write_bytes(b"x" * (LARGEST_TOGETHER // 2 + 1))
    files = read_attachments([tmp_path / "half"])
    with pytest.raises(BadAttachment, match="half has 128,001 bytes"):
        read_attachments([tmp_path / "half"], files)


def test_the_model_sees_the_files_behind_the_prompt_fenced_so_that_they_cannot_end_it() -> None:
    turn = Turn("Read.", files=(File("a.md", "```\ncode\n```\n"), File("b", "x")))
    assert turn.content == "Read.\n\na.md:\n````\n```\ncode\n```\n````\n\nb:\n```\nx\n```"
