# What train.sh and test.sh share: finding and installing what a build needs, and building with
# progress. Sourced by them after they set `root`. Keeps to what bash 3.2 knows.
# shellcheck shell=bash
# shellcheck disable=SC2154  # root comes from the script that sources this

install=yes
jobs=''
generator=()

say() { printf '%s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# take_jobs N: how many files to compile at a time, instead of one for each core.
take_jobs() {
  check_number --jobs "$@"
  jobs=$1
}
# check_number OPTION N: dies where N is no number above 0.
check_number() {
  case ${2:-} in
    '' | *[!0-9]* | 0*) die "$1 needs a number above 0, such as $1 1; got '${2:-}'" ;;
  esac
}

# ---- What is missing

# A compiler that can build this: g++ 12 or clang 14, with C++20 and OpenMP.
good_compiler() {
  have "$1" && "$1" -std=c++20 -fopenmp -fsyntax-only -x c++ - >/dev/null 2>&1 <<'CODE'
#include <concepts>
#include <omp.h>
#if defined(__clang__) ? __clang_major__ < 14 : __GNUC__ < 12
#error too old
#endif
CODE
}

# Sets and exports CXX unless CMake's own choice, c++, is good enough. A CXX that is here stays.
find_compiler() {
  if [ -n "${CXX:-}" ]; then
    have "${CXX%% *}" && return 0
    unset CXX
  fi
  compiler=''
  local name
  for name in c++ g++ g++-15 g++-14 g++-13 g++-12 clang++; do
    if good_compiler "$name"; then
      compiler=$name
      [ "$name" = c++ ] || export CXX="$name"
      return 0
    fi
  done
  return 1
}

# has_header PACKAGE HEADER...: the package is installed, or the compiler finds one of the headers.
has_header() {
  local package=$1 header tests=0
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] && return 0
  shift
  for header in "$@"; do tests="$tests || __has_include(<$header>)"; done
  # shellcheck disable=SC2086  # CXX may hold options
  printf '#if !(%s)\n#error missing\n#endif\n' "$tests" |
    ${CXX:-${compiler:-c++}} -std=c++20 -fsyntax-only -x c++ - >/dev/null 2>&1
}

# Prints the Debian packages that are missing for what is asked: `programs` or `tests`.
missing_packages() {
  if ! find_compiler; then
    # Where the default is too old, a newer one may have a package of its own.
    if have g++ && apt-cache show g++-12 >/dev/null 2>&1; then echo g++-12; else echo g++; fi
  fi
  have cmake || echo cmake
  have make || have ninja || echo make
  has_header libopenblas-dev openblas_config.h openblas/openblas_config.h || echo libopenblas-dev
  has_header zlib1g-dev zlib.h || echo zlib1g-dev
  has_header libutf8proc-dev utf8proc.h || echo libutf8proc-dev
  has_header nlohmann-json3-dev nlohmann/json.hpp || echo nlohmann-json3-dev
  has_header libcli11-dev CLI/CLI.hpp || echo libcli11-dev
  [ "$1" = programs ] && return
  has_header catch2 catch2/catch_test_macros.hpp catch2/catch.hpp || echo catch2
  [ -n "$(cuda_headers)" ] || python3 -m pip --version >/dev/null 2>&1 || echo python3-pip
}

# Prints the folder of the CUDA toolkit's headers, nothing when there is none.
cuda_headers() {
  local nvcc folder
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  for folder in "$root/build/cuda_headers" "$(dirname "$nvcc")/../include" /usr/lib/cuda/include; do
    if [ -f "$folder/cuda_runtime.h" ]; then echo "$folder" && return; fi
  done
}

# ---- Installing it

