#!/usr/bin/env bash
# Unpack Prometheus, Alertmanager, VictoriaMetrics and docker-compose of Debian 13 below a folder, and install nothing: debian-tools.sh DIR
# On Debian 12 too: the programs need nothing but the C library. As root; ten seconds, 400 MB.
# shellcheck source=deploy/containers/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need apt-get dpkg
[ $# = 1 ] || fail "usage: debian-tools.sh DIR"

dest=$1
[ ! -x "$dest/usr/bin/vmalert" ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/new"
# The mirror that this machine uses already.
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m1 '/debian/\?$') || fail "no Debian mirror is configured"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" >"$work/sources.list"
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
  -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o "Dir::Cache::archives=$work/cache/archives"
  -o APT::Sandbox::User=root)
"${apt[@]}" update
(cd "$work" && "${apt[@]}" download prometheus/trixie promtool/trixie prometheus-alertmanager/trixie docker-compose/trixie \
  victoria-metrics/trixie)
for package in "$work"/*.deb; do dpkg -x "$package" "$work/new"; done
rm -rf "$dest"
mkdir -p "$(dirname "$dest")"
mv "$work/new" "$dest"
chmod 755 "$dest"
