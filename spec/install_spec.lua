-- `make install` and the rock: which files they install, and that these work from any directory, for C programs too.
local build = os.getenv("MOTH_BUILD") or "build"
local luajit = os.getenv("LUAJIT") or "luajit"

-- What a command prints, in the order of its writing, and whether it succeeded. It has no module path of the specs',
-- and no variable of a make around this.
local function run(command, ...)
  command = command:format(...)
  local pipe = assert(io.popen(("{ unset LUA_PATH LUA_CPATH LD_PRELOAD MAKEFLAGS MFLAGS MAKELEVEL; %s; } 2>&1; echo $?")
    :format(command)))
  local text = pipe:read("*a")
  pipe:close()
  local output, status = text:match("^(.-)(%d+)\n$")
  return output, status == "0"
end

local function must(command, ...)
  local output, ok = run(command, ...)
  assert.is_true(ok, command:format(...) .. "\n" .. output)
  return output
end

local function files(dir) return run("find %s ! -type d | sort", dir) end

-- A program of moth's without a path of its own, and what it must print.
local program = [[local moth = require "moth"
  local model = moth.nn.Sequential(moth.nn.Linear(3, 2), moth.nn.ReLU())
  model(moth.ones(4, 3)):sum():backward()
  print(moth.version, model[1].weight.grad:size(), (moth.ops.describe "relu"):match "^%S+")
  print(moth.datasets.Digits())]]
local expected = require("moth").version .. "\t[2, 3]\trelu(Tensor\nDigits: 1438 images of [8, 8], 10 classes\n"

-- These run make, which would bring a build up to date: not one that lies elsewhere, and may be another tree's.
local foreign = build:sub(1, 1) == "/"

