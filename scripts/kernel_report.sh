#!/usr/bin/env bash
# What each CUDA kernel takes of a GPU, from the compiler's report: registers, shared memory, spills
# and how much of a multiprocessor its blocks fill. Needs nvcc, no GPU; a spill is an error.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
. "$root/scripts/common.sh"

usage() {
  cat <<TEXT
scripts/kernel_report.sh [OPTION]... [FILE.cu]...

Compiles the kernels of core/cuda (or these files) for compute capability 8.0 and 9.0 and prints a
line for each kernel. Dynamic shared memory is known where it is launched alone: it comes from the
tests on the emulator, where they are built in $root/build.

  --arch LIST     of 80, 90; by default 80,90
  --tests FILE    the program of those tests
  --jobs N        compile N files at a time; by default one for each core and GB of memory
  --help          this text
TEXT
}

archs=80,90 files=() tests=$root/build/tests/cuda_emulator/tapeformer_cuda_tests
while [ $# != 0 ]; do
  case $1 in
    --arch) archs=${2:?--arch needs a list, such as 80,90} && shift ;;
    --tests) tests=${2:?--tests needs a program} && shift ;;
    --jobs) take_jobs "${2:-}" && shift ;;
    --help | -h) usage && exit ;;
    -*) die "Unknown option $1; see scripts/kernel_report.sh --help" ;;
    *) files+=("$1") ;;
  esac
  shift
done
[ ${#files[@]} != 0 ] || files=("$root"/core/cuda/*.cu)
for arch in ${archs//,/ }; do
  case $arch in 80 | 90) ;; *) die "--arch takes 80 and 90, got '$arch'" ;; esac
done
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
have "$nvcc" || die "There is no nvcc here; install the CUDA toolkit, or add its bin folder to PATH."
ptxas=$(dirname "$nvcc")/ptxas
export nvcc ptxas root

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export folder

# Leaves FOLDER/NAME.ARCH.ptx and .txt, the report on it.
report_on() {
  local arch=$1 file=$2 to
  to=$folder/$(basename "$file").$arch
  "$nvcc" -std=c++20 -O3 -DNDEBUG -DTAPEFORMER_CUDA --expt-relaxed-constexpr -I "$root" \
    -ptx -arch="compute_$arch" -o "$to.ptx" "$file" || return
  if ! "$ptxas" -O3 -v -arch="sm_$arch" -o /dev/null "$to.ptx" >"$to.txt" 2>&1; then
    cat "$to.txt" >&2
    return 1
  fi
}
export -f report_on
for arch in ${archs//,/ }; do printf "$arch %s\n" "${files[@]}"; done |
  xargs -P "${jobs:-$(build_jobs)}" -L 1 bash -c 'report_on "$@"' report_on ||
  die "A kernel could not be compiled."

: >"$folder/launches"
if [ -x "$tests" ]; then
  TAPEFORMER_LAUNCHES=$folder/launches "$tests" '*attention*' >"$folder/tests.log" 2>&1 ||
    die "The tests of attention fail: run $tests"
fi

# A multiprocessor has 64 K registers, given to a warp in pieces of 256 by each of four parts; 2,048
# threads; 32 blocks; 164 KB of shared memory (9.0: 228 KB), 1 KB of which each block takes.
for arch in ${archs//,/ }; do
  cat "$folder"/*."$arch".ptx "$folder"/*."$arch".txt | c++filt |
    awk -v arch="$arch" -v launches="$folder/launches" '
      function short(name) {
        gsub(/tapeformer::|kernels::|cuda::|\(anonymous namespace\)::|^void /, "", name)
        sub(/\(.*/, "", name)
        return name
      }
      function least(a, b) { return a < b ? a : b }
      function finish(    warps, per_warp, blocks, shared, size) {
        if (name == "") return
        shared = smem + dynamic[name]
        if (!threads[name]) threads[name] = 1024  # no launch bounds: the most there can be
        warps = threads[name] / 32
        per_warp = int((registers * 32 + 255) / 256) * 256
        blocks = int(4 * int(16384 / per_warp) / warps)
        size = int((shared + 127) / 128) * 128 + 1024
        blocks = least(least(blocks, 32), int(64 / warps))
        blocks = least(blocks, int((arch == 80 ? 164 : 228) * 1024 / size))
        unknown = (name in external) && !(name in dynamic)
        printf "sm_%s %7d %9d %8d %7d %9s  %s\n", arch, threads[name], registers, shared,
               spills, unknown ? "?" : sprintf("%d%%", 100 * blocks * warps / 64), name
        if (spills > 0) bad = 1
        name = ""
      }
      BEGIN {
        while ((getline line < launches) > 0) {
          bytes = line; sub(/ .*/, "", bytes); sub(/^[0-9]+ /, "", line)
          dynamic[line] = bytes
        }
      }
      /\.entry / { entry = $0; sub(/.*\.entry /, "", entry); entry = short(entry) }
      /^\.maxntid/ { split($0, part, /[ ,]+/); threads[entry] = part[2] }
      /dynamic_shared/ && !/\.extern/ { external[entry] = 1 }
      /Compiling entry function/ { finish(); name = $0; sub(/^[^\x27]*\x27/, "", name); name = short(name); smem = 0 }
      /spill stores/ { spills = $5 + $9 }
      /Used [0-9]+ registers/ {
        registers = $0; sub(/.*Used /, "", registers); registers += 0
        if (match($0, /[0-9]+ bytes smem/)) smem = substr($0, RSTART) + 0
      }
      END { finish(); exit bad }' >"$folder/lines.$arch" || spilled=yes
done
printf '%-5s %7s %9s %8s %7s %9s  %s\n' arch threads registers shared spilled occupancy kernel
cat "$folder"/lines.*
[ -z "${spilled:-}" ] || die "There are spills: give those kernels fewer values to hold, or more registers."
