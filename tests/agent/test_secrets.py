"""A worker's secrets on one machine: in its command's environment and nowhere else; missing ones are waited for."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from stoker.local.project_secrets import LocalSecrets
from stoker.spec.pod import PODS, EnvSource, EnvVar, SecretKeyRef
from stoker.spec.project_secrets import CONFIG_ERROR

VALUE = "hf_" + "q7Zk" * 9
HASH = "import hashlib, os; print(hashlib.sha256(os.environ['HF_TOKEN'].encode()).hexdigest(), flush=True)"


def with_secret(pod, secret="hf", key="value"):
    source = EnvSource(secret_key_ref=SecretKeyRef(name=f"stoker-secret.{secret}", key=key))
    container = pod.spec.containers[0]
    container = container.model_copy(
        update={"env": (*container.env, EnvVar(name="HF_TOKEN", value_from=source))},
    )
    return pod.model_copy(update={"spec": pod.spec.model_copy(update={"containers": (container,)})})


@pytest.fixture
async def secrets(datadir):
    found = LocalSecrets(datadir.secrets)
    await found.put("", "default", "hf", "value", VALUE)
    return found


async def test_only_the_command_has_it(node, make_pod, secrets, processes, wait_until):
    script = f"{HASH}; print('token', os.environ['HF_TOKEN'], flush=True); import time; time.sleep(60)"
    pod = make_pod("one", ["python", "-c", script], STOKER_SECRET_ENV="HF_TOKEN")
    await node.store.create(PODS, with_secret(pod))
    folder = node.folder(await node.running("one"))
    digest = hashlib.sha256(VALUE.encode()).hexdigest()
    expected = f"{digest}\ntoken ***\n"
    await wait_until(lambda: (folder / "log").read_text() == expected, what="its log, masked")
    assert "HF_TOKEN" not in json.loads((folder / "launch.json").read_text())["env"]

    holders = []
    for pid in processes():
        assert VALUE not in Path(f"/proc/{pid}/cmdline").read_text()
        environ = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        holders += [Path(f"/proc/{pid}/cmdline").read_text()] if VALUE in environ else []
        assert not [fd for fd in Path(f"/proc/{pid}/fd").iterdir() if "memfd" in str(fd.readlink())]
    assert len(holders) == 1 and HASH in holders[0]
    await node.stop()
    there = [path for path in node.datadir.path.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]
    assert there == [node.datadir.secrets / "default" / "hf.json"]
    assert [path.stat().st_mode & 0o777 for path in (there[0], *there[0].parents[:2])] == [0o600, 0o700, 0o700]


@pytest.mark.parametrize(
    ("secret", "key", "message"),
    [
        ("none", "value", 'secret "stoker-secret.none" not found'),
        ("hf", "other", "couldn't find key other in Secret default/stoker-secret.hf"),
    ],
)
async def test_a_missing_one_is_waited_for_without_a_lease(node, make_pod, secrets, secret, key, message):
    await node.store.create(PODS, with_secret(make_pod("one", ["true"], gpus=2), secret, key))

    def waits(pod):
        states = [status.state.waiting for status in pod.status.container_statuses]
        return any(state and (state.reason, state.message) == (CONFIG_ERROR, message) for state in states)

    waiting = await node.until("one", waits)
    assert waiting.status.phase == "Pending" and not node.folder(waiting).exists()
    seen = waiting.metadata.resource_version
    await node.create("two", ["true"], gpus=2)
    assert (await node.ended("two")).status.phase == "Succeeded", "its GPUs were not leased"
    assert (await node.store.get(PODS, waiting.key)).metadata.resource_version == seen, "it is said once"
    await node.delete("one")
    await node.gone("one")


async def test_deleted_means_gone(datadir, secrets):
    await secrets.put("", "default", "hf", "other", "another value")
    await secrets.delete("", "default", "hf", "value")
    (left,) = await secrets.listed("", "default")
    assert (left.name, left.keys) == ("hf", ("other",)) and left.changed_at > left.created_at
    assert VALUE.encode() not in (datadir.secrets / "default" / "hf.json").read_bytes()
    await secrets.delete("", "default", "hf", "other")
    assert await secrets.listed("", "default") == [] and not list((datadir.secrets / "default").iterdir())