describe("make install #noasan", function()
  if foreign then
    pending("the build is not in this tree")
    return
  end
  local prefix
  lazy_setup(function()
    prefix = must("mktemp -d"):match("%S+")
  end)
  lazy_teardown(function()
    run("rm -rf %s", prefix)
  end)

  it("compiles nothing where the build is there, and installs a moth that runs anywhere #M511", function()
    local output = must("make install B=%s PREFIX=%s", build, prefix)
    assert.is_nil(output:match("  CC "))
    assert.matches("PUT", output, 1, true)
    assert.equal(expected, must("cd / && %s/bin/moth -e '%s'", prefix, program))
    assert.equal(expected, must("cd / && env LUA_PATH='%s/share/lua/5.1/?.lua;%s/share/lua/5.1/?/init.lua' "
      .. "LUA_CPATH='%s/lib/lua/5.1/?.so' %s -e '%s'", prefix, prefix, prefix, luajit, program))
    for _, file in ipairs { "lib/libmoth.so.0", "lib/lua/5.1/moth_lua.so", "bin/moth" } do
      assert.is_nil(must("readelf -SW %s/%s", prefix, file):match("%.debug_info"), file .. " is not stripped")
    end
  end)

  it("puts man pages, completion and definitions for editors where these look", function()
    must("make install B=%s PREFIX=%s", build, prefix)
    for _, file in ipairs { "man/man1/moth.1", "man/man1/moth-serve.1", "man/man1/mothrun.1", "moth/meta/moth/nn.lua",
      "bash-completion/completions/moth", "zsh/site-functions/_mothrun", "moth/meta/moth/globals.lua" } do
      assert.is_true(tonumber(must("wc -c < %s/share/%s", prefix, file)) > 10, file)
    end
    if run("command -v man"):match "%S" then
      assert.matches("moth%-serve %- Models behind HTTP", must("man -l %s/share/man/man1/moth-serve.1", prefix))
    end
  end)

  it("refuses libraries and Lua files of different versions, by name", function()
    must("make install B=%s PREFIX=%s", build, prefix)
    local other = prefix .. "/other"
    must("mkdir -p %s && cp -r %s/share/lua/5.1/moth %s/lib/libmoth.so.0 %s/lib/lua/5.1/moth_lua.so %s", other, prefix,
      prefix, prefix, other)
    local version = require("moth").version
    local with = ("cd / && env LUA_PATH='%s/?.lua;%s/?/init.lua' LUA_CPATH='%s/?.so' %s -e 'require \"moth\"'"):format(
      other, other, other, luajit)
    must(with)
    must([[sed -i 's/^local VERSION = ".*"/local VERSION = "0.0.9"/' %s/moth/init.lua]], other)
    local output, ok = run(with)
    assert.is_false(ok)
    assert.matches("moth's Lua files are 0.0.9 (" .. other .. "/moth/), libmoth.so is " .. version .. " (" .. other
      .. "/moth_lua.so)\nHINT: install all of one version", output, 1, true)
    must("cd %s && echo 'const char *moth_version(void) { return \"9.8.7\"; }' > v.c && "
      .. "gcc -shared -fPIC -o libv.so v.c", other)
    output, ok = run("export LD_PRELOAD=%s/libv.so; %s", other, with)
    assert.is_false(ok)
    assert.matches("moth_lua.so is " .. version .. ", libmoth.so is 9.8.7 (", output, 1, true)
    -- Too old to have what moth_lua.so asks for.
    must("gcc -shared -fPIC -o %s/libmoth.so.0 -Wl,-soname,libmoth.so.0 %s/v.c", other, other)
    output, ok = run(with)
    assert.is_false(ok)
    assert.matches("libmoth.so is of another version: .*undefined symbol.*\nHINT: install all of one version", output)
  end)

  it("names its library by the version, and no file says where it was built", function()
    must("make install B=%s PREFIX=%s", build, prefix)
    local name = "libmoth.so." .. require("moth").version:match("^%d+")
    assert.equal(name, require("moth_lua").soname)
    assert.matches("soname: %[" .. name:gsub("%p", "%%%0") .. "%]", must("readelf -d %s/lib/%s", prefix, name))
    assert.equal(name .. "\n", must("readlink %s/lib/libmoth.so", prefix))
    local needed = must("readelf -d %s/lib/lua/5.1/moth_lua.so", prefix)
    assert.matches("NEEDED[^\n]*%[" .. name:gsub("%p", "%%%0") .. "%]", needed)
    assert.equal("", run("grep -rlF \"$PWD/\" %s", prefix))
  end)

  it("may be moved: moth.pc follows its folder", function()
    if not run("command -v pkg-config"):match("%S") then return pending("needs pkg-config") end
    local from, to = prefix .. "/from", prefix .. "/to"
    must("make install B=%s PREFIX=%s && mv %s %s", build, from, from, to)
    must("cp examples/c/train.c %s && cd %s && gcc -std=c99 -O1 -o train train.c "
      .. "$(PKG_CONFIG_PATH=%s/lib/pkgconfig pkg-config --cflags --libs moth)", to, to, to)
    assert.matches("libmoth%.so%.%d+ => " .. to, (must("ldd %s/train", to):gsub("/lib/pkgconfig/%.%./%.%.", "")))
    assert.equal("", run("grep -rlF %s %s", from, to))
  end)

  it("has one version, in moth.h and in the Lua files", function()
    assert.equal(must([[sed -n 's/.*MOTH_VERSION *"\(.*\)"/\1/p' src/moth.h]]),
      must([[sed -n 's/^local VERSION = "\(.*\)".*/\1/p' lua/moth/init.lua]]))
  end)

  it("a C program builds against it by pkg-config, and trains without Lua", function()
    if not run("command -v pkg-config"):match("%S") then return pending("needs pkg-config") end
    must("make install B=%s PREFIX=%s", build, prefix)
    local pkg_config = ("PKG_CONFIG_PATH=%s/lib/pkgconfig pkg-config"):format(prefix)
    assert.equal(require("moth").version .. "\n", must("%s --modversion moth", pkg_config))
    -- Outside of the tree: only what is installed can be found.
    must("cp examples/c/train.c %s && cd %s && gcc -std=c99 -Wall -Wextra -Werror -O1 -o train train.c "
      .. "$(%s --cflags --libs moth)", prefix, prefix, pkg_config)
    assert.is_nil(must("ldd %s/train", prefix):match("lua"))
    local output = must("cd / && %s/train", prefix)
    local first = tonumber(output:match("step   1  loss ([%d.]+)"))
    local last = tonumber(output:match("step 200  loss ([%d.]+)"))
    assert.is_true(first > 0.5 and last < 0.1, output)
    assert.is_true(tonumber(output:match("on new points ([%d.]+)")) > 0.95, output)
    assert.equal(output, must("cd / && OMP_NUM_THREADS=1 %s/train", prefix)) -- to the bit, for any number of threads
  end)

  it("goes through DESTDIR, whose name is in no file, and uninstall leaves nothing", function()
    local dest = prefix .. "/dest"
    must("make install B=%s PREFIX=/usr DESTDIR=%s", build, dest)
    assert.matches("\n" .. dest .. "/usr/bin/moth\n", "\n" .. files(dest), 1, true)
    assert.equal("Libs: -L${libdir} -lmoth\n", must("grep ^Libs %s/usr/lib/pkgconfig/moth.pc", dest))
    assert.equal("", run("find %s/usr ! -perm -o=r", dest)) -- for every user
    assert.equal("", run("grep -rlF %s %s", dest, dest))
    must("make uninstall B=%s PREFIX=/usr DESTDIR=%s", build, dest)
    assert.equal("", files(dest))
  end)

  it("takes folders with blanks in their names, and uninstall leaves what has half of the name", function()
    local whole, half = prefix .. "/a b", prefix .. "/a"
    must("mkdir -p %s && touch %s/mine", half, half)
    must("make install B=%s PREFIX='%s'", build, whole)
    assert.equal(expected, must("cd / && '%s/bin/moth' -e '%s'", whole, program))
    must("make uninstall B=%s PREFIX='%s'", build, whole)
    assert.equal("", files("'" .. whole .. "'"))
    assert.equal(half .. "/mine\n", files(half))
  end)
end)

