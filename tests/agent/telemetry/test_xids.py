"""The table of Xids and the policy's words for it."""

from __future__ import annotations

import pytest

from emep.agent.telemetry.xids import XID_ACTIONS, XidAction, XidRules
from emep.policy.sections import XID_ACTIONS as WORDS


def test_the_policy_knows_the_words_of_the_agent() -> None:
    assert set(WORDS) == {action.value for action in XidAction}


def test_every_xid_has_one_action() -> None:
    assert XID_ACTIONS[63] is XID_ACTIONS[64] is XidAction.CHECK_ROW_REMAP
    assert all(0 < xid <= 172 for xid in XID_ACTIONS)


def test_what_neither_table_nor_policy_knows_takes_the_gpu_out() -> None:
    assert XidRules().takes_out(999)
    assert not XidRules({999: "ignore"}).takes_out(999)


def test_a_word_that_is_no_action_is_refused() -> None:
    with pytest.raises(ValueError, match="shrug"):
        XidRules({94: "shrug"})
