#!/bin/sh
# make bundle: a relocatable folder with LuaJIT, busted, make and what they need, from Debian's packages, for x86-64
# machines without network. Nothing is installed here.
#
#   bench/gpu/bundle.sh OUT [none|openmp]
#
# writes OUT/moth-bundle (openmp: with OpenBLAS, OUT/moth-bundle-openmp) and its .tar.gz. There: `. env.sh`, or just
# bin/luajit and bin/busted. No LD_LIBRARY_PATH: what the programs load lies beside them.
set -eu
out=${1:?usage: bundle.sh OUT [none|openmp]}
blas=${2:-none}
case $blas in
  none) name=moth-bundle ;;
  openmp) name=moth-bundle-openmp ;;
  *) echo "bundle: BUNDLE is none or openmp, not $blas" >&2; exit 2 ;;
esac
[ "$(uname -m)" = x86_64 ] || { echo "✗ bundle: for x86-64 alone" >&2; exit 1; }
command -v apt-get >/dev/null && command -v dpkg >/dev/null || {
  echo "✗ bundle: needs Debian's or Ubuntu's apt-get and dpkg" >&2; exit 1; }

packages="luajit libluajit-5.1-common libluajit-5.1-dev lua-busted lua-cliargs lua-luassert lua-say lua-mediator
  lua-penlight lua-filesystem lua-system lua-term lua-dkjson lua-cjson make libgomp1"
[ $blas = none ] || packages="$packages libopenblas0-openmp libgfortran5 libquadmath0 patchelf"

mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$out/work-$blas
rm -rf "$work"
mkdir -p "$work/debs" "$work/root"
trap 'rm -rf "$work"' EXIT
cd "$work/debs"
if ! apt-get -q download $packages >../log 2>&1; then
  [ "$(id -u)" != 0 ] || apt-get -q update >>../log 2>&1 || true
  apt-get -q download $packages >>../log 2>&1 || { tail -n 20 ../log >&2; echo "✗ bundle: no packages" >&2; exit 1; }
fi
for deb in *.deb; do dpkg -x "$deb" ../root; done

root=$work/root/usr
lib=$root/lib/x86_64-linux-gnu
to=$out/$name
rm -rf "$to"
mkdir -p "$to/bin" "$to/libexec" "$to/lib" "$to/clib" "$to/include" "$to/share"
cp "$root/bin/luajit" "$to/libexec/" 2>/dev/null || cp "$root"/bin/luajit-* "$to/libexec/luajit"
cp "$root/bin/make" "$to/libexec/"
cp "$root/bin/busted" "$to/libexec/busted.lua"
cp -rL "$root/share/lua/5.1" "$to/share/lua"
cp -rL "$root"/share/luajit-2.1*/jit "$to/share/lua/jit"
cp -rL "$lib/lua/5.1/." "$to/clib/"
cp -rL "$root/include/luajit-2.1" "$to/include/"
cp -L "$lib/libgomp.so.1" "$to/lib/"
# Not of use at run time: static libraries, other Luas, documentation.
find "$to/clib" "$to/share" \( -name '*.a' -o -name '*.la' -o -name '*.md' \) -delete
if [ $blas != none ]; then
  cp -L "$lib/openblas-openmp/libopenblas.so.0" "$lib/libgfortran.so.5" "$lib/libquadmath.so.0" "$to/lib/"
fi
find "$to/clib" "$to/lib" -name '*.so*' -type f -exec strip --strip-unneeded {} + 2>/dev/null || true
strip "$to/libexec/luajit" "$to/libexec/make" 2>/dev/null || true
if [ $blas != none ]; then # so that they find one another
  for so in "$to"/lib/*.so*; do "$root/bin/patchelf" --set-rpath '$ORIGIN' "$so"; done
fi

# The wrapper puts its modules behind those that the caller names and before the system's, and names itself to
# programs that start LuaJIT.
cat > "$to/bin/luajit" <<'END'
#!/bin/sh
here=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
case ";${LUA_PATH:-};" in
  *";$here/share/lua/?.lua;"*) ;;
  *) export LUA_PATH="${LUA_PATH%;;};$here/share/lua/?.lua;$here/share/lua/?/init.lua;;" ;;
esac
case ";${LUA_CPATH:-};" in
  *";$here/clib/?.so;"*) ;;
  *) export LUA_CPATH="${LUA_CPATH%;;};$here/clib/?.so;;" ;;
esac
export LUAJIT="$here/bin/luajit" BUSTED="$here/libexec/busted.lua"
[ ! -e "$here/lib/libopenblas.so.0" ] || export MOTH_BLAS="${MOTH_BLAS:-$here/lib/libopenblas.so.0}"
# A machine without gcc's OpenMP gets the one that is here.
found=
for d in /lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu /lib64 /usr/lib64 /usr/lib; do
  [ ! -e $d/libgomp.so.1 ] || found=1
done
[ $found ] || export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$here/lib"
exec "$here/libexec/luajit" "$@"
END
cat > "$to/bin/busted" <<'END'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec "$here/luajit" "$here/../libexec/busted.lua" --ignore-lua "$@"
END
cat > "$to/bin/make" <<'END'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
for d in /usr/bin /bin /usr/local/bin; do
  [ ! -x $d/make ] || exec $d/make "$@"
done
exec "$here/../libexec/make" "$@"
END
cat > "$to/env.sh" <<'END'
# . env.sh: LuaJIT, busted and the headers of this folder for this shell. In a shell other than bash, stand in the
# folder or set MOTH_BUNDLE to it.
if [ -n "${BASH_SOURCE:-}" ]; then MOTH_BUNDLE=$(cd "$(dirname "$BASH_SOURCE")" && pwd)
else MOTH_BUNDLE=$(cd "${MOTH_BUNDLE:-.}" && pwd)
fi
if [ -x "$MOTH_BUNDLE/bin/luajit" ]; then
  export MOTH_BUNDLE PATH="$MOTH_BUNDLE/bin:$PATH" LUAJIT="$MOTH_BUNDLE/bin/luajit"
  export BUSTED="$MOTH_BUNDLE/libexec/busted.lua" LUAJIT_CFLAGS="-I$MOTH_BUNDLE/include/luajit-2.1"
else
  echo "env.sh: MOTH_BUNDLE must name the bundle's folder" >&2
fi
END
chmod +x "$to"/bin/*
(cd "$work/debs" && ls *.deb) > "$to/PACKAGES"
mkdir -p "$to/share/licences" # the packages' own
for doc in "$root"/share/doc/*; do
  [ ! -e "$doc/copyright" ] || cp -L "$doc/copyright" "$to/share/licences/$(basename "$doc")"
done
rm -f "$to/share/licences/patchelf"

tar -C "$out" -czf "$out/$name.tar.gz" --owner=0 --group=0 --sort=name "$name"
size=$(stat -c %s "$out/$name.tar.gz")
[ $blas = none ] && limit=1000000 || limit=15000000
echo "✓ $out/$name.tar.gz: $((size / 1000)) kB, $(du -sk "$to" | cut -f1) kB unpacked"
[ "$size" -lt $limit ] || { echo "✗ bundle: over $((limit / 1000)) kB" >&2; exit 1; }
