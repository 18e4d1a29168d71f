# shellcheck shell=bash
# What the scripts here share. Sourced, never run.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
# runc instead of crun, no journal, and few enough open files for an ordinary user: works in a bare virtual machine too.
export CONTAINERS_CONF=${CONTAINERS_CONF:-$here/containers.conf}
export IMAGE=${IMAGE:-kvpressure:local}

say() { printf '%s\n' "$*" >&2; }

fail() {
  say "FAILED: $*"
  exit 1
}

need() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || fail "$tool is not installed ($here/README.md says where it comes from)"
  done
}

# eventually SECONDS WHAT COMMAND...: until the command succeeds, or fail.
eventually() {
  local seconds=$1 what=$2 end
  shift 2
  end=$((SECONDS + seconds))
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || fail "not within $seconds s: $what"
    sleep 0.5
  done
}

# The version that the package has, and the time and name of the commit, or of none where there is no git.
version_here() { sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/exporter/kvpressure/__init__.py"; }
revision_here() { git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown; }
epoch_here() { git -C "$root" log -1 --format=%ct 2>/dev/null || echo 1580601600; }

# first_engine CANDIDATE...: the first that is there and works; Docker's command alone, without its daemon, does not.
first_engine() {
  local candidate
  for candidate in "$@"; do
    command -v "$candidate" >/dev/null || continue
    [ "$candidate" != docker ] || docker info >/dev/null 2>&1 || continue
    echo "$candidate"
    return
  done
  fail "none of these is installed and running: $*"
}
