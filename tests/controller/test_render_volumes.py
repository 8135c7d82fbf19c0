"""What a worker's pod has mounted on a cluster: memory, checkpoints, data, fetched files, what is installed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.controller.render import CannotRender
from stoker.controller.render_kube import render_pod
from stoker.controller.render_volumes import Source, checkpoint_claim, is_ephemeral
from stoker.spec.runtime import TrainingRuntimeSpec

from .rendering import SETTINGS, env, env_values, job, mounts, pod, volume


def test_shared_memory_is_half_of_the_workers_unless_the_runtime_says() -> None:
    assert volume(pod(job(memory="4Gi")), "/dev/shm") == {"emptyDir": {"medium": "Memory", "sizeLimit": str(2 * 2**30)}}
    assert volume(pod(job(), sharedMemory="1Gi"), "/dev/shm")["emptyDir"]["sizeLimit"] == "1Gi"
    assert volume(pod(job()), "/tmp") == {"emptyDir": {}}


@pytest.mark.parametrize(
    ("checkpoint", "runtime", "source", "made"),
    [
        ({"claim": "mine"}, {"checkpoints": {"claim": "shared"}}, {"claimName": "mine"}, False),
        ({}, {"checkpoints": {"claim": "shared"}}, {"claimName": "shared"}, False),
        ({}, {"checkpoints": {"template": {"size": "10Gi"}}}, {"claimName": "net-checkpoints"}, True),
        ({"claim": "mine"}, {"checkpoints": {"template": {"size": "10Gi"}}}, {"claimName": "mine"}, False),
        ({}, {}, None, False),
    ],
)
def test_checkpoints_are_kept_by_the_jobs_claim_then_the_runtimes_then_nothing(
    checkpoint: dict[str, Any], runtime: dict[str, Any], source: dict[str, Any] | None, made: bool
) -> None:
    subject, spec = job(checkpoint=checkpoint), TrainingRuntimeSpec.model_validate(runtime)
    expected = {"persistentVolumeClaim": source} if source else {"emptyDir": {}}
    assert volume(pod(subject, **runtime), "/checkpoints") == expected
    assert is_ephemeral(subject, spec) is (source is None)
    claim = checkpoint_claim(subject, spec)
    assert (claim is not None) is made
    if claim is not None:
        assert claim.dump()["spec"] == {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "10Gi"}},
        }
        assert claim.metadata.owner_references[0].uid == "u-1"


def test_data_is_mounted_where_the_job_says_read_only_by_default() -> None:
    data = [
        {"name": "a", "claim": "imagenet"},
        {"name": "b", "claim": "x", "subPath": "s", "mountPath": "/in", "readOnly": False},
    ]
    rendered = pod(job(data=data))
    assert volume(rendered, "/data/a") == {"persistentVolumeClaim": {"claimName": "imagenet", "readOnly": True}}
    assert volume(rendered, "/in") == {"persistentVolumeClaim": {"claimName": "x"}}
    found = {one["mountPath"]: one for one in rendered["spec"]["containers"][0]["volumeMounts"]}
    assert found["/data/a"]["readOnly"] is True
    assert found["/in"]["subPath"] == "s" and "readOnly" not in found["/in"]
    reported = env(rendered)
    assert (reported["STOKER_DATA_A"], reported["STOKER_DATA_B"]) == ("/data/a", "/in")


def test_data_by_url_is_fetched_by_a_container_of_ours_as_the_job() -> None:
    data = [
        {"name": "a", "url": "https://x.example/a.txt", "digest": f"sha256:{'0' * 64}"},
        {"name": "b", "url": "https://x.example/b.zip", "unpack": True, "mountPath": "/in"},
        {"name": "c", "claim": "c"},
    ]
    secret = {"AWS_SECRET_ACCESS_KEY": {"secret": "s3", "key": "key"}, "OTHER": {"secret": "s3", "key": "key"}}
    subject = job(data=data, env={"AWS_ACCESS_KEY_ID": "id", "LD_PRELOAD": "/x"}, secretEnv=secret)
    rendered = pod(subject, security={"readOnlyRoot": False, "addCapabilities": ["IPC_LOCK"]})
    _, fetching = rendered["spec"]["initContainers"]
    assert (fetching["name"], fetching["image"]) == ("stoker-data", "registry.example/stoker:1")
    assert fetching["command"] == ["/opt/stoker/fetch/bin/python", "-m", "stoker.fetch"]
    given = {one["name"]: one.get("value") for one in fetching["env"]}
    assert set(given) == {
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HOME", "STOKER_FETCH", "STOKER_TERMINATION_LOG"
    }, "nothing that could make it run a program of the job's"  # fmt: skip
    order = json.loads(given["STOKER_FETCH"])
    assert (order["root"], order["project"], [item["name"] for item in order["items"]]) == (
        "/fetched",
        "data",
        ["a", "b"],
    )
    assert (
        fetching["securityContext"]["readOnlyRootFilesystem"]
        and "add" not in fetching["securityContext"]["capabilities"]
    )
    assert {one["mountPath"] for one in fetching["volumeMounts"]} == {"/fetched", "/tmp"}, "no token, no other data"
    found = {one["mountPath"]: one for one in rendered["spec"]["containers"][0]["volumeMounts"]}
    for place, item in (("/data/a", order["items"][0]), ("/in", order["items"][1])):
        assert found[place] == {
            "name": "stoker-data", "mountPath": place, "subPath": f"team-a/data/{item['entry']}", "readOnly": True
        }  # fmt: skip
    assert "sizeLimit" in volume(rendered, "/in")["emptyDir"]
    assert (env_values(rendered)["STOKER_DATA_A"], env_values(rendered)["STOKER_DATA_B"]) == ("/data/a", "/in")
    assert "STOKER_DATA_HOLD" not in env_values(rendered), "what is the pod's alone needs no lock"
    assert len(pod(job(data=[{"name": "c", "claim": "c"}]))["spec"]["initContainers"]) == 1


@pytest.mark.parametrize("cache", [{"claim": "kept", "limit": "2Gi"}, {"hostPath": "/var/kept", "limit": "2Gi"}])
def test_a_cache_shows_what_fetches_the_projects_part_and_workers_their_entry_read_only(cache: dict[str, str]) -> None:
    data = [{"name": "a", "url": "https://x.example/a.txt"}, {"name": "c", "claim": "c"}]
    rendered = pod(job(data=data), cache=cache)
    fetching = rendered["spec"]["initContainers"][1]
    order = json.loads({one["name"]: one.get("value", "") for one in fetching["env"]}["STOKER_FETCH"])
    on_node = "hostPath" in cache
    assert (order["limit_bytes"], order["free_share"]) == (2 << 30, 0.2 if on_node else 0.0)
    volumes = {one["name"]: one for one in rendered["spec"]["volumes"]}
    whole, shown = (
        fetching["volumeMounts"][0],
        next(one for one in rendered["spec"]["containers"][0]["volumeMounts"] if one["mountPath"] == "/data/a"),
    )
    assert (whole["mountPath"], whole["subPath"]) == ("/fetched", "team-a")
    entry = f"data/{order['items'][0]['entry']}"
    assert shown["readOnly"]
    if on_node:
        assert volumes[whole["name"]]["hostPath"] == {"path": "/var/kept", "type": "Directory"}
        assert volumes[shown["name"]]["hostPath"] == {"path": "/var/kept/team-a"}, "no link leads out of it"
        assert shown["subPath"] == entry
    else:
        assert volumes[shown["name"]]["persistentVolumeClaim"] == {"claimName": "kept"}
        assert (shown["name"], shown["subPath"]) == (whole["name"], f"team-a/{entry}")
    mounted = [one["name"] for one in rendered["spec"]["containers"][0]["volumeMounts"]]
    assert mounted.count(shown["name"]) == 1 and "stoker-cache" not in mounted, "nothing else of it"
    assert env_values(rendered)["STOKER_DATA_HOLD"] == "/data/a"


def test_data_by_name_is_the_runtimes_and_read_only_unless_both_say_otherwise() -> None:
    offers = [
        {"name": "sets", "source": {"hostPath": {"path": "/srv/sets"}}, "subPath": "v2"},
        {"name": "scratch", "source": {"nfs": {"server": "nas", "path": "/"}}, "readOnly": False},
    ]
    data = [
        {"name": "my-sets", "path": "sets", "subPath": "train", "readOnly": False},
        {"name": "s", "path": "scratch", "readOnly": False},
        {"name": "t", "path": "scratch"},
    ]
    rendered = pod(job(data=data), data=offers)
    assert volume(rendered, "/data/my-sets") == {"hostPath": {"path": "/srv/sets"}}
    assert env(rendered)["STOKER_DATA_MY_SETS"] == "/data/my-sets"
    found = {one["mountPath"]: one for one in rendered["spec"]["containers"][0]["volumeMounts"]}
    assert (found["/data/my-sets"]["subPath"], found["/data/my-sets"]["readOnly"]) == ("v2/train", True)
    assert "readOnly" not in found["/data/s"] and found["/data/t"]["readOnly"] is True
    for path in ("other", "/srv/sets"):
        with pytest.raises(CannotRender, match="offers no data"):
            pod(job(data=[{"name": "x", "path": path}]), data=offers)


def test_what_a_job_begins_with_is_shown_read_only_and_a_claim_is_in_the_pod_once() -> None:
    subject = job(
        trainer={"recipe": "image-classification", "initFrom": {"job": "base", "weights": "best", "partly": True}},
        checkpoint={"claim": "mine"},
    )
    for claim, name in (("theirs", "stoker-source"), ("mine", "stoker-checkpoints")):
        rendered = render_pod(subject, 0, TrainingRuntimeSpec(), SETTINGS, Source(claim, "u-0")).dump()
        assert volume(rendered, "/stoker/source") == {"persistentVolumeClaim": {"claimName": claim}}
        (mount,) = [
            one for one in rendered["spec"]["containers"][0]["volumeMounts"] if one["mountPath"] == "/stoker/source"
        ]
        assert (mount["name"], mount["subPath"], mount["readOnly"]) == (name, "u-0", True)
        claims = [one["persistentVolumeClaim"] for one in rendered["spec"]["volumes"] if "persistentVolumeClaim" in one]
        assert len(claims) == len({one["claimName"] for one in claims})
        assert len(rendered["spec"]["initContainers"][0]["volumeMounts"]) == 1
        variables = env(rendered)
        assert variables["STOKER_INIT_FROM"] == "/stoker/source/output/best.pt"
        assert variables["STOKER_INIT_PARTLY"] == "1" and "STOKER_CHECKPOINT_FROM" not in variables


def test_a_command_is_shown_the_checkpoints_it_goes_on_from() -> None:
    subject = job(checkpoint={"from": {"job": "base", "step": 40}})
    variables = env(render_pod(subject, 0, TrainingRuntimeSpec(), SETTINGS, Source("theirs", "u-0")).dump())
    assert variables["STOKER_CHECKPOINT_FROM"] == "/stoker/source/checkpoints"
    assert variables["STOKER_CHECKPOINT_FROM_STEP"] == "40"
    file = job(trainer={"recipe": "image-classification", "initFrom": {"path": "/data/base/weights.pt"}})
    assert env(pod(file))["STOKER_INIT_FROM"] == "/data/base/weights.pt" and "/stoker/source" not in mounts(pod(file))


LISTS = {"command": ["python", "train.py"], "code": "sha256:" + "0" * 64, "requirements": "uv.lock"}


@pytest.mark.parametrize("cache", [{"claim": "kept", "limit": "2Gi"}, {"hostPath": "/var/kept", "limit": "2Gi"}])
@pytest.mark.parametrize("data", [[], [{"name": "a", "url": "https://x.example/a.txt"}]])
def test_what_a_job_lists_is_installed_into_its_projects_part_of_the_cache(
    cache: dict[str, str], data: list[dict[str, str]]
) -> None:
    rendered = pod(job(trainer=LISTS, data=data), cache=cache)
    env = env_values(rendered)
    assert env["STOKER_REQUIREMENTS"] == "uv.lock" and env["STOKER_ENVIRONMENTS_BYTES"] == str(2 << 30)
    [mount] = [
        one
        for one in rendered["spec"]["containers"][0]["volumeMounts"]
        if one["mountPath"] == env["STOKER_ENVIRONMENTS_DIR"] == "/stoker/environments"
    ]
    [volume] = [one for one in rendered["spec"]["volumes"] if one["name"] == mount["name"]]
    made = [one for one in rendered["spec"]["initContainers"][0]["volumeMounts"] if one["mountPath"] != "/stoker"]
    assert not mount.get("readOnly")
    if "claim" in cache:
        assert (volume["persistentVolumeClaim"], mount["subPath"]) == ({"claimName": "kept"}, "team-a/environments")
        assert not made
    else:
        assert volume["hostPath"] == {"path": "/var/kept/team-a"}, "no link leads out of it"
        assert mount["subPath"] == "environments"
        assert made == [{"name": "stoker-cache", "mountPath": "/fetched", "subPath": "team-a", "readOnly": True}], (
            "so that the project's folder is there"
        )
    names = [one["name"] for one in rendered["spec"]["volumes"]]
    assert len(set(names)) == len(names)
    assert len(rendered["spec"]["initContainers"]) == 1 + len(data)


def test_without_a_cache_or_a_list_nothing_of_it_is_mounted() -> None:
    alone = pod(job(trainer=LISTS))
    assert env_values(alone)["STOKER_REQUIREMENTS"] == "uv.lock"
    assert "STOKER_ENVIRONMENTS_DIR" not in env_values(alone)
    for rendered in (alone, pod(job(), cache={"claim": "kept"})):
        mounts = [one["mountPath"] for one in rendered["spec"]["containers"][0]["volumeMounts"]]
        assert "/stoker/environments" not in mounts
