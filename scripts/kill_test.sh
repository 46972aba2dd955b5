#!/usr/bin/env bash
# Kills training runs with kill -9 at random moments; ends with "N passed, N failed".
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
. "$root/scripts/common.sh"

usage() {
  cat <<TEXT
scripts/kill_test.sh [KILLS [SEED]]

Trains small models with $root/build/examples/train_gpt and kills each run again and again,
KILLS times in all (200), at moments drawn by SEED (the clock). After every kill the run has to
resume; at its end its weights, its optimizer's state and its metrics must have the bits of a run
that nobody disturbed.
TEXT
}

kills=200 seed=$(date +%s)
case ${1:-} in
  --help | -h) usage && exit ;;
  '') ;;
  0* | *[!0-9]*) die "KILLS must be a number above 0, got '$1'; see scripts/kill_test.sh --help" ;;
  *) kills=$1 seed=${2:-$seed} ;;
esac
train_gpt=$root/build/examples/train_gpt
[ -x "$train_gpt" ] || die "There is no $train_gpt: run scripts/train.sh or scripts/test.sh first."
RANDOM=$((seed % 32768))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# Saving takes most of the time, so that most kills meet it.
small=(--layers 1 --heads 2 --channels 16 --context 16 --batch 2 --warmup 2 --steps 60 --threads 1
  --save-every 1 --eval-every 7 --eval-batches 1 --dropout 0.1)
kinds=('--norm layernorm' '--norm batchnorm' '--norm powernorm' '--dtype f16'
  '--dtype bf16 --norm batchnorm')

share=$(((kills + ${#kinds[@]} - 1) / ${#kinds[@]}))

# What a run leaves: everything but its speed.
traces_of() {
  (cd "$1" && sha256sum model.safetensors best.safetensors training-*.safetensors)
  sed 's/,"tokens_per_second":[^,}]*//' "$1/metrics.jsonl"
}

# Lets a run begin or go on, and kills it within 0.3 s. False when it ended by itself before.
run_and_kill() {
  local options=("$@") child status=0
  if [ -e killed/model.safetensors ]; then options=(--resume killed); fi
  "$train_gpt" "${options[@]}" >out 2>err </dev/null &
  child=$!
  sleep "0.$(printf %03d $((RANDOM % 300)))"
  kill -KILL "$child" 2>/dev/null || true
  wait "$child" 2>/dev/null || status=$?
  case $status in
    137) return 0 ;;
    0) return 1 ;;
    *) die "The run could not go on after kill $count (seed $seed): $(tail -n 3 err)" ;;
  esac
}

count=0 passed=0 failed=0
while [ "$count" -lt "$kills" ]; do
  for kind in "${kinds[@]}"; do
    [ "$count" -lt "$kills" ] || break
    read -ra options <<<"$kind"
    rm -rf killed
    undisturbed="traces of $kind"
    if [ ! -e "$undisturbed" ]; then
      "$train_gpt" "${options[@]}" "${small[@]}" --out whole >out 2>err </dev/null
      traces_of whole >"$undisturbed"
      rm -rf whole
    fi
    first=$count
    while [ "$count" -lt "$kills" ] && [ $((count - first)) -lt "$share" ] &&
      run_and_kill "${options[@]}" "${small[@]}" --out killed --overwrite; do
      count=$((count + 1))
    done
    [ ! -e killed/model.safetensors ] || "$train_gpt" --resume killed >out 2>err </dev/null ||
      die "The run could not go on after kill $count (seed $seed): $(tail -n 3 err)"
    if [ ! -e killed/model.safetensors ] || traces_of killed | cmp -s - "$undisturbed"; then
      passed=$((passed + 1))
      say "$kind: the same bits after $((count - first)) kills"
    else
      failed=$((failed + 1))
      say "$kind: other bits after $((count - first)) kills (seed $seed)"
      traces_of killed | diff - "$undisturbed" | head -n 10 >&2 || true
    fi
  done
done
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