describe("the rock #noasan", function()
  if foreign or not run("command -v luarocks"):match("luarocks") then
    pending(foreign and "the build is not in this tree" or "needs luarocks")
    return
  end

  it("is made from the tree without a network, runs from anywhere, and leaves nothing #M510", function()
    local tree = must("mktemp -d"):match("%S+")
    finally(function() run("rm -rf %s", tree) end)
    local luarocks = "luarocks --lua-version=5.1 --tree=" .. tree
    local offline = "http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9"
    must("B=%s %s %s make rocks/moth-scm-1.rockspec", build, offline, luarocks)
    assert.equal(expected, must("cd / && %s/bin/moth -e '%s'", tree, program))
    assert.equal(expected, must("cd / && eval $(%s path) && %s -e '%s'", luarocks, luajit, program))
    assert.matches("scm%-1", must("%s show moth", luarocks))
    must("%s remove moth", luarocks)
    local left = files(tree):gsub("[^\n]*/manifest[^\n]*\n", "") -- luarocks' own list
    assert.equal("", left)
  end)
end)

describe("an extension that is built ahead of time #noasan", function()
  if foreign then
    pending("the build is not in this tree")
    return
  end
  local tree
  lazy_setup(function()
    tree = must("mktemp -d"):match("%S+")
    must("cp -r examples/ext_add %s", tree)
  end)
  lazy_teardown(function() run("rm -rf %s", tree) end)
  local luarocks = "luarocks --lua-version=5.1 --tree="
  local offline = "http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9"
  local use = [[local moth = require "moth"
    print(table.concat(moth.library.load "ext_add", " "))
    local a = moth.ones(3, { requires_grad = true })
    moth.ops.ext_add.add(a, a):sum():backward()
    print(table.concat(a.grad:totable(), " "))]]

  it("is a rock beside moth's, made by `luarocks make` in its folder #M132", function()
    if not run("command -v luarocks"):match("luarocks") then return pending("needs luarocks") end
    must("B=%s %s %s%s/rocks make rocks/moth-scm-1.rockspec", build, offline, luarocks, tree)
    local env = ("cd %s/ext_add && eval $(%s%s/rocks path) && export LUAJIT=%s MOTH_LUAJIT_WARNING=0"):format(tree,
      luarocks, tree, luajit)
    local output = must("%s && %s %s%s/rocks make ext_add-1-1.rockspec", env, offline, luarocks, tree)
    assert.is_nil(output:find(build .. "/gen", 1, true), output) -- the installed headers, not the tree's
    must("rm %s/ext_add/ext_add.so", tree)
    assert.equal("ext_add::add\n2 2 2\n", must("%s && %s -e '%s'", env, luajit, use))
    local text, ok = run("%s && %s -e 'require(\"moth\").library.load \"ext_sub\"'", env, luajit)
    assert.is_false(ok)
    assert.matches("there is no library 'ext_sub':\n\tno file", text)
  end)

  it("is built by make alone, against `make install`", function()
    must("make install B=%s PREFIX=%s/moth", build, tree)
    local env = ("cd %s/ext_add && export LUAJIT=%s MOTH_LUAJIT_WARNING=0 LUA_PATH='%s/moth/share/lua/5.1/?/init.lua;"
      .. "%s/moth/share/lua/5.1/?.lua' LUA_CPATH='%s/moth/lib/lua/5.1/?.so;%s/into/?.so'"):format(tree, luajit, tree,
      tree, tree, tree)
    must("%s && make clean && make install CFLAGS='-Wall -Werror' LIBDIR=%s/into", env, tree)
    assert.equal("ext_add::add\n2 2 2\n", must("%s && cd / && %s -e '%s'", env, luajit, use))
    assert.equal("", must("%s && make clean > /dev/null; ls | grep -E '[.](o|so)$' || true", env))
  end)
end)

