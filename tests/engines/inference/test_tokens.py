from __future__ import annotations

from pathlib import Path

import pytest
from tests.builders.tiny_checkpoints import write_llama

from engines.contract import BadInputError
from engines.inference.tokens import TextCodec, load_auto_codec, load_codec


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "adds-bos"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "model", add_bos=request.param)


def test_both_ways_to_load_a_tokenizer_give_the_same_tokens(folder: Path) -> None:
    lean, auto = load_codec(folder), load_auto_codec(folder)
    texts = ["The quick brown fox", "", " two  blanks\nand a line", "Ünïcödé ✓"]
    assert lean.encode_batch(texts) == auto.encode_batch(texts)
    for name in ("bos", "eos", "pad", "adds_bos"):
        assert getattr(lean, name) == getattr(auto, name), name
    assert lean.decode(lean.encode_batch(texts)[0]) == auto.decode(auto.encode_batch(texts)[0]) == texts[0]


def test_auto_does_what_the_tokenizer_does_and_the_bos_is_never_doubled(folder: Path) -> None:
    codec = load_codec(folder)
    lead = codec.leads_with_bos("auto")
    assert lead == codec.adds_bos
    always = codec.encode_pairs([("The fox", " dog")], lead=codec.leads_with_bos("always"))[0]
    never = codec.encode_pairs([("The fox", " dog")], lead=codec.leads_with_bos("never"))[0]
    assert always.context == (codec.bos, *never.context)
    written = codec.encode_pairs([("<s>The fox", " dog")], lead=True)[0]
    assert written == always


def test_a_seam_inside_a_token_falls_to_the_continuation(folder: Path) -> None:
    codec = load_codec(folder)
    request = codec.encode_pairs([("The quick ", "brown")], lead=False)[0]
    assert list(request.context) == codec.encode_batch(["The quick"])[0]
    assert list(request.context + request.continuation) == codec.encode_batch(["The quick brown"])[0]


def test_an_empty_context_begins_with_bos_under_any_policy(folder: Path) -> None:
    codec = load_codec(folder)
    assert codec.encode_pairs([("", "dog")], lead=False)[0].context == (codec.bos,)


def test_a_continuation_without_a_token_is_refused(folder: Path) -> None:
    with pytest.raises(BadInputError, match="no token of its own"):
        load_codec(folder).encode_pairs([("The fox", "")], lead=False)


def test_always_needs_a_bos_token() -> None:
    codec = TextCodec(lambda texts: [], lambda ids: "", None, None, 0, False, "none")
    with pytest.raises(BadInputError, match="no BOS token"):
        codec.leads_with_bos("always")
    with pytest.raises(BadInputError, match="neither a BOS nor an EOS"):
        codec.prefix()
