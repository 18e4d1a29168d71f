#!/usr/bin/env bash
# Bring docker-compose.yml up for real, over podman's socket, and wait until the storm's page has arrived.
# As root, with podman, buildah, debootstrap, curl and python3 (README.md). Nothing in it is sped up: eight minutes.
# Prometheus and Alertmanager are Debian's programs in images of our own. There is no Grafana: what takes its place only
# hands out the dashboards' files, so that its port and its mounts are seen and nothing else of it.
# shellcheck source=deploy/containers/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need podman buildah curl python3

own=localhost/kvpressure-test
base=$own/python:for-compose
tools=${TOOLS:-$root/.cache/containers/debian}
project=kvpressure-test
yours=kvpressure-test-yours
work=$(mktemp -d)
export DOCKER_HOST=unix://$work/podman.sock DOCKER_BUILDKIT=0 COMPOSE_PROJECT_NAME=$project PYTHON_IMAGE=$base
unset VLLM_URL SCENARIO
files=(--file "$root/docker-compose.yml" --file "$work/stand-ins.yml" --file "$work/lab.yml")
compose=("$tools/usr/bin/docker-compose" --project-directory "$root" "${files[@]}")

clean_up() {
  local status=$?
  if [ "$status" != 0 ] && [ -S "$work/podman.sock" ]; then "${compose[@]}" logs --tail 20 >&2 || true; fi
  [ ! -S "$work/podman.sock" ] || "${compose[@]}" down --volumes --timeout 5 >/dev/null 2>&1 || true
  [ -z "${service:-}" ] || kill "$service" 2>/dev/null || true
  podman rm --force --time 2 "$yours" >/dev/null 2>&1 || true
  podman rmi --force "$own"/{kvpressure:compose,prometheus:stand-in,alertmanager:stand-in,grafana:stand-in} "$base" >/dev/null 2>&1 || true
  # Stages of the build that have no name.
  podman images --quiet --filter dangling=true | grep -vxFf "$work/unnamed" | xargs -r podman rmi --force >/dev/null 2>&1 || true
  rm -rf "$work"
}
podman images --quiet --filter dangling=true >"$work/unnamed"
trap clean_up EXIT

