#!/usr/bin/env bash
# Write the lock files anew: deploy/requirements.txt (what runs in the image: the dependencies and the extra [auth]) and
# deploy/requirements-build.txt (what builds the wheel). Versions with hashes, for every platform, and no address.
# Versions that are locked stay as they are where they still fit; lock.sh --upgrade takes the newest.
# shellcheck source=deploy/containers/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need uv python3

cd "$root"
lock() {
  local out=$1
  shift
  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
    --custom-compile-command 'make lock' --output-file "$out" "${upgrade[@]}" "$@" >/dev/null
}
upgrade=("$@")
lock deploy/requirements.txt pyproject.toml --extra auth
python3 - <<'PYTHON' | lock deploy/requirements-build.txt -
import tomllib

with open("pyproject.toml", "rb") as file:
    print("\n".join(tomllib.load(file)["build-system"]["requires"]))
PYTHON
