from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.builders.toy_items import questions, write_items

from engines.contract import BadInputError
from engines.evaluation.tasks import load_task, load_tasks, shared_items

GOOD = {"id": "1", "prompt": "a b", "choices": ["c", "d"], "answer": 1}


def test_items_are_read_with_their_skill_and_the_file_s_digest(tmp_path: Path) -> None:
    path = write_items(tmp_path / "sums.jsonl", [GOOD, {**GOOD, "id": 2, "answer": "c", "skill": "other"}])
    task = load_task(str(path))
    assert task.name == "sums"
    assert task.kind == "choice"
    assert task.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [(item.id, item.answer, item.skill) for item in task.items] == [
        ("1", 1, "sums"),
        ("2", 0, "other"),
    ]
    assert task.skills == ["sums", "other"]
    assert load_task(path.as_uri()).items == task.items


@pytest.mark.parametrize(
    ("item", "field", "words"),
    [
        ({**GOOD, "anser": 1}, "anser", "did you mean 'answer'"),
        ({**GOOD, "answer": 2}, "answer", "0 to 1"),
        ({**GOOD, "answer": True}, "answer", "True"),
        ({**GOOD, "answer": "z"}, "answer", "'z'"),
        ({**GOOD, "choices": ["c"]}, "choices", "at least two"),
        ({**GOOD, "choices": ["c", "c"]}, "choices", "twice"),
        ({**GOOD, "prompt": ""}, "prompt", "not empty"),
        ({"id": "1", "choices": ["c", "d"], "answer": 0}, "prompt", "missing"),
        ({"prompt": "a", "choices": ["c", "d"], "answer": 0}, "id", "None"),
        ({"id": "1", "text": 3}, "text", "not empty"),
        ([1], "item", "an object"),
    ],
)
def test_a_wrong_item_is_refused_by_file_line_and_field(
    tmp_path: Path, item: Any, field: str, words: str
) -> None:
    path = write_items(tmp_path / "t.jsonl", [{**GOOD, "id": "0"}, item])
    with pytest.raises(BadInputError) as caught:
        load_task(str(path))
    assert caught.value.field == field
    assert f"{path}, line 2, {field}: " in caught.value.message
    assert words in caught.value.message


def test_line_separators_of_unicode_inside_a_text_are_part_of_it(tmp_path: Path) -> None:
    text = "one\u2028two\u0085three\u2029four"
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"id": "1", "text": text}, ensure_ascii=False), encoding="utf-8")
    assert load_task(str(path)).items[0].text == text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"id": "1", "text": "caf\xe9"}', "line 1: is not UTF-8"),
        (b'{"id": "1", "text": "\\ud800"}', "no character"),
        (b'{"id": "1", "prompt": "a", "choices": ["b", "\\udfff"], "answer": 0}', "no character"),
    ],
)
def test_bytes_that_are_no_text_are_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(data)
    with pytest.raises(BadInputError, match=words):
        load_task(str(path))


@pytest.mark.parametrize("name", ["combined", "skills", "comparison", "warnings"])
def test_a_task_that_would_hide_an_entry_of_the_results_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInputError, match="rename the file"):
        load_task(str(write_items(tmp_path / f"{name}.jsonl", [GOOD])))


def test_files_that_cannot_be_tasks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot read the task"):
        load_task(str(tmp_path / "none.jsonl"))
    with pytest.raises(BadInputError, match="has no items"):
        load_task(str(write_items(tmp_path / "empty.jsonl", [])))
    with pytest.raises(BadInputError, match="already on line 1"):
        load_task(str(write_items(tmp_path / "twice.jsonl", [GOOD, GOOD])))
    with pytest.raises(BadInputError, match="are mixed"):
        load_task(str(write_items(tmp_path / "mixed.jsonl", [GOOD, {"id": "t", "text": "abc"}])))
    broken = tmp_path / "broken.jsonl"
    broken.write_text(json.dumps(GOOD) + "\n{oops\n")
    deep = tmp_path / "deep.jsonl"
    deep.write_text("[" * 100_000)
    with pytest.raises(BadInputError, match="line 1, item: not JSON"):
        load_task(str(deep))
    with pytest.raises(BadInputError, match="line 2, item: not JSON"):
        load_task(str(broken))


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    first = write_items(tmp_path / "a" / "t.jsonl", [GOOD])
    second = write_items(tmp_path / "b" / "t.jsonl", [GOOD])
    with pytest.raises(BadInputError, match="given twice"):
        load_tasks([str(first), str(second)])
    with pytest.raises(BadInputError, match="at least one"):
        load_tasks([])


def test_items_in_two_splits_are_found_whatever_their_ids(tmp_path: Path) -> None:
    items = questions(6)
    search = load_task(str(write_items(tmp_path / "s.jsonl", items[:4])))
    report = load_task(
        str(write_items(tmp_path / "r.jsonl", [{**item, "id": item["id"] + "x"} for item in items[3:]]))
    )
    assert shared_items([search], [report]) == [items[3]["id"]]
    assert shared_items([search], [load_task(str(write_items(tmp_path / "o.jsonl", items[4:])))]) == []


@pytest.mark.parametrize(
    "text", ['{"password": "s3cret"}', '{"id": 1, "s3cret": 2}', "s3cret", "[s3cret", '"s3cret"']
)
def test_a_file_that_is_no_task_comes_back_by_its_name_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "passwords.jsonl"
    file.write_text(text)
    with pytest.raises(BadInputError) as refused:
        load_task(str(file))
    assert "passwords.jsonl" in refused.value.message
    assert "s3cret" not in f"{refused.value.message} {refused.value.field}"
