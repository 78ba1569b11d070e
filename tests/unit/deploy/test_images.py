"""Image builds and Ray's cluster launcher, as far as they can be checked without either."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_an_image_gets_every_package_and_says_that_it_was_not_built(name: str) -> None:
    text = (ROOT / "deploy" / "docker" / f"{name}.Dockerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert re.findall(r"^COPY (\w+) \1$", text, re.MULTILINE) == packages
    assert "NOT BUILT" in text
    for source in re.findall(r"^COPY ((?:\S+ )+)\S+$", text, re.MULTILINE):
        assert all((ROOT / path).exists() for path in source.split())


def test_ray_s_cluster_launcher_takes_its_file() -> None:
    ray = importlib.util.find_spec("ray")
    assert ray is not None
    assert ray.origin is not None
    schema = json.loads((Path(ray.origin).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(yaml.safe_load((ROOT / "deploy" / "ray" / "cluster.yaml").read_text()), schema)
