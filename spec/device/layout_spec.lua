-- A library of the CUDA backend that was built from another version of moth is refused before anything of it is called.
local build = os.getenv("MOTH_BUILD") or "build"
local luajit = os.getenv("LUAJIT") or "luajit"

local function shell(command, ...)
  local pipe = assert(io.popen(command:format(...) .. " 2>&1"))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

describe("a library of the CUDA backend", function()
  local dir
  before_each(function()
    dir = shell("mktemp -d"):match("%S+")
    shell("cp %s/libmoth.so.0 %s/moth_lua.so %s", build, build, dir)
  end)
  after_each(function() shell("rm -rf %s", dir) end)

  -- The result of moth.cuda.why() with a library of this source beside libmoth.so.
  local function why(source)
    local f = assert(io.open(dir .. "/open.c", "w"))
    f:write(source)
    f:close()
    local out = shell("cd %s && cc -shared -fPIC -o libmoth_cudaemu.so open.c", dir)
    assert.equal("", out)
    return shell([[LUA_CPATH="%s/?.so;$LUA_CPATH" MOTH_CUDA=emu MOTH_DEVICE=cpu %s -e '
      io.write(tostring(require("moth").cuda.why()))']], dir, luajit)
  end
  local open = [[
    #include <stdlib.h>
    const char *moth_cuda_open(const void **api) { (void)api; %s }
    %s
  ]]

  it("of another version is refused", function()
    local other = 'const char moth_cuda_layout[] = "0123456789abcdef";'
    for _, layout in ipairs { other, "" } do
      local text = why(open:format("abort();", layout))
      assert.matches("libmoth_cudaemu.so was built from another version of moth than libmoth.so beside it; \z
        build it again: make cudaemu$", text)
    end
  end)

  it("of this version is opened", function()
    local f = io.open(build .. "/gen/layout.h") or assert(io.open "build/gen/layout.h")
    local layout = f:read("*a"):match('MOTH_LAYOUT "(%x+)"')
    f:close()
    assert.equal(16, #layout)
    local text = why(open:format('return "opened";', ('const char moth_cuda_layout[] = "%s";'):format(layout)))
    assert.equal("opened", text)
  end)

  it("that cannot be loaded is not taken for a missing one", function()
    local text = why("extern int moth_nowhere(void); int f(void) { return moth_nowhere(); }")
    assert.matches("^the CUDA backend cannot be loaded %(.*moth_nowhere.*%); build it again: make cudaemu$", text)
    os.remove(dir .. "/libmoth_cudaemu.so")
    text = shell([[LUA_CPATH="%s/?.so;$LUA_CPATH" MOTH_CUDA=emu MOTH_DEVICE=cpu %s -e '
      io.write(tostring(require("moth").cuda.why()))']], dir, luajit)
    assert.matches("^moth was built without CUDA %(", text)
  end)
end)
