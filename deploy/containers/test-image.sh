#!/usr/bin/env bash
# Build the image for real on a stand-in base, run it as Kubernetes would, beside the lab, and look at it from outside.
# As root, with podman, buildah, debootstrap, curl and git (README.md). Two minutes; leaves nothing behind but a cache.
# shellcheck source=deploy/containers/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need podman buildah curl git

limit=$((40 * 1024 * 1024))
base=localhost/kvpressure-test/python:for-image
export IMAGE=localhost/kvpressure-test/kvpressure:test PYTHON_IMAGE=$base BUILDER=buildah
lab=kvpressure-test-lab sidecar=kvpressure-test-sidecar
work=$(mktemp -d)

clean_up() {
  podman rm --force --time 2 "$sidecar" "$lab" >/dev/null 2>&1 || true
  podman rmi --force "$IMAGE" "$IMAGE-again" "$base" >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap clean_up EXIT
clean_up
mkdir -p "$work"

# --- build twice, from two folders with other permissions and times ---------------------------------------------------
"$here/stand-in-base.sh" "$base"
copy_of_checkout() {
  mkdir -p "$1" && tar -C "$root" -c --exclude='__pycache__' pyproject.toml README.md LICENSE .dockerignore exporter deploy | tar -C "$1" -x
}
copy_of_checkout "$work/one"
copy_of_checkout "$work/another/folder"
find "$work/another" -type f -exec chmod go-rwx {} + -exec touch -d 2001-01-01 {} +
SOURCE_DATE_EPOCH=$(epoch_here)
REVISION=$(revision_here)
export SOURCE_DATE_EPOCH REVISION
"$work/one/deploy/containers/build.sh" --isolation chroot >"$work/build.log" 2>&1 || { tail -20 "$work/build.log"; fail "the build"; }
sleep 2
IMAGE=$IMAGE-again "$work/another/folder/deploy/containers/build.sh" --isolation chroot >"$work/build.log" 2>&1 ||
  { tail -20 "$work/build.log"; fail "the second build"; }
layers() { podman image inspect --format '{{range .RootFS.Layers}}{{.}} {{end}}' "$1"; }
[ "$(layers "$IMAGE")" = "$(layers "$IMAGE-again")" ] || fail "two builds of one commit have other layers"
[ "$(podman image inspect --format '{{.Digest}}' "$IMAGE")" = "$(podman image inspect --format '{{.Digest}}' "$IMAGE-again")" ] ||
  fail "two builds of one commit have other digests"
say "ok  two builds, one digest: $(podman image inspect --format '{{.Digest}}' "$IMAGE")"

# --- what it is -------------------------------------------------------------------------------------------------------
size() { podman image inspect --format '{{.Size}}' "$1"; }
added=$(($(size "$IMAGE") - $(size "$base")))
((added < limit)) || fail "it adds $added bytes to its base, more than $limit"
say "ok  it adds $((added / 1000)) kB to its base"
[ "$(podman image inspect --format '{{.Config.User}}' "$IMAGE")" = 65532:65532 ] || fail "the user is not 65532:65532"
[ "$(podman image inspect --format '{{index .Labels "org.opencontainers.image.revision"}}' "$IMAGE")" = "$REVISION" ] ||
  fail "the label of the revision is not the commit"
[ "$(podman image inspect --format '{{.Config.Healthcheck}}' "$IMAGE")" = '<nil>' ] || fail "it has a health check"

locked=(--read-only --read-only-tmpfs=false --cap-drop=ALL --security-opt=no-new-privileges)
python() { podman run --rm "${locked[@]}" --entrypoint /opt/kvpressure/bin/python "$IMAGE" -c "$1"; }
podman run --rm "${locked[@]}" "$IMAGE" serve --version >&2
python 'import importlib.util as u, sys; sys.exit(any(map(u.find_spec, ("pip", "setuptools", "hatchling", "grafanalib"))))' ||
  fail "pip or a build tool is in it"
python 'import bcrypt, kvpressure, pathlib, sys
sys.exit("site-packages" not in kvpressure.__file__ or not pathlib.Path(kvpressure.__cached__).exists())' ||
  fail "kvpressure is not an installed, compiled package with [auth]"
python 'import ssl, certifi, sys; sys.exit(not ssl.create_default_context().get_ca_certs() or not open(certifi.where()).read())' ||
  fail "it trusts no certificate authority"
if podman run --rm "${locked[@]}" --entrypoint /bin/sh "$IMAGE" -c 'touch /opt/kvpressure/x' 2>/dev/null; then
  fail "its own files can be written"
fi
say "ok  no pip, no build tool; bcrypt, bytecode and certificate authorities are there; nothing can be written"

# --- what is in it ----------------------------------------------------------------------------------------------------
if command -v cyclonedx-py >/dev/null; then
  ENGINE=podman "$here/sbom.sh" "$work/sbom.json" 2>/dev/null
  ENGINE=podman "$here/sbom.sh" "$work/again.json" 2>/dev/null
  cmp "$work/sbom.json" "$work/again.json" || fail "two bills of materials of one image differ"
  # Every package of the lock that has no condition, in its version; and of kvpressure the version that runs.
  python3 - "$work/sbom.json" "$root/deploy/requirements.txt" "$(version_here)" <<'PYTHON' || fail "the bill of materials"
import json, re, sys

sbom, lock, version = json.load(open(sys.argv[1])), open(sys.argv[2]).read(), sys.argv[3]
told = {(one["name"].lower().replace("_", "-"), one["version"]) for one in sbom["components"]}
lacking = set(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", lock, re.MULTILINE)) - told
sys.exit(f"lacking: {lacking}" if lacking or sbom["metadata"]["component"]["version"] != version else 0)
PYTHON
  say "ok  the bill of materials has every locked package"
else
  say "--  no cyclonedx-py: the bill of materials was not looked at"
fi

# --- as a sidecar of the lab: in one network namespace, as in a pod ---------------------------------------------------
podman run --detach --name "$lab" --publish 127.0.0.1::10938 "${locked[@]}" "$IMAGE" lab --scenario storm >/dev/null
podman run --detach --name "$sidecar" --network "container:$lab" --memory 256m "${locked[@]}" "$IMAGE" \
  --vllm.url http://127.0.0.1:8000/metrics >/dev/null
port=$(podman port "$lab" 10938/tcp | sed 's/.*://')
url=http://127.0.0.1:$port
up() { curl -fsS "$url/metrics" -o "$work/metrics" && grep -q '^kvpressure_up 1' "$work/metrics"; }
eventually 30 "the sidecar sees the lab" up
[ "$(curl -fsS -o /dev/null -w '%{http_code}' "$url/-/ready")" = 200 ] || fail "/-/ready"
grep -q '^kvpressure_requests_running{' "$work/metrics" || fail "no signal of the lab's engine"
status=/proc/$(podman inspect --format '{{.State.Pid}}' "$sidecar")/status
grep -qP '^Uid:\t65532\t65532\t65532\t65532$' "$status" || fail "it does not run as 65532"
grep -qP '^CapEff:\t0+$' "$status" || fail "it has capabilities"
grep -qP '^CapBnd:\t0+$' "$status" || fail "it could get capabilities"
grep -qP '^NoNewPrivs:\t1$' "$status" || fail "it can gain privileges"
say "ok  RSS after the first samples: $(awk '/^VmRSS/ {print $2, $3}' "$status")"
say "ok  scraped: $(grep -vc '^#' "$work/metrics") samples; runs as 65532 without capabilities"

for name in "$sidecar" "$lab"; do
  began=$SECONDS
  podman kill --signal TERM "$name" >/dev/null
  code=$(timeout 10 podman wait "$name") || fail "$name did not end within 10 s of SIGTERM"
  [ "$code" = 0 ] || fail "$name ended with $code"
  say "ok  $name ended with 0 within $((SECONDS - began + 1)) s of SIGTERM"
done
say "passed"
