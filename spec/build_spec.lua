-- The build: what it needs, what it makes again after a change, and the commands that the README names.
local build = os.getenv("MOTH_BUILD") or "build"

-- What a command prints, and whether it succeeded; it has no variable of a make or a runner around this.
local unset = "unset LUA_PATH LUA_CPATH LD_PRELOAD MAKEFLAGS MFLAGS MAKELEVEL"
local function run(command, ...)
  local pipe = io.popen(("{ %s; %s; } 2>&1; echo $?"):format(unset, command:format(...)))
  local text = pipe:read("*a")
  pipe:close()
  local output, status = text:match("^(.-)(%d+)\n$")
  return output, status == "0"
end

local function read(path)
  local f = assert(io.open(path))
  local text = f:read("*a")
  f:close()
  return text
end

describe("the build", function()
  it("links nothing of CUDA, NCCL or BLAS: they are opened at run time #M496 #noasan", function()
    local text = run("readelf -d " .. build .. "/libmoth.so")
    if not text:find("NEEDED") then return pending("there is no readelf") end
    local known = { ["libc.so.6"] = true, ["libm.so.6"] = true, ["libgomp.so.1"] = true, ["libdl.so.2"] = true,
      ["libpthread.so.0"] = true, ["ld-linux-x86-64.so.2"] = true }
    for name in text:gmatch("NEEDED[^%[]*%[([^%]]+)%]") do assert.is_true(known[name], name) end
  end)

  it("is tested by the command that the README names, which is what a merge must pass #M496", function()
    assert.matches("\n    make test  ", read("README.md"))
    assert.matches("\nstep test make test[^\n]*\n", read(".ci/run"))
    for command in read("README.md"):gmatch("`make (%l[%w-]*)") do
      assert.matches("\n[%w $-]*%f[%w-]" .. command:gsub("%-", "%%-") .. "%f[^%w-][^\n]*:", read("Makefile")
        :gsub("%$%(eval %$%(call sanitized,(%l+)[^\n]*", "%1:"))
    end
  end)

  it("gives clang no flag that it does not know", function()
    if not run("command -v clang"):match("clang") then return pending("there is no clang") end
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local f = assert(io.open(path, "w"))
    f:write("include Makefile\nflags:\n\t@echo $(OPT_CORE) $(OPT_KERN) $(OPT_generic) $(KERN_FLAGS) $(EDGE_OPT_KERN)\n")
    f:close()
    local text, ok = run("echo 'int x;' | clang $(make -s -f %s CC=clang flags) -fsyntax-only -x c -", path)
    assert.is_true(ok, text)
    assert.equal("", text)
  end)

  it("is for another processor with CROSS, in a folder of its own", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local f = assert(io.open(path, "w"))
    f:write("include Makefile\nprint:\n\t@echo $(B) $(CC) $(ISAS) $(ISA_neon) $(NEEDS)\n")
    f:close()
    for _, cross in ipairs { "aarch64-linux-gnu", "aarch64-linux-gnu-" } do
      assert.equal("build/aarch64 aarch64-linux-gnu-gcc neon -march=armv8-a\n",
        (run("make -s -f %s CROSS=%s print", path, cross)))
    end
    assert.matches("^build %S+ ", (run("make -s -f %s print", path)))
  end)

  it("runs by busted alone, and skips what needs a GPU with the reason #M509 #noasan", function()
    if os.getenv("MOTH_CUDA") == "emu" then return pending("the emulation is a GPU") end
    local text, ok = run("MOTH_BUILD=%s MOTH_LUAJIT_WARNING=0 busted spec/utils/system_spec.lua", build)
    assert.is_true(ok, text)
    assert.matches("[1-9]%d* success", text)
    text, ok = run("MOTH_BUILD=%s MOTH_CUDA=off MOTH_LUAJIT_WARNING=0 busted --run=gpu spec/cuda/gemm_spec.lua", build)
    assert.is_true(ok, text)
    assert.matches("[1-9]%d* pending", text)
    assert.matches("gemm_spec.lua:%d+: %S+", text)
  end)

  it("compiles one file again after a kernel was changed, and the change shows #M497 #slow #noasan", function()
    if build:sub(1, 1) == "/" then return pending("the build is not in this tree") end
    local dir = os.tmpname()
    os.remove(dir)
    finally(function() os.execute("rm -rf " .. dir) end)
    local text, ok = run([[mkdir %s &&
      tar cf - --exclude=%s/asan --exclude='libmoth_*emu*' Makefile .ci src kernels lua %s | tar xf - -C %s]],
      dir, build, build, dir)
    assert.is_true(ok, text)
    local make = ("cd %s && make B=%s"):format(dir, build)
    text, ok = run(make)
    assert.is_true(ok, text)
    assert.is_nil(text:find("  CC  ", 1, true)) -- nothing has changed yet
    local path = dir .. "/kernels/cpu/pointwise.c"
    local source, n = read(path):gsub("\nMothStatus moth_cpu_pointwise%(MothCall %*c%) {\n", "%0  puts(\"hello\");\n")
    assert.equal(1, n)
    local f = io.open(path, "w")
    f:write("#include <stdio.h>\n", source)
    f:close()
    text, ok = run(make)
    assert.is_true(ok, text)
    assert.equal(1, select(2, text:gsub("  CC  ", "")), text)
    text = run("cd %s && MOTH_LUAJIT_WARNING=0 %s/moth -e 'moth.ones(1):relu()'", dir, build)
    assert.matches("^hello", text)
  end)
end)
