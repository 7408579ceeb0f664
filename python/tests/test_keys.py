"""Targets that ask for authentication."""

import pytest

import longhaul
from conftest import Target, run

HOST = "nqn.2014-08.org.example:host"


def test_a_host_proves_its_identity(tmp_path):
    run("key", "make", HOST, "--keys", str(tmp_path / "keys"))
    target = Target("--export", "a=mem:1MiB", "--keys", str(tmp_path / "keys"))
    try:
        with longhaul.open(target.uris[0], keys=tmp_path / "keys", hostnqn=HOST) as file:
            assert file.read_at(0, 3) == bytes(3)
        with pytest.raises(longhaul.Error) as caught:
            longhaul.open(target.uris[0], hostnqn=HOST)
        assert caught.value.kind == "refused"
    finally:
        target.end()
