#!/usr/bin/env bash
# Write the digest that the base image's tag has now behind it in deploy/Dockerfile: pin.sh. Run it before a release,
# look at the difference, and commit it. An index of several platforms keeps them all.
# shellcheck source=deploy/containers/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

dockerfile=${DOCKERFILE:-$root/deploy/Dockerfile}
pinned=$(sed -n 's/^ARG PYTHON_IMAGE=//p' "$dockerfile")
tag=${pinned%%@*}
[ -n "$tag" ] || fail "$dockerfile has no line ARG PYTHON_IMAGE="
if command -v skopeo >/dev/null; then
  # The digest of what the registry hands out for the tag, not of one platform in it.
  digest=sha256:$(skopeo inspect --raw "docker://$tag" | sha256sum | cut -d' ' -f1)
elif command -v docker >/dev/null; then
  digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$tag")
else
  fail "neither skopeo nor docker is installed"
fi
[[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || fail "no digest of $tag was found"
sed -i "s|^ARG PYTHON_IMAGE=.*|ARG PYTHON_IMAGE=$tag@$digest|" "$dockerfile"
say "$dockerfile: $tag@$digest"
