#!/usr/bin/env bash
# Write what is really installed in an image as CycloneDX JSON: sbom.sh FILE
#   IMAGE   its name (kvpressure:local)
#   ENGINE  docker or podman (the first that works)
# It tells of Python packages. What the base image brings is told by whoever made that.
# shellcheck source=deploy/containers/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need python3 cyclonedx-py
[ $# = 1 ] || fail "usage: sbom.sh FILE"

engine=${ENGINE:-$(first_engine docker podman)}
work=$(mktemp -d)
container=
clean_up() {
  [ -z "$container" ] || "$engine" rm "$container" >/dev/null
  rm -rf "$work"
}
trap clean_up EXIT

container=$("$engine" create "$IMAGE")
"$engine" cp "$container:/opt/kvpressure/lib" "$work/image"
# An environment of this machine that has those packages and no others: only their metadata is read.
python3 -m venv --without-pip "$work/venv"
cp -R "$work"/image/python3.*/site-packages/. "$work"/venv/lib/python3.*/site-packages/
# The version is that of the package in the image.
installed=$(echo "$work"/image/python3.*/site-packages/kvpressure-*.dist-info)
installed=${installed##*/kvpressure-}
sed "s/^dynamic = \[\"version\"\]/version = \"${installed%.dist-info}\"/" "$root/pyproject.toml" >"$work/pyproject.toml"
cyclonedx-py environment "$work/venv" --pyproject "$work/pyproject.toml" \
  --mc-type application --output-reproducible --output-format JSON --spec-version 1.6 --output-file "$1"
say "wrote $1"
