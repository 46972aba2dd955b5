#!/usr/bin/env bash
# Runs every test: installs what is missing, builds everything and ends with "N passed, N failed".
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
. "$root/scripts/common.sh"

usage() {
  cat <<TEXT
scripts/test.sh [OPTION]... [-- OPTION OF THE TEST PROGRAM...]

Installs the packages that are missing, builds the library, the examples, the benchmarks and the
tests in $root/build, and runs all tests.

  --sanitize LIST   library and tests with these sanitizers, in a build folder of their own:
                    address,undefined
  --debug           not optimised, in a build folder of its own
  --no-install      install nothing; use what is here
  --jobs N          compile N files at a time; by default one for each core and GB of memory
  -D...             an option for CMake
  --help            this text

After --: for example a part of a test's name with * around it, to run only some:
  scripts/test.sh -- '*batch_norm*'
TEXT
}

sanitize='' build_type=Release
options=() arguments=()
while [ $# != 0 ]; do
  case $1 in
    --sanitize) shift && sanitize=${1:?--sanitize needs a list, such as address,undefined} ;;
    --sanitize=*) sanitize=${1#*=} ;;
    --debug) build_type=Debug ;;
    --no-install) install=no ;;
    --jobs) take_jobs "${2:-}" && shift ;;
    --jobs=*) take_jobs "${1#*=}" ;;
    -D?*) options+=("$1") ;;
    --help | -h) usage && exit ;;
    --) shift && arguments=("$@") && break ;;
    *) die "Unknown option $1; see scripts/test.sh --help" ;;
  esac
  shift
done

folder=$root/build
[ "$build_type" = Release ] || folder=$folder-debug
if [ -n "$sanitize" ]; then
  folder=$folder-${sanitize//,/-}
  # Debug, so that fresh memory is filled with NaN; a little optimised, so that it ends today.
  # The programs are left out: the sanitizers make their option parser slow to compile.
  options=("-DTAPEFORMER_SANITIZE=${sanitize//,/;}" "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1"
    -DTAPEFORMER_BUILD_EXAMPLES=OFF -DTAPEFORMER_BUILD_BENCH=OFF ${options[@]+"${options[@]}"})
  build_type=Debug
fi

passed=0 failed=0
# Whatever happens, the last line is the count.
finish() {
  local status=$?
  if [ "$status" != 0 ] && [ "$failed" = 0 ]; then failed=1; fi
  printf '%d passed, %d failed\n' "$passed" "$failed"
}
trap finish EXIT

# Adds up the test cases from what the test program printed: "All tests passed (9 assertions in
# 3 test cases)" or "test cases: 3 | 2 passed | 1 failed". Without either it died, which is one
# failure.
count_cases() {
  local log=$1 status=$2 line good bad
  line=$(grep -E '^(All tests passed|test cases:)' "$log" | tail -n 1)
  good=$(sed -nE 's/.* in ([0-9]+) test cases?.*/\1/p; s/.*\| *([0-9]+) passed.*/\1/p' <<<"$line")
  bad=$(sed -nE 's/.*\| *([0-9]+) failed( \|.*)?$/\1/p' <<<"$line")
  passed=$((passed + ${good:-0}))
  failed=$((failed + ${bad:-0}))
  if [ "$status" != 0 ] && [ "${bad:-0}" = 0 ]; then failed=$((failed + 1)); fi
}

require_packages tests
require_cuda_headers
headers=$(cuda_headers)
[ -z "$headers" ] || options=("-DTAPEFORMER_CUDA_HEADERS=$headers" ${options[@]+"${options[@]}"})
configure "$folder" "-DCMAKE_BUILD_TYPE=$build_type" -DTAPEFORMER_BUILD_TESTS=ON \
  -DTAPEFORMER_BUILD_EXAMPLES=ON -DTAPEFORMER_BUILD_BENCH=ON ${options[@]+"${options[@]}"}
build "$folder"

say "Running the tests ..."
started=$SECONDS status=0
"$folder/tests/tapeformer_tests" ${arguments[@]+"${arguments[@]}"} 2>&1 |
  tee "$folder/tests.log" || status=$?
count_cases "$folder/tests.log" "$status"

# The CUDA kernels, on the emulator.
cuda_tests=$folder/tests/cuda_emulator/tapeformer_cuda_tests
if [ -x "$cuda_tests" ]; then
  status=0
  "$cuda_tests" ${arguments[@]+"${arguments[@]}"} 2>&1 | tee "$folder/cuda_tests.log" || status=$?
  count_cases "$folder/cuda_tests.log" "$status"
else
  say "CUDA kernels are not tested: $(uname) or its packages lack what the emulator needs."
fi

# The tests that are no test cases: another project that uses the library.
if [ ${#arguments[@]} = 0 ] && [ -z "$sanitize" ]; then
  if (cd "$folder" && ctest --output-on-failure -R '^package$') >"$folder/package.log" 2>&1; then
    passed=$((passed + 1))
  else
    cat "$folder/package.log"
    failed=$((failed + 1))
  fi
fi
say "Tested in $((SECONDS - started)) s."
[ "$failed" = 0 ]
