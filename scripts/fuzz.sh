#!/usr/bin/env bash
# Feeds every reader of files with any bytes for a while; ends with "N passed, N failed".
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
. "$root/scripts/common.sh"

usage() {
  cat <<TEXT
scripts/fuzz.sh [SECONDS] [-- OPTION OF LIBFUZZER...]

Builds the fuzz targets of tests/fuzz with clang in $root/build-fuzz and runs each for SECONDS
(10), all seconds together on one core. An input that breaks one stays in that folder's crashes/;
what it found to be of interest in corpus/, from where the next call goes on.

After --: for example -runs=1000000.
TEXT
}

seconds=10
arguments=()
while [ $# != 0 ]; do
  case $1 in
    --help | -h) usage && exit ;;
    --) shift && arguments=("$@") && break ;;
    *[!0-9]* | '') die "Unknown option $1; see scripts/fuzz.sh --help" ;;
    *) seconds=$1 ;;
  esac
  shift
done

have clang++ || die "The fuzz targets need clang: sudo apt-get install clang"
export CXX=clang++
folder=$root/build-fuzz
configure "$folder" -DCMAKE_BUILD_TYPE=Debug -DTAPEFORMER_BUILD_FUZZ=ON \
  -DTAPEFORMER_BUILD_TESTS=OFF -DTAPEFORMER_BUILD_EXAMPLES=OFF -DTAPEFORMER_BUILD_BENCH=OFF
build "$folder" fuzz

passed=0 failed=0
mkdir -p "$folder/crashes"
for target in "$folder"/tests/fuzz/*_fuzz; do
  name=$(basename "$target")
  mkdir -p "$folder/corpus/$name"
  # A reader that takes 10 s or 1 GB for a few kilobytes is broken too.
  if "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=4096 \
    -artifact_prefix="$folder/crashes/$name-" ${arguments[@]+"${arguments[@]}"} \
    "$folder/corpus/$name" >"$folder/$name.log" 2>&1; then
    passed=$((passed + 1))
    say "$name: $(tail -n 1 "$folder/$name.log")"
  else
    failed=$((failed + 1))
    tail -n 30 "$folder/$name.log" >&2
  fi
done
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
