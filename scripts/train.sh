#!/usr/bin/env bash
# Trains a small GPT on stories: installs what is missing, builds the program and runs it.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
. "$root/scripts/common.sh"

usage() {
  cat <<TEXT
scripts/train.sh [--no-install] [OPTION OF train_gpt]...

Installs the packages that are missing, builds train_gpt and generate in $root/build
and trains a small GPT. The run's files go to a new folder under runs/ here, unless --out says
otherwise.

  --no-install   install nothing; use what is here
  --help         this text; all that train_gpt can do: scripts/train.sh -- --help

Everything else goes to train_gpt: --data FILE trains on a text of yours, --steps N for N steps.
TEXT
}

arguments=()
while [ $# != 0 ]; do
  case $1 in
    --no-install) install=no ;;
    --help | -h) usage && exit ;;
    --) shift && arguments+=("$@") && break ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

# The folder of the run that has just ended: the newest checkpoint since it began.
newest_run() {
  local out=runs previous='' argument folder newest=$1
  for argument in ${arguments[@]+"${arguments[@]}"}; do
    case $previous in --out | --resume) out=$argument ;; esac
    case $argument in --out=* | --resume=*) out=${argument#*=} ;; esac
    previous=$argument
  done
  for folder in "$out" "$out"/*/; do
    folder=${folder%/}
    if [ "$folder/model.safetensors" -nt "$newest" ]; then newest=$folder/model.safetensors; fi
  done
  [ "$newest" = "$1" ] || dirname -- "$newest"
}

# What suits the stories: a context that holds a quarter of one, and a bolder rate.
if [ ${#arguments[@]} = 0 ]; then
  arguments=(--context 128 --batch 6 --position rotary --lr 4e-3)
fi

require_packages programs
configure "$root/build" -DCMAKE_BUILD_TYPE=Release -DTAPEFORMER_BUILD_TESTS=OFF \
  -DTAPEFORMER_BUILD_EXAMPLES=ON -DTAPEFORMER_BUILD_BENCH=OFF
build "$root/build" train_gpt generate

"$root/build/examples/train_gpt" ${arguments[@]+"${arguments[@]}"}

run=$(newest_run "$root/build/build.log")
if [ -n "$run" ]; then
  say ""
  say "To see it write more:"
  say "  $(printf '%q' "$root/build/examples/generate") --checkpoint $(printf '%q' "$run")"
fi
