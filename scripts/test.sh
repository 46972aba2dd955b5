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

  --sanitize LIST   library, tests and CUDA kernels with these sanitizers, in a build folder of
                    their own: address,undefined; or thread, which needs clang and runs what has
                    threads
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

target='' program=tests/tapeformer_tests
# What g++'s OpenMP does to make threads wait is hidden from the sanitizer; clang's tells it, through
# the library Archer. OpenBLAS is not compiled for it, so what happens in there is left out.
prepare_thread_sanitizer() {
  have clang++ || die "The thread sanitizer needs clang: sudo apt-get install clang libomp-dev"
  local archer
  archer=$(clang++ -print-resource-dir)/../../libarcher.so
  [ -e "$archer" ] || die "There is no $archer: sudo apt-get install libomp-dev"
  export CXX=clang++ OMP_TOOL_LIBRARIES=$archer
  export TSAN_OPTIONS=ignore_noninstrumented_modules=1${TSAN_OPTIONS:+:$TSAN_OPTIONS}
  target=thread_tests program=tests/threads/tapeformer_thread_tests
}
[ "$sanitize" != thread ] || prepare_thread_sanitizer

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

passed=0 failed=0 ended=''
# Whatever happens, the last line is the count, unless a signal stops this before its end.
finish() {
  local status=$?
  if [ -z "$ended" ] && { [ "$status" = 0 ] || [ "$status" -gt 128 ]; }; then
    say "Stopped before all tests had run."
    return
  fi
  if [ "$status" != 0 ] && [ "$failed" = 0 ]; then failed=1; fi
  printf '%d passed, %d failed\n' "$passed" "$failed"
}
trap finish EXIT

require_packages tests
require_cuda_headers
headers=$(cuda_headers)
[ -z "$headers" ] || options=("-DTAPEFORMER_CUDA_HEADERS=$headers" ${options[@]+"${options[@]}"})
configure "$folder" "-DCMAKE_BUILD_TYPE=$build_type" -DTAPEFORMER_BUILD_TESTS=ON \
  -DTAPEFORMER_BUILD_EXAMPLES=ON -DTAPEFORMER_BUILD_BENCH=ON ${options[@]+"${options[@]}"}
build "$folder" ${target:+"$target"}

say "Running the tests ..."
started=$SECONDS status=0
"$folder/$program" ${arguments[@]+"${arguments[@]}"} 2>&1 |
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
ended=yes
[ "$failed" = 0 ]
