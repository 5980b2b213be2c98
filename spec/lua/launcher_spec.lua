-- The `moth` command, as a user meets it.

local build = os.getenv("MOTH_BUILD") or "build"
local moth = build .. "/moth"

--- Output (both streams) and exit status of a shell command; $M is the launcher, $F an empty file.
local function run(command)
  local file = os.tmpname()
  local pipe = io.popen(("{ M=%s; F=%s; %s\n} 2>&1; echo status=$?"):format(moth, file, command))
  local text, status = pipe:read("*a"):match("^(.-)status=(%d+)%s*$")
  pipe:close()
  os.remove(file)
  return text, tonumber(status)
end

describe("launcher #quick", function()
  it("prints versions and help", function()
    local text, status = run("$M --version")
    assert.equals(0, status)
    assert.matches("^moth %d+%.%d+%.%d+ %(LuaJIT 2%.1", text)
    text, status = run("$M --help")
    assert.equals(0, status)
    assert.matches("^usage: moth", text)
  end)

  it("runs a script with its arguments, past a shebang line", function()
    local text, status = run([[
      printf '#!/usr/bin/env moth\nprint(select("#", ...), ..., arg[0] == "%s", arg[2], #arg)' $F > $F
      $M $F "a b" c]])
    assert.equals(0, status)
    assert.equals("2\ta b\ttrue\tc\t2\n", text)
  end)

  it("says what to write instead of x < 0", function()
    for _, code in ipairs({ "x < 0", "0 >= x" }) do
      local text, status = run(("echo 'local x = require(\"moth\").ones(2); print(%s)' | $M -"):format(code))
      assert.equals(1, status)
      assert.matches("attempt to compare.*x:lt%(0%), not x < 0", text)
    end
  end)

  it("runs standard input", function()
    assert.equals("hello\tx\n", (run([[echo 'print("hello", ...)' | $M - x]])))
    assert.equals("hello\n", (run([[echo 'print("hello", ...)' | $M]])))
    assert.equals("", (run([[$M < /dev/null]])))
  end)

  it("collects earlier than LuaJIT, but as a program has chosen", function()
    local ask = [[echo '%s require "moth"; print(collectgarbage("setpause", 200))' > $F; luajit $F]]
    assert.equals("150\n", (run(ask:format(""))))
    assert.equals("300\n", (run(ask:format('collectgarbage("setpause", 300)'))))
  end)

  it("under MOTH_GUARD=1 works as ever, and ends where something writes behind a tensor", function()
    local work = "local x = moth.randn(7, 5, { requires_grad = true }); (x:t() * 2):exp():sum():backward(); " ..
      "print(x.grad:isfinite():all():item())"
    assert.equals("true\n", (run(("MOTH_GUARD=1 $M -e '%s'"):format(work))))
    local write = "MOTH_GUARD=1 $M -e 'local x = moth.ones(5); x:data()[%d] = 1' 2> /dev/null"
    assert.equals(0, (select(2, run(write:format(4)))))
    assert.not_equals(0, (select(2, run(write:format(5)))))
  end)

  it("logs calls where MOTH_LOGS says so", function()
    local text = run([[MOTH_LOGS=x,dispatch $M -e 'x = moth.ones(2) + 1']])
    local ones, add = text:match("^(%[moth dispatch%] ones [^\n]*)\n(%[moth dispatch%] add [^\n]*)\n$")
    assert.matches("ones %[%]  size: {2}  %(src/ops/create.lua:%d+%)$", ones)
    assert.matches("add %[CPU%]  self: float32 %[2%] cpu, other: 1, alpha: 1  %(src/ops/pointwise.lua:%d+%)$", add)
    assert.equals("", (run([[MOTH_LOGS=other $M -e 'x = moth.ones(2) + 1']])))
  end)

  it("requires modules by their last name", function()
    assert.equals("function\n", (run([[echo 'print(type(util.traceinfo))' > $F; $M -l jit.util $F]])))
  end)

  it("ends with status 1 and a traceback after an error", function()
    local text, status = run([[printf 'local function f() error("deep") end\nf()\n' > $F; $M $F]])
    assert.equals(1, status)
    assert.matches("^moth: .-:1: deep\nstack traceback:", text)
    assert.matches("in function 'f'", text)
    text, status = run([[echo 'error({})' | $M]])
    assert.equals(1, status)
    assert.matches("error object is a table value", text)
    text, status = run([[echo 'x = = 1' | $M]])
    assert.equals(1, status)
    assert.matches("unexpected symbol", text)
    text, status = run("$M /no/such/script.lua")
    assert.equals(1, status)
    assert.matches("No such file", text)
    text, status = run("$M --what")
    assert.equals(1, status)
    assert.matches("unknown option", text)
    text, status = run("$M -e")
    assert.equals(1, status)
    assert.matches("need an argument", text)
  end)

  it("keeps the status of os.exit and closes the state", function()
    local _, status = run([[echo 'os.exit(7, true)' | $M]])
    assert.equals(7, status)
    local text
    text, status = run([[echo 'local p = newproxy(true) getmetatable(p).__gc = function() print("closed") end
      _G.p = p' | $M]])
    assert.equals(0, status)
    assert.equals("closed\n", text)
  end)

  it("finds the modules of its own build", function()
    local text = run([[echo 'print(package.path) print(package.cpath)' | $M]])
    assert.matches("/gen/%?%.lua;", text)
    assert.matches("/lua/%?%.lua;", text)
    assert.matches("^[^\n]+\n[^\n;]+/%?%.so;", text)
  end)
end)
