"""The dashboards' ids against Grafana's own code, as far as it is on npm."""

import json
import os
import subprocess

import generate
import grafana_modules
import pytest
from dashboards_help import FILES


@pytest.fixture(scope="module")
def said():
    """What Grafana's registries say of the ids in all dashboards."""
    reason = grafana_modules.reason()
    if reason:
        pytest.skip(reason)

    def ask(*files):
        command = ["node", str(grafana_modules.TOOL / "ids.cjs"), *map(str, files)]
        environment = {**os.environ, "GRAFANA_MODULES": str(grafana_modules.MODULES)}
        told = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
        # A library of theirs advertises itself in the lines before.
        return json.loads(told.splitlines()[-1])

    return ask


def test_every_id_exists(said):
    """Units, reducers, transformations, matchers and colour modes are ones that Grafana knows."""
    found = said(*(generate.ROOT / "dashboards" / name for name in FILES))

    assert [] == found["unknown"]
    assert found["count"] > 150


def test_a_misspelt_id_is_found(said, tmp_path):
    """The check sees what it is for."""
    page = json.loads(FILES["kvpressure-oncall.json"])
    page["panels"][1]["fieldConfig"]["defaults"]["unit"] = "secs"
    page["panels"][1]["options"]["reduceOptions"]["calcs"] = ["lastNotNul"]
    page["panels"][6]["transformations"][0]["id"] = "organise"
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(page), encoding="utf-8")

    assert {"unit secs", "reducer lastNotNul", "transformation organise"} == {
        fault.rpartition(": ")[2] for fault in said(wrong)["unknown"]
    }
