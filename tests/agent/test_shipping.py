"""A log's way to the API where the disk does not play along."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from tests.builders.small_api import SmallApi

from emep.agent.folders import RunFolder
from emep.agent.shipping import LogShipper
from emep.client import AsyncEmepClient, lease_token


async def ship(url: str, folder: RunFolder) -> None:
    async with asyncio.timeout(60):
        client = AsyncEmepClient(url, lease_token("lease-a1"))
        try:
            shipper = LogShipper(client, "a1", folder)
            shipping = asyncio.create_task(shipper.run())
            shipper.finish()
            await shipping
        finally:
            await client.aclose()


def test_a_whole_log_is_shipped_and_closed(api: SmallApi, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.log.write_text("hello")
    asyncio.run(ship(api.url, folder))
    assert api.log_text("a1") == "hello"
    assert api.closed_logs == ["a1"]


def test_a_log_that_cannot_be_read_any_more_ends_with_what_was_shipped(
    api: SmallApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RunFolder(tmp_path)
    api.logs["a1"] = bytearray(b"hello")
    folder.set_shipped(5)
    folder.log.mkdir()  # Reading it fails, whoever reads.
    with caplog.at_level(logging.WARNING):
        asyncio.run(ship(api.url, folder))
    assert api.log_text("a1") == "hello"
    assert api.closed_logs == ["a1"]
    assert caplog.text.count("cannot be read") == 1
