"""The command lines in the Deployments are ones that operator and api understand, and say what the values say."""

from __future__ import annotations

from typing import Any

import click
import pytest

from stoker.controller.options import OperatorOptions, operator_command
from stoker.exporter.options import parse as exporter_options
from stoker_api.main import main as api_command

from .matrix import DIGEST, MATRIX, PEM
from .once import container, objects, of_kind

every_installation = pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())


def _operator(values: dict[str, Any], tmp_path: Any) -> OperatorOptions:
    """As the operator's own process reads its arguments; a mounted file is replaced by one that is here."""
    ca = tmp_path / "ca.crt"
    ca.write_text("")
    given: list[OperatorOptions] = []
    args = [arg.replace("/etc/stoker/ca/ca.crt", str(ca)) for arg in container(values, "operator")["args"]]
    with pytest.raises(SystemExit, match="0"):
        operator_command(lambda options: given.append(options) or 0).main(args, standalone_mode=False)
    return given[0]


@pytest.fixture
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.controller.options.set_up_logging", lambda *_: None)
    monkeypatch.setattr("stoker.controller.options._certificates", lambda path: PEM if path else "")
    monkeypatch.setattr("stoker.push.flags.client_context", lambda ca_file: None)


@every_installation
@pytest.mark.usefixtures("_quiet")
def test_the_operator_understands(values: dict[str, Any], tmp_path: Any) -> None:
    options = _operator(values, tmp_path)
    full = values.get("fullnameOverride", "stoker")
    assert options.lease_name == f"{full}-operator"
    [lease] = [one for one in objects(values) if one["kind"] == "Lease"]
    assert lease["metadata"]["name"] == options.lease_name and "spec" not in lease
    assert options.port == 8080
    assert options.cluster.control_image == container(values, "operator")["image"]
    assert options.topology == tuple(values.get("topology", {}).get("levels", ()))


@every_installation
def test_the_api_understands(values: dict[str, Any]) -> None:
    context = api_command.make_context("api", [*container(values, "api")["args"]])
    assert context.params["topology_levels"] == tuple(values.get("topology", {}).get("levels", ()))
    full = values.get("fullnameOverride", "stoker")
    domain = values.get("clusterDomain", "cluster.local")
    short, long = f"{full}-api", f"{full}-api.stoker-system.svc"
    names = set(context.params["allow_hosts"])
    assert {short, f"{short}.stoker-system", long, f"{long}.{domain}"} <= names
    assert context.params["port"] == 8470 and isinstance(context, click.Context)
    assert (context.params["tls_cert"] is None) == ("tls" not in values.get("api", {}))


@pytest.mark.parametrize("command", [operator_command(lambda options: 0), api_command], ids=["operator", "api"])
@pytest.mark.parametrize("key", ["a b", "", "rack/", "a/b/c"])
def test_a_topology_level_is_the_key_of_a_node_label(command: click.Command, key: str) -> None:
    others = ["--image=x", "--trainer-image=x"] if command is not api_command else ["--data=x"]
    with pytest.raises(click.BadParameter, match=f"'{key}' must be the key of a node label") as refused:
        command.make_context("x", [*others, "--topology-level=rack", f"--topology-level={key}"])
    assert refused.value.param is not None and refused.value.param.opts == ["--topology-level"]


@pytest.mark.usefixtures("_quiet")
def test_one_value_and_all_of_them_push(tmp_path: Any) -> None:
    values = MATRIX["pushed"]
    pushes = {
        tuple(arg for arg in container(values, who)["args"] if arg.startswith("--push-"))
        for who in ("operator", "api", "exporter")
    }
    assert len(pushes) == 1
    options = _operator(values, tmp_path).push
    assert options is not None and options.labels == {"cluster": "a"} and options.every_s == 15
    assert options.receiver.url == "https://prometheus.example:8443/api/v1/write"
    assert options.receiver.headers == {"X-Scope-OrgID": "team"} and str(options.receiver.ca_file).endswith("ca.crt")
    assert exporter_options([*container(values, "exporter")["args"]], {}).push_header == {"X-Scope-OrgID": "team"}
    policies = {one["metadata"]["name"]: one["spec"]["egress"] for one in of_kind(values, "NetworkPolicy")
                if "egress" in one["spec"]}  # fmt: skip
    ports = {name: [port["port"] for rule in egress for port in rule["ports"]] for name, egress in policies.items()}
    assert ports == {"stoker-operator": [53, 53, 443, 6443, 8443], "stoker-api": [53, 53, 443, 6443, 8443, 9464]}


@pytest.mark.usefixtures("_quiet")
def test_air_gapped(tmp_path: Any) -> None:
    options = _operator(MATRIX["air-gapped"], tmp_path)
    assert options.cluster.control_image == f"registry.example:5000/mirror/stoker@{DIGEST}"
    assert options.cluster.trainer_image == "registry.example:5000/mirror/trainer-cpu:1.2.3"
    assert options.cluster.pull_secrets == ("mirror", "other")
    assert options.cluster.api_ca == PEM
    images = [
        one_container["image"]
        for one in objects(MATRIX["air-gapped"])
        for spec in (one.get("spec", {}).get("template", {}).get("spec"), one.get("spec"))
        if isinstance(spec, dict)
        for one_container in spec.get("containers", ())
    ]
    assert len(images) == 4 and all(image.startswith("registry.example:5000/mirror/") for image in images)


@pytest.mark.usefixtures("_quiet")
def test_workers_report_where_the_api_is(tmp_path: Any) -> None:
    plain = _operator({}, tmp_path)
    assert plain.cluster.api_url == "http://stoker-api.stoker-system.svc:8470" and plain.cluster.api_ca == ""
    own = _operator(MATRIX["tls of the api's own"], tmp_path)
    assert own.cluster.api_url == "https://stoker-api.stoker-system.svc:8470" and own.cluster.api_ca == PEM
    elsewhere = _operator({"api": {"url": "https://stoker.example"}}, tmp_path)
    assert elsewhere.cluster.api_url == "https://stoker.example"


def test_a_changed_authority_restarts_the_operator() -> None:
    """It reads the file once, at its start."""

    def annotation(pem: str) -> str:
        [found] = [
            one["spec"]["template"]["metadata"]["annotations"]["checksum/ca"]
            for one in objects({"caBundle": {"pem": pem}})
            if one["kind"] == "Deployment" and one["metadata"]["name"] == "stoker-operator"
        ]
        return str(found)

    assert annotation(PEM) != annotation(PEM + PEM)


def test_of_a_secret_only_the_named_key_is_mounted() -> None:
    for one in objects(MATRIX["tls by cert-manager"]):
        if one["kind"] == "Deployment" and one["metadata"]["name"] == "stoker-operator":
            [ca] = [volume for volume in one["spec"]["template"]["spec"]["volumes"] if volume["name"] == "ca"]
            assert ca["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
