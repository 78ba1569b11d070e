"""The manifests: valid for Kubernetes and KubeRay, and of one mind with the configuration in them."""

from __future__ import annotations

import base64
import importlib.metadata
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from deploy.config import load
from proxy.__main__ import build_parser
from proxy.config import ProxyConfig
from security.certificates import make_certificates
from security.cluster_tls import ClusterTls
from tests.kubernetes.kustomization import Manifest, build, resolve

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
SCHEMA = json.loads((Path(__file__).parents[2] / "kubernetes" / "raycluster.schema.json").read_text())
KUBERNETES = "1.33"
VARIANTS = ("base", "cuda")


def objects(variant: str) -> dict[str, Manifest]:
    """By kind and name."""
    return {f"{m['kind']}/{m['metadata']['name']}": m for m in json.loads(built(variant))}


@cache
def built(variant: str) -> str:
    return json.dumps(build(FOLDER / variant))


def groups(variant: str) -> list[Manifest]:
    spec = objects(variant)["RayCluster/pdserve"]["spec"]
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def pod_templates(variant: str) -> list[Manifest]:
    return [group["template"] for group in groups(variant)] + [
        objects(variant)["Deployment/pdserve-proxy"]["spec"]["template"]
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_objects_of_kubernetes_are_valid(variant: str) -> None:
    for manifest in objects(variant).values():
        if manifest["kind"] != "RayCluster":
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_ray_cluster_is_what_kuberay_takes(variant: str) -> None:
    jsonschema.validate(objects(variant)["RayCluster/pdserve"], SCHEMA)
    for group in groups(variant):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **group["template"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_a_field_that_there_is_not_is_found() -> None:
    cluster = objects("base")["RayCluster/pdserve"]
    cluster["spec"]["workerGroupSpecs"][0]["replica"] = 2
    with pytest.raises(jsonschema.ValidationError, match="'replica' was unexpected"):
        jsonschema.validate(cluster, SCHEMA)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_configuration_is_one_and_fits_the_machines(variant: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(objects(variant)["ConfigMap/pdserve-config"]["data"]["cluster.yaml"])
    config = load(file, {"cluster.host": "10.0.0.1"})
    head, *workers = groups(variant)
    assert config.cluster.num_nodes == 1 + sum(group["replicas"] for group in workers)
    assert config.ray.address is not None
    assert {group["groupName"]: group["labels"] for group in workers} == {
        role: pool.placement.labels for role, pool in config.cluster.pools if pool.replicas
    }
    assert head["template"]["spec"]["containers"][0]["ports"][-1]["containerPort"] == config.cluster.controller_port
    wants_gpu = config.cluster.pools.decode.engine.device == "cuda"
    for group in workers:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        assert ("nvidia.com/gpu" in limits) == wants_gpu


def test_the_proxy_s_arguments_are_ones_that_it_takes() -> None:
    container = objects("base")["Deployment/pdserve-proxy"]["spec"]["template"]["spec"]["containers"][0]
    given = vars(build_parser().parse_args(container["args"]))
    config = ProxyConfig.model_validate({name: given[name] for name in given if name in ProxyConfig.model_fields})
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": config.http_port, "grpc": config.grpc_port}
    assert (
        given["model_name"] == yaml.safe_load((FOLDER / "base" / "cluster.yaml").read_text())["cluster"]["served_name"]
    )
    pod = objects("base")["Deployment/pdserve-proxy"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > config.drain_timeout_s
    service, port = given["controller"].split(":")
    assert objects("base")[f"Service/{service}"]["spec"]["ports"][0]["port"] == int(port)


@pytest.mark.parametrize("variant", VARIANTS)
def test_services_and_budgets_select_pods_that_there_are(variant: str) -> None:
    selectors = []
    for manifest in objects(variant).values():
        if manifest["kind"] == "Service":
            selectors.append(manifest["spec"]["selector"])
        if manifest["kind"] == "PodDisruptionBudget":
            selectors.append(manifest["spec"]["selector"]["matchLabels"])
    assert len(selectors) == 4
    pods = [template["metadata"]["labels"] for template in pod_templates(variant)]
    for selector in selectors:
        assert any(selector.items() <= labels.items() for labels in pods), selector


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_image_has_a_name_and_every_mounted_volume_is_there(variant: str) -> None:
    made = set(objects(variant)) | {f"Secret/{name}" for name in secret_names()}
    for template in pod_templates(variant):
        volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", [])}
        for container in template["spec"]["containers"]:
            assert container["image"].startswith("registry.example.org/pdserve:0.1.0-")
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= set(volumes)
        for volume in volumes.values():
            source = f"ConfigMap/{volume['configMap']['name']}" if "configMap" in volume else secret_of(volume)
            assert source in made


def secret_of(volume: Manifest) -> str:
    return f"Secret/{volume['secret']['secretName']}"


def secret_names() -> list[str]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / "secrets" / "kustomization.yaml").read_text())
    return [generator["name"] for generator in content["secretGenerator"]]


def test_certificates_and_keys_become_secrets_that_processes_can_use(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    shutil.copytree(FOLDER / "secrets", folder)
    make_certificates(folder / "certs", ["llm.example.org"], 30)
    (folder / "keys.json").write_text('{"keys": []}')
    secrets = {manifest["metadata"]["name"]: manifest for manifest in resolve(folder)}
    for manifest in secrets.values():
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for name, content in secrets["pdserve-certs"]["data"].items():
        (mounted / name).write_bytes(base64.b64decode(content))
        (mounted / name).chmod(0o440)
    assert ClusterTls.read(mounted).server is not None
    assert not (mounted / "ca.key").exists()


def test_what_the_resolver_does_not_know_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("components: [x]")
    with pytest.raises(ValueError, match=r"\['components'\] is not resolved here"):
        resolve(tmp_path)


def test_ray_is_the_version_that_is_installed() -> None:
    assert objects("base")["RayCluster/pdserve"]["spec"]["rayVersion"] == importlib.metadata.version("ray")
