#!/bin/sh
# run.sh BUILD NAME SECONDS [RUNS]: builds spec/fuzz/NAME.c with libFuzzer, ASan and UBSan and runs it so long, or so
# often if RUNS is given. A line "Sources:" of it names what it needs beside src/io. New inputs are kept in BUILD/NAME.corpus, crashes in BUILD; seeds are in
# spec/fuzz/corpus/NAME. A finding is a crash, a hang of a second, or an allocation of more than 64 MB.
build=$1 name=$2 seconds=$3 runs=$4
gen=$(dirname "$build")/gen
folder=spec/fuzz/corpus/$name
dict=spec/fuzz/$name.dict
mkdir -p "$build/$name.corpus" || exit 1
clang -std=gnu17 -D_GNU_SOURCE -g -O1 -I. -Isrc -I"$gen" -fsanitize=fuzzer,address,undefined \
  -fno-sanitize-recover=undefined -o "$build/$name" "spec/fuzz/$name.c" spec/fuzz/doubles.c src/core/environment.c src/core/error.c src/core/thread.c \
  src/io/*.c $(sed -n 's/^ \* Sources: //p' "spec/fuzz/$name.c") -ldl -lm -lpthread || exit 1
[ -d "$folder" ] || folder=
[ -f "$dict" ] && dict=-dict=$dict || dict=
if [ -n "$runs" ]; then limit=-runs=$runs; else limit=-max_total_time=$seconds; fi
begun=$(date +%s)
"$build/$name" $limit -max_len=4096 -timeout="${FUZZ_TIMEOUT:-1}" -report_slow_units=1 -malloc_limit_mb=64 -rss_limit_mb=512 -print_final_stats=1 \
  -artifact_prefix="$build/$name." $dict "$build/$name.corpus" $folder >"$build/$name.log" 2>&1
status=$?
executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log")
if [ $status != 0 ]; then
  tail -n 40 "$build/$name.log"
  echo "✗ $name: exit status $status after ${executions:-?} executions; log: $build/$name.log"
  exit 1
fi
echo "✓ $name: $executions executions in $(($(date +%s) - begun)) s"
