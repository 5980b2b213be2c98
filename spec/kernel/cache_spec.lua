-- What compiled kernels are kept in: a folder of the user's that processes share.
local build = os.getenv("MOTH_BUILD") or "build"

local function shell(command)
  local pipe = assert(io.popen("{ " .. command .. "; } 2>&1; echo status=$?"))
  local text, status = pipe:read("*a"):match("^(.-)status=(%d+)\n$")
  pipe:close()
  return text, tonumber(status)
end

local script = [[
local moth = require "moth"
local tl = moth.kernel.lang
local k = moth.kernel.jit(function(x, n, B)
  local i = tl.arange(0, B)
  tl.store(x + i, i * n, { mask = i < 5 })
end, { constexpr = { "B" } })
local x = moth.zeros(5)
k{ 1 }(x, 2, { B = 8 })
k{ 1 }(x, 2, { B = 4 })
print(table.concat(x:totable(), " "))
]]

describe("the cache of compiled kernels #noasan", function()
  local dir
  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
    os.execute("mkdir -m 700 " .. dir)
    local f = assert(io.open(dir .. "/k.lua", "w"))
    f:write(script)
    f:close()
  end)
  after_each(function() os.execute("chmod -R u+w " .. dir .. "; rm -rf " .. dir) end)

  local function run(variables)
    return (shell(("env -u LD_PRELOAD XDG_CACHE_HOME=%s/cache MOTH_LUAJIT_WARNING=0 env %s %s/moth %s/k.lua")
      :format(dir, variables or "", build, dir)))
  end
  local function files() return (shell("ls -A " .. dir .. "/cache/moth/kernels")) end
  local right = "0 2 4 6 8\n"

  it("is for the user alone, and a second process finds what the first has made #M287", function()
    assert.equal(right, run())
    assert.equal("700\n", (shell("stat -c %a " .. dir .. "/cache/moth/kernels")))
    local names = files()
    assert.matches("^%x+%.so\n%x+%.so\n$", names)
    assert.equal(right, run("MOTH_CC=gcc PATH=/usr/bin:/bin")) -- the same compiler under another name
    local before = shell("stat -c %i " .. dir .. "/cache/moth/kernels/*")
    assert.equal(right, run())
    assert.equal(before, (shell("stat -c %i " .. dir .. "/cache/moth/kernels/*")))
  end)

  it("makes again what was cut short or is something else", function()
    assert.equal(right, run())
    for _, damage in ipairs { "truncate -s 5000", "truncate -s 0", "sh -c 'echo wrong > $0'",
      "sh -c 'printf x | dd of=$0 bs=1 seek=3000 conv=notrunc 2>/dev/null'" } do
      shell(("for f in %s/cache/moth/kernels/*.so; do %s $f; done"):format(dir, damage))
      assert.equal(right, run(), damage)
    end
    assert.matches("^%x+%.so\n%x+%.so\n$", files())
  end)

  it("is shared by processes that start at the same time", function()
    local command = ("env -u LD_PRELOAD MOTH_LUAJIT_WARNING=0 XDG_CACHE_HOME=%s/cache %s/moth %s/k.lua"):format(dir,
      build, dir)
    local text = shell(("for i in 1 2 3 4; do %s & done; wait"):format(command))
    assert.equal(right:rep(4), text)
    assert.matches("^%x+%.so\n%x+%.so\n$", files())
  end)

  it("works without: a folder that cannot be made, or that others may write to, is said once", function()
    local text = run("XDG_CACHE_HOME=/proc/none")
    assert.equal("moth: /proc/none/moth/kernels: it cannot be made; what is compiled is not kept\n" .. right, text)
    text = run("-u XDG_CACHE_HOME -u HOME")
    assert.equal("moth: $HOME/.cache/moth/kernels: neither XDG_CACHE_HOME nor HOME is set; "
      .. "what is compiled is not kept\n" .. right, text)
    shell(("mkdir -p %s/cache/moth; touch %s/cache/moth/kernels"):format(dir, dir))
    assert.matches("^moth: [^\n]*/moth/kernels: it is no folder; what is compiled is not kept\n" .. right .. "$", run())
  end)

  it("is not needed where there is no compiler: kernels are interpreted, with one line", function()
    local text = run("PATH=/nonexistent/bin")
    assert.equal("moth: no C compiler (set MOTH_CC, or install gcc or clang): kernels are interpreted, which is slow\n"
      .. right, text)
    assert.matches("^moth: MOTH_CC=/none is no compiler that runs\nmoth: no C compiler.*\n" .. right .. "$",
      run("MOTH_CC=/none"))
  end)
end)
