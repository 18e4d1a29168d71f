#!/usr/bin/env bash
# Make a stand-in for the Python base image out of Debian's packages, for machines that reach no image registry:
# stand-in-base.sh NAME. It has Debian 12's Python 3.11, and the trust and the settings of pip that this machine has.
# shellcheck source=deploy/containers/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need debootstrap podman
[ $# = 1 ] || fail "usage: stand-in-base.sh NAME"

cache=$root/.cache/containers
rootfs=$cache/base
if [ ! -e "$rootfs.made" ]; then
  rm -rf "$rootfs"
  mkdir -p "$cache"
  say "debootstrap, about a minute, 275 MB below $cache"
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$rootfs" >"$cache/base.log" 2>&1 ||
    fail "debootstrap did not work: see $cache/base.log"
  rm -rf "$rootfs"/var/cache/apt/archives/*.deb "$rootfs"/var/lib/apt/lists/*
  touch "$rootfs.made"
fi
cp -L /etc/ssl/certs/ca-certificates.crt "$rootfs/etc/ssl/certs/ca-certificates.crt"
# As in the real image there is no pip configuration but what a proxy asks for.
printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' >"$rootfs/etc/pip.conf"
tar -C "$rootfs" --sort=name --numeric-owner -c . |
  podman import --quiet --change 'CMD ["python3"]' --message 'stand-in for a Python image, made of Debian packages' - "$1" >/dev/null
say "made $1 (a stand-in)"
