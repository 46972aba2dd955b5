#!/usr/bin/env bash
# Everything that only a machine with a GPU can say, in at most eight minutes: builds for that GPU, runs
# the tests of the kernels on it, some of them under compute-sanitizer, and times the training of a
# GPT-2 beside the machine's limits and, where it is installed, beside PyTorch.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
. "$root/scripts/common.sh"

usage() {
  cat <<TEXT
scripts/gpu_check.sh [OPTION]...

Builds in $root/build-gpu, which needs the CUDA toolkit, and keeps what was printed there.

  --batch N      rows of 1024 tokens in a step of the benchmark (default 64)
  --seconds N    stop after so long, whatever is left (default 480)
  --prepare      only build, for x86-64 processors with AVX2, and gather what the programs load:
                 for a machine that has a GPU and no compiler
  --prepared     build nothing: run what is there
  --no-install   install nothing; use what is here
  --jobs N       compile N files at a time; by default one for each core and GB of memory
  -D...          an option for CMake
  --help         this text
TEXT
}

batch=64 limit=480 prepare='' prepared='' options=()
while [ $# != 0 ]; do
  case $1 in
    --batch) check_number "$@" && batch=$2 && shift ;;
    --seconds) check_number "$@" && limit=$2 && shift ;;
    --prepare) prepare=yes ;;
    --prepared) prepared=yes ;;
    --no-install) install=no ;;
    --jobs) take_jobs "${2:-}" && shift ;;
    -D?*) options+=("$1") ;;
    --help | -h) usage && exit ;;
    *) die "Unknown option $1; see scripts/gpu_check.sh --help" ;;
  esac
  shift
done

[ -z "$prepare" ] || [ -z "$prepared" ] || die "--prepare and --prepared exclude each other."
folder=$root/build-gpu failed=0
tests=$folder/tests/cuda/tapeformer_gpu_tests bench=$folder/bench/bench_gpu

if [ -n "$prepare" ]; then
  own=(-DTAPEFORMER_ARCH=x86-64-v3 '-DCMAKE_CUDA_ARCHITECTURES=80;90')
else
  gpu=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>/dev/null | head -n 1) ||
    gpu=''
  [ -n "$gpu" ] || die "This check needs an NVIDIA GPU, and nvidia-smi finds none here."
  say "GPU: $gpu"
  own=(-DTAPEFORMER_ARCH= "-DCMAKE_CUDA_ARCHITECTURES=$(sed 's/.*, *//; s/\.//' <<<"$gpu")")
fi
if [ -z "$prepared" ]; then
  require_packages tests
  configure "$folder" -DCMAKE_BUILD_TYPE=Release -DTAPEFORMER_CUDA=ON \
    -DTAPEFORMER_BUILD_TESTS=ON -DTAPEFORMER_BUILD_EXAMPLES=OFF -DTAPEFORMER_BUILD_BENCH=ON \
    "${own[@]}" ${options[@]+"${options[@]}"}
  build "$folder" tapeformer_gpu_tests bench_gpu
fi
if [ -n "$prepare" ]; then
  mkdir -p "$folder/lib"
  ldd "$tests" "$bench" | awk '$3 ~ /(blas|gfortran|quadmath|gomp|utf8proc)/ { print $3 }' | sort -u |
    while read -r library; do cp -L "$library" "$folder/lib"; done
  say "There, this needs build-gpu/lib, build-gpu/tests/cuda and build-gpu/bench beside the source:"
  say "  scripts/gpu_check.sh --prepared"
  exit
fi
[ -x "$tests" ] && [ -x "$bench" ] ||
  die "--prepared: $folder has no programs; scripts/gpu_check.sh --prepare builds them."
if [ -n "$prepared" ]; then export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi

# step NAME SECONDS COMMAND...: runs it for so long at the most, and within the limit of the whole.
step() {
  local name=$1 most=$2 left=$((limit - SECONDS)) log=$folder/$1.log status=0
  shift 2
  if [ "$left" -lt 5 ]; then
    say "-- $name: left out, the time is over" && failed=$((failed + 1)) && return
  fi
  say "-- $name, after $SECONDS s"
  timeout "$((most < left ? most : left))" "$@" 2>&1 | tee "$log" || status=$?
  case $status in
    0) ;;
    124) say "-- $name: not finished, its time was over" && failed=$((failed + 1)) ;;
    *) say "-- $name FAILED with status $status" && failed=$((failed + 1)) ;;
  esac
}

rm -f "$folder/bench.json"
step ptx 30 "$tests" 'ptx_*'
step tests 120 "$tests"
step bench 90 "$bench" --batch "$batch" --seconds 15 --json "$folder/bench.json"
if ! python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  say "-- python3 has no PyTorch for this GPU, so it is left out"
elif [ -f "$folder/bench.json" ]; then
  step pytorch 120 python3 "$root/bench/pytorch_gpu.py" --seconds 15 --json "$folder/bench.json"
fi
# Last, for a sanitized kernel is up to a hundred times slower; without the training.
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if have "$sanitizer"; then
  for tool in memcheck racecheck synccheck; do
    step "$tool" 60 "$sanitizer" --tool "$tool" --error-exitcode 1 "$tests" \
      'ptx_*,cuda_attention_*,cuda_layer_norm_and_*,cuda_sums_*,cuda_sum_of_*'
  done
else
  say "-- compute-sanitizer is not installed, so it is left out"
fi
say "Done after $SECONDS s; $failed failed. What was printed is in $folder/*.log."
[ "$failed" = 0 ]
