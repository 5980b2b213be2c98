#!/bin/sh
# make deb: Debian packages of a tree that is built, for the system that it is on, by dpkg-deb alone.
#
#   rocks/deb.sh OUT MAKE [VARIABLE=VALUE ...]
#
# writes OUT/libmoth0_VERSION_ARCH.deb (the library), libmoth-dev (headers, moth.pc) and moth (Lua files, program). MAKE runs
# `make install`; DEBFULLNAME and DEBEMAIL name who makes them. The same tree gives the same bytes on the same system.
set -eu
out=${1:?usage: deb.sh OUT MAKE [VARIABLE=VALUE ...]}
shift
for tool in dpkg dpkg-deb dpkg-shlibdeps; do
  command -v $tool >/dev/null || { echo "✗ make deb: $tool is not there; HINT: apt-get install dpkg-dev" >&2; exit 1; }
done

version=$(sed -n 's/.*MOTH_VERSION *"\(.*\)"/\1/p' src/moth.h)
library=libmoth${version%%.*}
arch=$(dpkg --print-architecture)
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
lib=usr/lib/$multiarch
maintainer="${DEBFULLNAME:-the moth authors} <${DEBEMAIL:-unknown@localhost}>"
[ -n "${DEBEMAIL:-}" ] || echo "HINT: DEBFULLNAME and DEBEMAIL name who makes the packages" >&2
# Times are those of the commit, or of an unpacked archive's files.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y src/moth.h)}
export SOURCE_DATE_EPOCH
umask 022

mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$out/work
rm -rf "$work"
mkdir -p "$work/all" "$work/debian"
trap 'rm -rf "$work"' EXIT
"$@" install DESTDIR="$work/all" PREFIX=/usr LIBDIR="/$lib" CLUADIR="/$lib/lua/5.1" ZSHDIR=/usr/share/zsh/vendor-completions

put() { # put PACKAGE PATH...: moves what was installed
  package=$1
  shift
  for path in "$@"; do
    [ -e "$work/all/$path" ] || [ -L "$work/all/$path" ] || continue
    mkdir -p "$work/$package/$(dirname "$path")"
    mv "$work/all/$path" "$work/$package/$path"
  done
}
put $library "$lib/libmoth.so.${version%%.*}" $lib/libmoth_gloo.so $lib/libmoth_cuda.so
put libmoth-dev usr/include/moth $lib/libmoth.so $lib/pkgconfig
find "$work/all/usr/share/man" -name '*.1' -exec gzip -n -9 {} +
put moth usr/bin $lib/lua usr/share/lua usr/share/man usr/share/bash-completion usr/share/zsh usr/share/moth
rm -f "$work/all/$lib/libmoth_mpi.so" # of this machine's MPI: each site makes its own
left=$(find "$work/all" ! -type d)
[ -z "$left" ] || { printf '✗ make deb: no package takes\n%s\n' "$left" >&2; exit 1; }

# The packages of the libraries that these files are linked to.
cat >"$work/debian/control" <<END
Source: moth
Maintainer: $maintainer

Package: moth
Architecture: any
END
needs() { # needs FILE...: "package (>= version), ..."
  (cd "$work" && dpkg-shlibdeps --ignore-missing-info -l"$work/$library/$lib" -O "$@" 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
}

package() { # package NAME SECTION "Field: value\n..." "summary" "text"
  name=$1
  dir=$work/$name
  doc=$dir/usr/share/doc/$name
  mkdir -p "$doc" "$dir/DEBIAN"
  {
    echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
    printf '\nFiles: *\nCopyright: 2026 the moth authors\nLicense: Expat\n'
    sed -n '/^Permission/,$p' LICENSE | sed 's/^$/./; s/^/ /'
    if [ "$name" = moth ]; then
      printf '\nFiles: usr/share/lua/5.1/moth/datasets/digits.csv.gz\nCopyright: 1998 E. Alpaydin, C. Kaynak\nLicense: CC-BY-4.0\n'
      sed 's/^ *$/./; s/^/ /' lua/moth/datasets/digits.txt
    fi
  } >"$doc/copyright"
  {
    printf 'moth (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n' "$version"
    printf ' -- %s  %s\n' "$maintainer" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
  } | gzip -n -9 >"$doc/changelog.gz"
  {
    printf 'Package: %s\nSource: moth\nVersion: %s\nArchitecture: %s\nMaintainer: %s\n' "$name" "$version" "$arch" "$maintainer"
    printf 'Installed-Size: %s\n' "$(du -k -s --apparent-size "$dir/usr" | cut -f 1)"
    printf 'Section: %s\nPriority: optional\n' "$2"
    printf '%b' "$3"
    printf 'Description: %s\n' "$4"
    printf '%s\n' "$5" | sed 's/^/ /'
  } >"$dir/DEBIAN/control"
  (cd "$dir" && find usr -type f -print | LC_ALL=C sort | xargs md5sum >DEBIAN/md5sums)
  dpkg-deb --root-owner-group --build "$dir" "$out/${name}_${version}_$arch.deb" >/dev/null
  echo "  DEB  $out/${name}_${version}_$arch.deb"
}

# Policy: libraries are not executable.
find "$work/$library" "$work/moth/$lib" -name '*.so*' -type f -exec chmod 644 {} +
mkdir -p "$work/$library/DEBIAN"
echo "activate-noawait ldconfig" >"$work/$library/DEBIAN/triggers"
echo "libmoth ${version%%.*} $library (= $version)" >"$work/$library/DEBIAN/shlibs"
core=$(needs "$work/$library/$lib/libmoth.so.${version%%.*}")
lua=$(needs "$work/moth/usr/bin/moth" "$work/moth/$lib/lua/5.1/moth_lua.so" | sed "s/\(, \)\?$library[^,]*//")
text="Tensors, automatic differentiation, networks, optimizers and data loading:
what PyTorch is to Python, moth is to LuaJIT."

package $library libs "Multi-Arch: same\nDepends: $core\nRecommends: libopenblas0-openmp\nSuggests: libdnnl2\n" \
  "deep learning, the shared library" "$text
.
This package has the library, which also C programs use without Lua."
package libmoth-dev libdevel "Multi-Arch: same\nDepends: $library (= $version)\n" \
  "deep learning, files for C programs" "$text
.
This package has the headers and the file of pkg-config."
package moth science "Depends: $library (= $version)${lua:+, $lua}\nRecommends: luajit2 | luajit, gcc | c-compiler\n" \
  "deep learning for LuaJIT" "$text
.
This package has the Lua modules and the program moth."