# What apt-get printed is shown only when it fails.
apt_get() {
  local log
  log=$(mktemp)
  if ! ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -q \
    -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

install_by_apt() {
  have apt-get || die "There is no apt-get here. Install these, named as in Debian: $*
If they are here under other names, run this again with --no-install."
  as_root=()
  if [ "$(id -u)" != 0 ]; then
    if ! have sudo || { [ ! -t 0 ] && ! sudo -n true 2>/dev/null; }; then
      die "Installing needs rights that you lack. Have somebody run: apt-get install $*"
    fi
    as_root=(sudo)
  fi
  say "Installing with apt-get (--no-install to opt out): $*"
  apt_get update || say "apt-get update failed; trying with the lists of packages that are here."
  apt_get install --yes --no-install-recommends "$@" ||
    die "apt-get could not install. The packages needed: $*"
}

install_by_brew() {
  local formula formulas missing=()
  formulas=(cmake libomp openblas zlib utf8proc cli11 nlohmann-json)
  [ "$1" = programs ] || formulas+=(catch2)
  for formula in "${formulas[@]}"; do
    brew list --versions "$formula" >/dev/null 2>&1 || missing+=("$formula")
  done
  [ ${#missing[@]} = 0 ] || die "Missing here. Run this, and then this script again:
  brew install ${missing[*]}"
}

# Makes sure that what is asked, `programs` or `tests`, can be built.
require_packages() {
  if [ "$(uname)" = Darwin ]; then
    [ "$install" = no ] || install_by_brew "$1"
    return
  fi
  local missing=() package
  for package in $(missing_packages "$1"); do missing+=("$package"); done
  if [ ${#missing[@]} != 0 ]; then
    say "Missing here: ${missing[*]}"
    if [ "$install" = yes ]; then
      install_by_apt "${missing[@]}"
    else
      say "Not installed, as you asked; trying without."
    fi
  fi
  find_compiler || die "No compiler for C++20 with OpenMP here: needs g++ 12 or newer, or clang 14."
  have cmake || die "There is no cmake here: install the package cmake."
  if ! have make && have ninja; then generator=(-G Ninja); fi
}

# Fetches the headers by pip, 2.4 MB, where there are none: the CUDA kernels are tested with them.
require_cuda_headers() {
  local folder=$root/build/cuda_headers part
  [ -z "$(cuda_headers)" ] && [ "$install" = yes ] && [ "$(uname)" = Linux ] || return 0
  say "Fetching the headers of the CUDA toolkit (--no-install to opt out) ..."
  rm -rf "$folder.new" && mkdir -p "$folder.new"
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$folder.new" \
    'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*' >"$folder.log" 2>&1 ||
    { tail -n 3 "$folder.log" >&2 && return 0; }
  for part in "$folder.new"/*.whl; do python3 -m zipfile -e "$part" "$folder.new"; done
  rm -rf "$folder" && mv "$folder.new/nvidia/cu13/include" "$folder"
  rm -rf "$folder.new"
}

# ---- Building

# Cores that this process may use, and at least a gigabyte of memory for each.
build_jobs() {
  local cores memory
  cores=$(nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
  memory=$(awk '/^MemAvailable/ { print int($2 / 1e6) }' /proc/meminfo 2>/dev/null)
  if [ -n "$memory" ] && [ "$memory" -lt "$cores" ]; then cores=$((memory > 1 ? memory : 1)); fi
  echo "$cores"
}

# configure FOLDER CMAKE-ARGUMENT...
configure() {
  local folder=$1 log=$1/configure.log
  shift
  mkdir -p "$folder"
  # A folder that was moved here with the source: its cache names the old place.
  if [ -f "$folder/CMakeCache.txt" ] &&
    ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$folder/CMakeCache.txt"; then
    rm -rf "$folder/CMakeCache.txt" "$folder/CMakeFiles"
  fi
  [ ! -f "$folder/CMakeCache.txt" ] || generator=()
  if ! cmake -S "$root" -B "$folder" ${generator[@]+"${generator[@]}"} "$@" >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    die "CMake could not configure the build (all of it: $log)."
  fi
}

# Reads what make or ninja prints. Keeps one line with the newest step on a terminal; elsewhere says
# a line for every ten per cent.
show_progress() {
  local line shown='' percent next=10 step='^\[ *([0-9]+)(%|/([0-9]+))\] Building '
  while IFS= read -r line; do
    if [ -t 2 ]; then
      [[ $line == \[* ]] || continue
      printf '\r\033[K%.78s' "$line" >&2
      shown=yes
    elif [[ $line =~ $step ]]; then
      percent=${BASH_REMATCH[1]}
      [ "${BASH_REMATCH[2]}" = % ] || percent=$((100 * percent / BASH_REMATCH[3]))
      [ "$percent" -ge "$next" ] || continue
      say "  $percent % after $((SECONDS - started)) s"
      next=$((percent / 10 * 10 + 10))
    fi
  done
  [ -z "$shown" ] || printf '\r\033[K' >&2
}

# build FOLDER [TARGET...]
build() {
  local folder=$1 log=$1/build.log at_a_time=${jobs:-$(build_jobs)} started=$SECONDS
  shift
  say "Building in $folder, $at_a_time files at a time; only the first time takes minutes ..."
  if ! cmake --build "$folder" --parallel "$at_a_time" ${1:+--target "$@"} 2>&1 |
    tee "$log" | show_progress; then
    # The first errors; their ends are far above when several files were compiled at a time.
    grep -E -A 5 '(error:|undefined reference|Killed)' "$log" | head -n 40 >&2
    tail -n 5 "$log" >&2
    die "The build failed (all of it: $log)."
  fi
  say "Built in $((SECONDS - started)) s."
}

# ---- Testing

# count_cases LOG STATUS: adds to `passed` and `failed` the test cases from what the test program
# printed: "All tests passed (9 assertions in 3 test cases)" or "test cases: 3 | 2 passed | 1
# failed". Without either it died, which is one failure.
count_cases() {
  local log=$1 status=$2 line good bad
  line=$(grep -E '^(All tests passed|test cases:)' "$log" | tail -n 1) || true
  good=$(sed -nE 's/.* in ([0-9]+) test cases?.*/\1/p; s/.*\| *([0-9]+) passed.*/\1/p' <<<"$line")
  bad=$(sed -nE 's/.*\| *([0-9]+) failed( \|.*)?$/\1/p' <<<"$line")
  passed=$((passed + ${good:-0}))
  failed=$((failed + ${bad:-0}))
  if [ "$status" != 0 ] && [ "${bad:-0}" = 0 ]; then failed=$((failed + 1)); fi
}
