#!/bin/sh
# c_api.sh BUILD FOLDER CALLS [SEED]: builds the program that c_api.lua writes against BUILD's library, as that was
# built (with sanitizers or without), in FOLDER, and runs it.
build=$1 folder=$2 calls=$3 seed=${4:-1}
[ "${build#/}" = "$build" ] && rpath=$PWD/$build || rpath=$build
flags=$(tr ' ' '\n' <"$build/.flags" | grep -e '^-fsanitize=' -e '^-fno-sanitize-recover' | tr '\n' ' ')
unset LD_PRELOAD
mkdir -p "$folder" && ${LUAJIT:-luajit} spec/fuzz/c_api.lua "$build/gen/moth_ops.h" >"$folder/c_api.c" || exit 1
# shellcheck disable=SC2086
gcc -std=gnu17 -Wall -Wextra -O1 -g $flags -Isrc -I"$build/gen" -o "$folder/c_api" "$folder/c_api.c" -L"$build" -lmoth \
  -lm -Wl,-rpath,"$rpath" || exit 1
# A tensor that a node has saved and that is then written to by what the node made holds itself, as in PyTorch: leaks
# are looked for where nothing is recorded.
: >"$folder/c_api.log"
for leaks in 0 1; do
  [ $leaks = 1 ] && unrecorded=unrecorded || unrecorded=
  # shellcheck disable=SC2086
  if ! ASAN_OPTIONS=allocator_may_return_null=1:intercept_tls_get_addr=0:detect_leaks=$leaks \
    UBSAN_OPTIONS=print_stacktrace=1 "$folder/c_api" "$seed" "$calls" $unrecorded >"$folder/run.log" 2>&1; then
    tail -n 60 "$folder/run.log"
    echo "✗ c_api: MOTH_TRACE=1 $folder/c_api $seed $calls $unrecorded says what was called"
    exit 1
  fi
  grep ' calls of ' "$folder/run.log" >>"$folder/c_api.log"
done
sed 's/^/✓ c_api: /' "$folder/c_api.log"
