#!/usr/bin/env bash
# Trains a small GPT on stories: installs what is missing, builds the program and runs it.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
. "$root/scripts/common.sh"

usage() {
  cat <<TEXT
scripts/train.sh [--no-install] [--jobs N] [-D...] [OPTION OF train_gpt]...

Installs the packages that are missing, builds train_gpt and generate in $root/build
and trains a small GPT. The run's files go to a new folder under runs/ here, unless --out says
otherwise.

  --no-install   install nothing; use what is here
  --jobs N       compile N files at a time; by default one for each core and GB of memory
  -D...          an option for CMake, such as -DTAPEFORMER_CUDA=OFF
  --help         this text; all that train_gpt can do: scripts/train.sh -- --help

All other options are passed on to train_gpt, and all after --. On the stories it starts from
${stories[*]}
and your options override these: --steps 200 is a short run of the same model. With --data FILE, a
text of yours, or with --config or --resume it starts from train_gpt's own defaults.
TEXT
}

# What suits the stories: a context that holds a quarter of one, and a bolder rate.
stories=(--context 128 --batch 6 --position rotary --lr 4e-3)

arguments=() options=()
while [ $# != 0 ]; do
  case $1 in
    --no-install) install=no ;;
    --jobs) take_jobs "${2:-}" && shift ;;
    --jobs=*) take_jobs "${1#*=}" ;;
    -D?*) options+=("$1") ;;
    --help | -h) usage && exit ;;
    --) shift && arguments+=("$@") && break ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

settings=("${stories[@]}")
for argument in ${arguments[@]+"${arguments[@]}"}; do
  case $argument in --data* | --config* | --resume*) settings=() ;; esac
done

require_packages programs
configure "$root/build" -DCMAKE_BUILD_TYPE=Release -DTAPEFORMER_BUILD_TESTS=OFF \
  -DTAPEFORMER_BUILD_EXAMPLES=ON -DTAPEFORMER_BUILD_BENCH=OFF ${options[@]+"${options[@]}"}
build "$root/build" train_gpt generate

"$root/build/examples/train_gpt" ${settings[@]+"${settings[@]}"} ${arguments[@]+"${arguments[@]}"}
