"""``roots``: folders that every job may name."""

from __future__ import annotations

import pytest

from emep.policy import PolicyError, default_policy, parse_policy_text


def test_no_folder_is_open_by_default() -> None:
    assert default_policy().roots.read == default_policy().roots.write == ()


def test_roots_are_absolute_paths_or_uris_with_dots_taken_out() -> None:
    roots = parse_policy_text(
        "roots: {read: [/srv/a/../models, 'file:///srv/my%20tasks'], write: /srv/x}", "p"
    ).roots
    assert roots.read == ("/srv/models", "/srv/my tasks")
    assert roots.write == ("/srv/x",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("roots: {read: [models]}", "roots.read[0]: expected the absolute path of a folder, not 'models'"),
        ("roots: {read: [/]}", "would open the whole machine"),
        ("roots: {read: [/srv/..]}", "would open the whole machine"),
        ("roots: {read: [s3://bucket]}", "absolute path"),
        ("roots: {reads: [/srv]}", "unknown key 'reads'"),
        ("roots: {read: [/srv, /srv]}", "listed twice"),
        ("roots: {read: [3]}", "expected text"),
    ],
)
def test_a_wrong_root_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(PolicyError) as refused:
        parse_policy_text(text, "policy.yaml")
    assert words in str(refused.value)
