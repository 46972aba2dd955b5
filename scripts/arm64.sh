#!/usr/bin/env bash
# Cross-compiles the tests for arm64 and runs those of the core under qemu; ends with "N passed, N
# failed".
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
. "$root/scripts/common.sh"

usage() {
  cat <<TEXT
scripts/arm64.sh [OPTION OF THE TEST PROGRAM...]

Needs Debian's g++-aarch64-linux-gnu and qemu-user-static, which you install, and OpenBLAS and some
headers for arm64, which it unpacks into $root/build-arm64/packages and does not install. Runs the
tests that you name instead of the core's: scripts/arm64.sh '*batch_norm*'
TEXT
}

case ${1:-} in --help | -h) usage && exit ;; esac
for program in aarch64-linux-gnu-g++ qemu-aarch64-static apt-get dpkg; do
  have "$program" || die "There is no $program. On Debian, on another processor:
  sudo apt-get install g++-aarch64-linux-gnu qemu-user-static"
done
folder=$root/build-arm64
packages=$folder/packages
libraries=$packages/usr/lib/aarch64-linux-gnu

# Lists and archives of apt lie in the folder too: this machine's own know nothing of arm64.
unpack_packages() {
  local apt=$folder/apt archive
  mkdir -p "$apt/lists/partial" "$apt/archives/partial"
  : >"$apt/status"
  local options=(-q -o "Dir::State=$apt" -o "Dir::State::Lists=$apt/lists"
    -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt" -o APT::Architecture=arm64
    -o APT::Architectures=arm64 -o "APT::Sandbox::User=$(id -un)")
  apt-get "${options[@]}" update
  (cd "$apt" && rm -f ./*.deb && apt-get "${options[@]}" download libopenblas0-pthread \
    libopenblas-pthread-dev libgfortran5 zlib1g zlib1g-dev libutf8proc2 libutf8proc-dev \
    nlohmann-json3-dev libcli11-dev catch2)
  for archive in "$apt"/*.deb; do dpkg -x "$archive" "$packages"; done
}

if [ ! -e "$libraries/openblas-pthread/libopenblas.so" ]; then
  say "Unpacking OpenBLAS for arm64 ..."
  mkdir -p "$folder"
  unpack_packages >"$folder/packages.log" 2>&1 || die "It failed: $folder/packages.log"
fi

configure "$folder" -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux \
  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  "-DCMAKE_FIND_ROOT_PATH=$packages;/usr/aarch64-linux-gnu" \
  -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY \
  -DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY \
  "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,$libraries" -DTAPEFORMER_NATIVE=OFF \
  -DTAPEFORMER_CUDA=OFF -DTAPEFORMER_BUILD_EXAMPLES=OFF -DTAPEFORMER_BUILD_BENCH=OFF
build "$folder" tapeformer_tests

tests=("$@")
if [ $# = 0 ]; then
  areas=''
  for area in tensor shape random half simd elementwise reduce matmul gemm16 softmax norm \
    attention loss sixteen_bit; do
    areas+="${areas:+,}[#${area}_test]"
  done
  tests=(--filenames-as-tags "$areas")
fi
say "Running the tests ..."
passed=0 failed=0 status=0
qemu-aarch64-static -L /usr/aarch64-linux-gnu \
  -E "LD_LIBRARY_PATH=$libraries:$libraries/openblas-pthread" \
  "$folder/tests/tapeformer_tests" "${tests[@]}" 2>&1 | tee "$folder/tests.log" || status=$?
count_cases "$folder/tests.log" "$status"
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