# --- images -----------------------------------------------------------------------------------------------------------
"$here/debian-tools.sh" "$tools"
"$here/stand-in-base.sh" "$base"
# stand_in NAME USER FOLDER-OF-DATA ENTRYPOINT FILE...: what of the real image the compose file counts on.
stand_in() {
  local name=$1 user=$2 data=$3 entrypoint=$4 container
  shift 4
  container=$(buildah from --pull-never "$base")
  buildah run --isolation chroot "$container" -- install -d -o "$user" -g "$user" "$data"
  while [ $# -gt 0 ]; do
    buildah copy --quiet "$container" "$1" "$2" >/dev/null
    shift 2
  done
  buildah config --user "$user" --workingdir "$data" --entrypoint "$entrypoint" --cmd '' "$container"
  buildah commit --quiet --rm "$container" "$own/$name:stand-in" >/dev/null
}
stand_in prometheus 65534 /prometheus '["/bin/prometheus"]' "$tools/usr/bin/prometheus" /bin/prometheus
stand_in alertmanager 65534 /alertmanager '["/bin/alertmanager"]' \
  "$tools/usr/bin/prometheus-alertmanager" /bin/alertmanager \
  "$tools/usr/share/prometheus/alertmanager" /usr/share/prometheus/alertmanager
stand_in grafana 472 /var/lib/grafana '["python3", "-m", "http.server", "3000", "--directory", "/dashboards"]'

# What differs from the file that is shipped: names of images, and ports, so that it disturbs no stack that runs here.
cat >"$work/stand-ins.yml" <<YAML
services:
  kvpressure: {image: "$own/kvpressure:compose"}
  pages: {image: "$own/kvpressure:compose"}
  prometheus: {image: "$own/prometheus:stand-in", pull_policy: never}
  alertmanager: {image: "$own/alertmanager:stand-in", pull_policy: never}
  grafana: {image: "$own/grafana:stand-in", pull_policy: never}
YAML
cat >"$work/lab.yml" <<YAML
services:
  lab: {image: "$own/kvpressure:compose"}
  users: {image: "$own/kvpressure:compose"}
YAML

# --- up ---------------------------------------------------------------------------------------------------------------
podman system service --time=0 "$DOCKER_HOST" >"$work/service.log" 2>&1 &
service=$!
eventually 10 "podman's socket" test -S "$work/podman.sock"
"${compose[@]}" up --detach --build 2>&1 | tail -40 >&2
began=$SECONDS
page() { "${compose[@]}" logs --no-color pages >"$work/pages" 2>&1 && grep "$@" "$work/pages"; }
get() { curl -fsS --max-time 5 "http://127.0.0.1:$1"; }
ask() { get "9090/api/v1/query?query=$1" >"$work/answer" && grep -q '"value"' "$work/answer"; }

eventually 60 "kvpressure is ready" get 10938/-/ready
eventually 60 "the tap passes requests on to the lab" get 8001/v1/models
eventually 60 "Prometheus is ready" get 9090/-/ready
eventually 60 "Alertmanager is ready" get 9093/-/ready
eventually 60 "what takes Grafana's place has the dashboard" get 3000/kvpressure-oncall.json
eventually 90 "Prometheus has the sidecar's signals" ask 'kvpressure_up==1'
eventually 90 "Prometheus has vLLM's own series, by the tap" ask 'up%7Bjob="vllm"%7D==1'
eventually 90 "the tap sees the users' streams" ask 'kvpressure_requests_streamed_total%7Bsource="tap"%7D>0'
say "ok  up after $((SECONDS - began)) s: signals, tap, vLLM's series by the tap, dashboards' files"
for name in $("${compose[@]}" ps --services); do
  id=$("${compose[@]}" ps --quiet "$name")
  status=/proc/$(podman inspect --format '{{.State.Pid}}' "$id")/status
  grep -qP '^CapBnd:\t0+$' "$status" || fail "$name could get capabilities"
  grep -qP '^NoNewPrivs:\t1$' "$status" || fail "$name can gain privileges"
  ! grep -qP '^Uid:\t0\t' "$status" || fail "$name runs as root"
  [ "$(podman inspect --format '{{.HostConfig.ReadonlyRootfs}}' "$id")" = true ] || fail "$name can write to its root"
  ! podman port "$id" | grep -v 127.0.0.1 || fail "$name listens beyond the loopback"
done
say "ok  no container is root, has a capability, a root to write to, or a port beyond the loopback"

# --- the page ---------------------------------------------------------------------------------------------------------
firing() { get 9093/api/v2/alerts >"$work/alerts" && grep -q '"alertname":"KVPressurePreemptionStorm"' "$work/alerts"; }
eventually 600 "Alertmanager has the storm's alert" firing
say "ok  KVPressurePreemptionStorm is at Alertmanager after $((SECONDS - began)) s"
eventually 120 "the page arrives" page 'page firing alertname=KVPressurePreemptionStorm'
say "ok  the page arrived after $((SECONDS - began)) s: $(page -o 'page firing alertname=KVPressurePreemptionStorm.*' | head -1)"
(($(page -c 'page firing alertname=KVPressurePreemptionStorm') == 1)) || fail "more than one page"

# --- down -------------------------------------------------------------------------------------------------------------
for name in kvpressure lab users; do podman inspect --format '{{.State.Status}} {{.RestartCount}}' "$("${compose[@]}" ps --quiet "$name")"; done |
  sort -u | grep -qx 'running 0' || fail "a container was restarted"
began=$SECONDS
"${compose[@]}" stop users lab kvpressure >/dev/null 2>&1
for name in kvpressure lab users; do
  code=$(podman inspect --format '{{.State.ExitCode}}' "$("${compose[@]}" ps --all --quiet "$name")")
  [ "$code" = 0 ] || fail "$name ended with $code"
done
say "ok  users, lab and kvpressure ended with 0, in $((SECONDS - began)) s"

# --- your own vLLM instead ---------------------------------------------------------------------------------------------
"${compose[@]}" down --volumes --timeout 5 >/dev/null 2>&1
# On the network of this machine, as somebody's vLLM would be.
port=18000
podman run --detach --name "$yours" --network host --read-only --cap-drop=ALL "$own/kvpressure:compose" \
  lab --scenario calm --no-load --model yours --web.listen-address "0.0.0.0:$port" >/dev/null
eventually 30 "a vLLM of one's own" get "$port/health"
# Podman's own name for this machine: before 4.7 it does not know what Docker's host-gateway is.
export VLLM_URL=http://host.containers.internal:$port
echo 'services: {}' >"$work/lab.yml"
"${compose[@]}" up --detach --no-build 2>&1 | tail -1 >&2
watched() { get 10938/metrics >"$work/metrics" && grep -q '^kvpressure_requests_running{.*model_name="yours"' "$work/metrics"; }
eventually 60 "the sidecar sees it" watched
eventually 60 "the tap passes requests on to it" get 8001/v1/models
sleep 20
[ "$("${compose[@]}" ps --services | sort | xargs)" = "alertmanager grafana kvpressure pages prometheus" ] || fail "other services run"
get "$port/metrics" >"$work/theirs"
grep -q '^vllm:prompt_tokens_total{.* 0\(\.0\)\?$' "$work/theirs" || fail "somebody sent it requests"
say "ok  with VLLM_URL that vLLM is watched, and nobody sends it requests"
say "passed"
