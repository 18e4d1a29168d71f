#!/usr/bin/env bash
# Serve the tiny model on 127.0.0.1 until a signal.
# Usage: serve.sh DIR PORT BLOCKS MAX_MODEL_LEN MAX_NUM_SEQS [vllm serve flags]
#
# BLOCKS is the size of the KV cache in 32 tokens (the CPU's attention wants blocks of a multiple of that); a request of
# MAX_MODEL_LEN tokens must fit into it. Ready in about half a minute. OMP_NUM_THREADS=1 leaves a core for the client.
set -euo pipefail

if [[ $# -lt 5 || ! $2$3$4$5 =~ ^[0-9]+$ ]]; then
  echo "usage: serve.sh DIR PORT BLOCKS MAX_MODEL_LEN MAX_NUM_SEQS [vllm serve flags]" >&2
  exit 2
fi
dir=$1 port=$2 blocks=$3 length=$4 seqs=$5
shift 5
if [[ ! -x $dir/venv/bin/vllm ]]; then
  echo "there is no vLLM in $dir: run setup.sh VERSION $dir first" >&2
  exit 2
fi

# Before 0.14 "all" says what "nobind" says later (which crashes them), and the CPU's attention knows blocks of 16 only.
bind=nobind size=32
if grep -qs 'local_omp_cpuid != "all"' "$dir"/venv/lib/python3*/site-packages/vllm/v1/worker/cpu_worker.py; then
  bind=all size=16 blocks=$((blocks * 2))
fi

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" VLLM_CPU_OMP_THREADS_BIND="${VLLM_CPU_OMP_THREADS_BIND:-$bind}"
export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-2}"
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
# What vLLM starts by name (a compiler, its own workers) is to come from the same folder.
PATH=$(cd "$dir" && pwd)/venv/bin:$PATH
export PATH
# Older ones want these two preloaded and do not start otherwise; setup.sh has put them there where that is so.
for library in "$dir"/venv/deb/usr/lib/*/libtcmalloc_minimal.so.4 "$dir"/venv/lib/libiomp5.so; do
  if [[ -d $dir/venv/deb && -f $library ]]; then
    LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}$(realpath -s "$library")
    export LD_PRELOAD
  fi
done
exec vllm serve "$dir/model" --served-model-name tiny --load-format dummy --host 127.0.0.1 --port "$port" \
  --max-model-len "$length" --num-gpu-blocks-override "$blocks" --block-size "$size" --max-num-seqs "$seqs" \
  --enforce-eager "$@"
