"""The objects of a kustomization, as far as ours go: resources, images, JSON patches, generators, a namespace.

Anything else in one is refused by name, so that nothing is silently left out. `kustomize build` is the real thing.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
CLUSTER_WIDE = {"Namespace"}
KNOWN = {
    "apiVersion", "kind", "namespace", "resources", "images", "patches", "configMapGenerator", "secretGenerator",
    "generatorOptions",
}  # fmt: skip


def build(folder: Path) -> list[Manifest]:
    """By kustomize when it is on PATH, else by `resolve`."""
    kustomize = shutil.which("kustomize")
    if kustomize is None:
        return resolve(folder)
    done = subprocess.run([kustomize, "build", str(folder)], capture_output=True, text=True, timeout=60, check=True)
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def resolve(folder: Path) -> list[Manifest]:
    content: Manifest = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = set(content) - KNOWN
    if unknown:
        raise ValueError(f"{folder}/kustomization.yaml: {sorted(unknown)} is not resolved here")
    manifests = [manifest for name in content.get("resources", []) for manifest in _resources(folder / name)]
    for generator in content.get("configMapGenerator", []):
        data = {Path(name).name: (folder / name).read_text() for name in generator["files"]}
        _put(manifests, generator, {"apiVersion": "v1", "kind": "ConfigMap", "data": data})
    for generator in content.get("secretGenerator", []):
        encoded = {
            Path(name).name: base64.b64encode((folder / name).read_bytes()).decode() for name in generator["files"]
        }
        _put(manifests, generator, {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": encoded})
    for patch in content.get("patches", []):
        for operation in yaml.safe_load(patch["patch"]):
            _apply(_find(manifests, patch["target"]["kind"], patch["target"]["name"]), operation)
    for manifest in manifests:
        if "namespace" in content and manifest["kind"] not in CLUSTER_WIDE:
            manifest["metadata"]["namespace"] = content["namespace"]
        for image in content.get("images", []):
            _name_image(manifest, image)
    return manifests


def _resources(path: Path) -> list[Manifest]:
    if path.is_dir():
        return resolve(path)
    # by way of JSON, so that what anchors share is copied: a patch must not change both
    return [json.loads(json.dumps(manifest)) for manifest in yaml.safe_load_all(path.read_text()) if manifest]


def _put(manifests: list[Manifest], generator: Manifest, manifest: Manifest) -> None:
    manifest["metadata"] = {name: generator[name] for name in ("name", "namespace") if name in generator}
    if generator.get("behavior") == "replace":
        manifests.remove(_find(manifests, manifest["kind"], generator["name"]))
    manifests.append(manifest)


def _find(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    [found] = [manifest for manifest in manifests if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name)]
    return found


def _apply(manifest: Manifest, operation: Manifest) -> None:
    """RFC 6902, `add` and `replace` of a mapping's member."""
    *path, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
    target: Any = manifest
    for part in path:
        target = target[int(part)] if isinstance(target, list) else target[part]
    if operation["op"] not in ("add", "replace") or (operation["op"] == "replace" and last not in target):
        raise ValueError(f"{operation['op']} of {operation['path']} cannot be applied")
    target[last] = operation["value"]


def _name_image(value: Any, image: Manifest) -> None:
    if isinstance(value, list):
        for item in value:
            _name_image(item, image)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name == "image" and isinstance(item, str) and item.partition(":")[0] == image["name"]:
                tag = image.get("newTag") or item.partition(":")[2]
                value[name] = f"{image.get('newName', image['name'])}:{tag}"
            else:
                _name_image(item, image)
