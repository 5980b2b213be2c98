#!/bin/sh
# make gpu-check: all that needs a GPU, on the machine that has one: builds, runs the specs on the device, measures beside
# PyTorch, and prints one table, which also goes to $OUT/gpu-check.md with the logs of every step.
#
#   OUT=folder (build/gpu-check)  B=build  PYTHON=python3 (one that has torch)  BUDGET=570 (seconds in all)
#   BUNDLE=archive of make bundle: LuaJIT, busted and headers, where the machine has none
#   MOTH_CUDA=emu: the same on the emulation with tiny sizes, to test this script
#
# A step that fails stands in the table and the rest goes on. The exit status is 0 only if all specs passed.
set -u
cd "$(dirname "$0")/../.." || exit 1
B=${B:-build}
OUT=${OUT:-$B/gpu-check}
BUDGET=${BUDGET:-570}
PYTHON=${PYTHON:-python3}
emu=
[ "${MOTH_CUDA:-}" = emu ] && emu=1
unset MAKEFLAGS MFLAGS MAKELEVEL MOTH_DEVICE

# ---- one spec, in a process of its own: check.sh --spec NAME -----------------------------------------

if [ "${1:-}" = --spec ]; then
  name=$2
  case $name in
    cuda-*) files=spec/cuda/${name#cuda-}_spec.lua ;;
    *) # ops-forward-<first letters of ops>
      part=${name##*-}
      file=${name#ops-}
      files=spec/ops/${file%-*}_spec.lua
      export MOTH_DEVICE=cuda MOTH_CUDA_SYNC=1 MOTH_OP="[$(echo "$part" | sed 's/to/-/')].*" ;;
  esac
  exec "$LUAJIT" spec/runner.lua --build="$B" -- --exclude-tags=slow $files >"$OUT/spec-$name.log" 2>&1
fi

mkdir -p "$OUT" || exit 1
OUT=$(cd "$OUT" && pwd)
rm -f "$OUT"/*.tsv "$OUT"/*.log "$OUT"/gpu-check.md
began=$(date +%s)
left() { echo $((BUDGET - $(date +%s) + began)); }
head() { printf 'head\t%s\t%s\n' "$1" "$2" >>"$OUT/steps.tsv"; }
# note NAME RESULT SECONDS REMARK
note() {
  printf 'step\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$(printf %s "${4:-}" | tr '\t\n' '  ' | cut -c 1-200)" >>"$OUT/steps.tsv"
  echo "$2 $1 ($3 s) ${4:-}"
}
# step NAME LIMIT COMMAND…: runs it, with its output in a log of that name
step() {
  step_name=$1 step_limit=$2
  shift 2
  step_log=$OUT/$(echo "$step_name" | tr ' ' -).log
  step_start=$(date +%s)
  [ "$step_limit" -gt 5 ] || step_limit=5
  if timeout -k 5 "$step_limit" "$@" >"$step_log" 2>&1; then
    note "$step_name" ✓ $(($(date +%s) - step_start))
  else
    step_status=$?
    note "$step_name" ✗ $(($(date +%s) - step_start)) "exit status $step_status: $(grep -v '^ *$' "$step_log" | tail -n 1)"
    return 1
  fi
}

# ---- what is here ------------------------------------------------------------------------------------

head date "$(date -u '+%Y-%m-%d %H:%M UTC')"
command -v git >/dev/null && head commit "$(git log -1 --format='%h %s' 2>/dev/null || echo unknown)"
arch=90a
if [ $emu ]; then
  head GPU "none: the emulation"
elif command -v nvidia-smi >/dev/null; then
  nvidia-smi >"$OUT/nvidia-smi.log" 2>&1
  head GPU "$(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader | sed -n 1p)"
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sed -n '1s/\.//p' | tr -d ' ')
  [ -z "$capability" ] || arch=$capability
  [ "$arch" != 90 ] || arch=90a
else
  head GPU "unknown: no nvidia-smi"
fi
[ -d /usr/local/cuda/bin ] && PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null && head nvcc "$(nvcc --version | sed -n 's/.*release.*, //p')"
command -v gcc >/dev/null && head gcc "$(gcc -dumpfullversion)"
case $PYTHON in */*) PATH=$(dirname "$PYTHON"):$PATH ;; esac # CUDA's libraries are looked for beside it
export PATH PYTHON B OUT

flags=$(pkg-config luajit --cflags 2>/dev/null || echo -I/usr/include/luajit-2.1)
headers=
for f in $flags; do [ -e "${f#-I}/lua.h" ] && headers=$f; done
LUAJIT=$(command -v "${LUAJIT:-luajit}")
if [ -z "$LUAJIT" ] || [ -z "$headers" ] || ! { [ -e "${BUSTED:-/usr/bin/busted}" ] &&
  "$LUAJIT" -e 'require "busted.core"' 2>/dev/null; }; then
  archive=${BUNDLE:-}
  for a in $B/bundle/moth-bundle.tar.gz $B/bundle/moth-bundle-openmp.tar.gz .bundle/*.tar.gz; do
    [ -n "$archive" ] || [ ! -e "$a" ] || archive=$a
  done
  start=$(date +%s)
  if [ -n "$archive" ] && mkdir -p "$B/bundle-here" && tar -C "$B/bundle-here" -xzf "$archive"; then
    MOTH_BUNDLE=$(cd "$B"/bundle-here/moth-bundle* && pwd)
    . "$MOTH_BUNDLE/env.sh"
    headers=$LUAJIT_CFLAGS
    note bundle ✓ $(($(date +%s) - start)) "$(basename "$archive")"
  else
    note bundle ✗ 0 "no LuaJIT, headers or busted here, and no archive: make bundle, and bring it along"
    cat "$OUT/steps.tsv"
    exit 1
  fi
fi
export LUAJIT
head LuaJIT "$("$LUAJIT" -v 2>&1 | cut -d ' ' -f 2)"

# ---- building ----------------------------------------------------------------------------------------

cores=$(nproc 2>/dev/null || echo 2)
library=libmoth_cuda.so
[ ! $emu ] || library=libmoth_cudaemu.so
# Flags as they are by themselves, where that will do: others would build everything anew.
step build $(($(left) * 2 / 3)) "${MAKE:-make}" -j"$cores" B="$B" LUAJIT="$LUAJIT" ${MOTH_BUNDLE:+"LUAJIT_CFLAGS=$headers"} \
  CUDA_ARCH="$arch" "$B/libmoth.so" "$B/moth_lua.so" "$B/$library"
built=$?
export LUA_PATH="lua/?.lua;lua/?/init.lua;$B/gen/?.lua;;" LUA_CPATH="$B/?.so;;"
[ $built = 0 ] && step device 60 "$LUAJIT" -e '
  local moth = require "moth"
  if not moth.cuda.is_available() then error(moth.cuda.why(), 0) end
  assert((moth.ones(3, {device = "cuda"}) + 1):sum():item() == 6)'
device=$?

# ---- specs -------------------------------------------------------------------------------------------

specs_failed=1
if [ $device = 0 ]; then
  names=$(ls spec/cuda/*_spec.lua 2>/dev/null | sed 's,.*/\(.*\)_spec.lua,cuda-\1,')
  for f in spec/ops/*_spec.lua; do
    for part in atob ctof gtom ntoq rtos ttoz; do
      names="$names ops-$(basename "$f" _spec.lua)-$part"
    done
  done
  jobs=$cores
  if [ $emu ]; then # the script is what is tested
    export MOTH_CASES=10
    names=$(echo $names | tr ' ' '\n' | grep -e cuda- -e forward-gtom -e errors-atob)
    jobs=2
  fi
  # the measuring wants its time
  limit=$(($(left) - 170))
  [ $limit -ge 60 ] || limit=60
  export MOTH_TEST_TIMEOUT=$limit
  start=$(date +%s)
  printf '%s\n' $names | timeout -k 5 $((limit + 10)) xargs -P "$jobs" -n 1 "$0" --spec
  passed=0 failed=0 skipped=0 bad=
  for name in $names; do
    log=$OUT/spec-$name.log
    totals=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$log" 2>/dev/null | tail -n 1)
    [ -n "$totals" ] || totals="0 1 0"
    # Nothing but skips, or no op of these letters: the runner counts that as a failure.
    if grep -q '^✗ no spec ran' "$log" 2>/dev/null; then totals="0 0 ${totals##* }"; fi
    set -- $totals
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
    [ "$2" = 0 ] || bad="$bad $name"
  done
  specs_failed=$failed
  [ $passed -gt 0 ] || specs_failed=1
  note specs "$([ $specs_failed = 0 ] && echo ✓ || echo ✗)" $(($(date +%s) - start)) \
    "$passed passed, $failed failed, $skipped skipped${bad:+; see spec-*.log of$bad}"
fi

# ---- measuring ---------------------------------------------------------------------------------------

if [ $device = 0 ]; then
  start=$(date +%s)
  from=1 result=✗
  : >"$OUT/measure.log"
  for try in 1 2 3 4 5 6; do
    limit=$(($(left) - 10))
    [ $limit -ge 30 ] || limit=30
    timeout -k 5 $limit "$LUAJIT" bench/gpu/measure.lua "$OUT" --from=$from --seconds=$((limit - 15)) >>"$OUT/measure.log" 2>&1
    grep -q '^end' "$OUT/rows.tsv" 2>/dev/null && result=✓ && break
    at=$(grep '^start' "$OUT/rows.tsv" 2>/dev/null | tail -n 1 | cut -f 2)
    [ -n "$at" ] && [ "$at" -ge $from ] && [ "$(left)" -gt 40 ] || break
    from=$((at + 1))
  done
  remark=
  [ $result = ✓ ] || remark=$(grep -v '^ *$' "$OUT/measure.log" | tail -n 1)
  lost=$(cut -f 1,7 "$OUT/rows.tsv" 2>/dev/null | grep -c '^row	-$')
  [ "$lost" = 0 ] || remark="$lost rows without a figure. $remark"
  note measuring $result $(($(date +%s) - start)) "$remark"
fi

echo
"$LUAJIT" bench/gpu/report.lua "$OUT"
echo
echo "$(($(date +%s) - began)) s in all; table and logs: $OUT"
[ "$specs_failed" = 0 ]
