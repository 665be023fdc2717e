"""Bytes on the wire, from the interface's own counters, for each codec."""

import os
import shutil
import subprocess
import uuid

import pytest

from benchmarks.collectives import measure


def can_limit_links() -> bool:
    if os.geteuid() != 0 or not shutil.which("tc") or not shutil.which("ip"):
        return False
    name = f"rct{uuid.uuid4().hex[:8]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_bit_is_under_a_25th_of_float32_on_the_wire() -> None:
    if not can_limit_links():
        pytest.skip("network namespaces need root, ip and tc")
    result = measure(workers=2, parameters=1 << 20, rounds=1, link=1000.0, peer=None)
    codecs = result["codecs"]
    assert codecs["none"]["received_bytes"] > 4 << 20
    assert 0.45 < codecs["fp16"]["bytes_ratio"] < 0.55
    assert 1 / 35 < codecs["onebit"]["bytes_ratio"] < 1 / 25
