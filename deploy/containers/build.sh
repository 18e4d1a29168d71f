#!/usr/bin/env bash
# Build the image of this checkout: build.sh [MORE ARGUMENTS OF THE BUILDER]
#   IMAGE         its name (kvpressure:local)
#   BUILDER       docker, buildah or podman (the first that works)
#   PYTHON_IMAGE  another base than that of the Dockerfile
# The same commit gives the same layers, whenever and wherever it is built: all times are those of the commit.
# shellcheck source=deploy/containers/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

builder=${BUILDER:-$(first_engine docker buildah podman)}
epoch=${SOURCE_DATE_EPOCH:-$(epoch_here)}
arguments=(
  --file "$root/deploy/Dockerfile" --tag "$IMAGE"
  --build-arg "SOURCE_DATE_EPOCH=$epoch"
  --build-arg "VERSION=$(version_here)"
  --build-arg "REVISION=${REVISION:-$(revision_here)}"
)
[ -z "${PYTHON_IMAGE:-}" ] || arguments+=(--build-arg "PYTHON_IMAGE=$PYTHON_IMAGE")
[ -z "${PIP_INDEX_URL:-}" ] || arguments+=(--build-arg "PIP_INDEX_URL=$PIP_INDEX_URL")
case $builder in
  docker)
    # Times inside of layers are rewritten by BuildKit 0.13 and later only, and only with an output of its own.
    exec docker buildx build "${arguments[@]}" \
      --output "type=docker,rewrite-timestamp=true,name=$IMAGE" "$@" "$root"
    ;;
  buildah) exec buildah bud --layers=false --timestamp "$epoch" "${arguments[@]}" "$@" "$root" ;;
  podman) exec podman build --layers=false --timestamp "$epoch" "${arguments[@]}" "$@" "$root" ;;
  *) fail "BUILDER=$builder is none of docker, buildah and podman" ;;
esac