describe("make deb #noasan", function()
  if foreign or not run("command -v dpkg-deb && command -v dpkg-shlibdeps"):match("shlibdeps") then
    pending(foreign and "the build is not in this tree" or "needs dpkg-dev")
    return
  end

  it("makes three packages that work from where they are unpacked, and that purge removes whole", function()
    local dir = must("mktemp -d"):match("%S+")
    finally(function() run("rm -rf %s %s/deb", dir, build) end)
    must("DPKG_DEB_COMPRESSOR_TYPE=gzip DPKG_DEB_COMPRESSOR_LEVEL=1 make deb B=%s", build)
    local arch = must("dpkg --print-architecture"):match("%S+")
    local version = require("moth").version
    local packages = {}
    for _, name in ipairs { "libmoth0", "libmoth-dev", "moth" } do
      local path = ("%s/deb/%s_%s_%s.deb"):format(build, name, version, arch)
      must("dpkg-deb -x %s %s/root", path, dir)
      must("dpkg-deb -e %s %s/%s && cd %s/root && md5sum --quiet -c ../%s/md5sums", path, dir, name, dir, name)
      packages[#packages + 1] = path
    end
    must("test -e %s/root/usr/share/man/man1/moth-serve.1.gz -a -e %s/root/usr/share/zsh/vendor-completions/_moth", dir,
      dir)
    assert.matches("Depends: libmoth0 %(= " .. version .. "%), .*luajit", must("cat %s/moth/control", dir))
    assert.equal("activate-noawait ldconfig\n", must("cat %s/libmoth0/triggers", dir))
    local lib = must("cd %s/root && ls -d usr/lib/*", dir):match("%S+")
    assert.equal(expected, must("cd / && LUA_CPATH='%s/root/%s/lua/5.1/?.so' %s/root/usr/bin/moth -e '%s'", dir, lib,
      dir, program))
    if run("id -u") ~= "0\n" then return end
    local dpkg = ("dpkg --root=%s/system --force-depends --log=/dev/null"):format(dir)
    must("cd %s && mkdir -p system/var/lib/dpkg/updates system/var/lib/dpkg/info && touch system/var/lib/dpkg/status",
      dir)
    must("%s -i %s", dpkg, table.concat(packages, " "))
    must("test -e %s/system/usr/bin/moth", dir)
    must("%s --purge moth libmoth-dev libmoth0", dpkg)
    assert.equal("", run("find %s/system ! -type d ! -path '*/var/lib/dpkg/*'", dir))
    assert.equal("", run("find %s/system -mindepth 1 -maxdepth 1 ! -name var", dir))
  end)
end)

describe("make dist", function()
  it("writes an archive of the last commit, the same bytes each time, with a rockspec of its version", function()
    if not select(2, run("git rev-parse HEAD^0")) then return pending("not a git checkout") end
    local dir = must("mktemp -d"):match("%S+")
    finally(function() run("rm -rf %s", dir) end)
    must("make dist B=%s/a && make dist B=%s/b", dir, dir)
    local archive = must("cd %s/a/dist && ls *.tar.gz", dir):match("%S+")
    must("cmp %s/a/dist/%s %s/b/dist/%s", dir, archive, dir, archive)
    local name = archive:gsub("%.tar%.gz$", "")
    assert.equal(must("git ls-tree -r --name-only HEAD | wc -l"),
      must("tar tzf %s/a/dist/%s | grep -v '/$' | grep -cv '/rocks/moth-[0-9]'", dir, archive))
    must("cd %s && tar xzf a/dist/%s", dir, archive)
    local version = require("moth").version
    local rockspec = {}
    local file = ("%s/%s/rocks/moth-%s-1.rockspec"):format(dir, name, version)
    setfenv(assert(loadfile(file)), rockspec)()
    assert.equal(version .. "-1", rockspec.version)
    local text, ok = run("cd %s/%s && GIT_CEILING_DIRECTORIES=%s make dist", dir, name, dir)
    assert.is_false(ok)
    assert.matches("make dist needs a git checkout", text, 1, true)
  end)
end)

describe("the tree", function()
  it("has nothing at its top but what belongs there #M513", function()
    local listing, ok = run("git ls-files")
    if not ok then return pending("not a git checkout") end
    local top, names = {}, {}
    for path in listing:gmatch("[^\n]+") do
      local name = path:match("^[^/]+")
      if not top[name] and name:sub(1, 1) ~= "." then names[#names + 1] = name end
      top[name] = true
    end
    table.sort(names)
    assert.same({ "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md", "bench", "docs",
      "examples", "findings", "kernels", "lua", "rocks", "spec", "src" }, names)
  end)
end)
