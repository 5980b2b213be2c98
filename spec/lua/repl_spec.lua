-- The prompt: local variables, printing, completion, help. Typing at a terminal is tried by hand.
local moth = require "moth"
local repl = require "moth.repl"
local locals = require "moth.repl.locals"
local show = require "moth.repl.show"
local complete = require "moth.repl.complete"
local picture = require "moth.repl.picture"

-- A session fed with lines: what it wrote, and what went to stderr.
local function session(lines)
  local build = os.getenv("MOTH_BUILD") or "build"
  local path, err = os.tmpname(), os.tmpname()
  local f = assert(io.open(path, "w"))
  f:write(table.concat(lines, "\n"), "\n")
  f:close()
  local pipe = assert(io.popen(("MOTH_HISTORY= TERM=dumb %s/moth -i < %s 2> %s"):format(build, path, err)))
  local out = pipe:read("*a")
  pipe:close()
  f = assert(io.open(err))
  local errors = f:read("*a")
  f:close()
  os.remove(path)
  os.remove(err)
  return out, errors
end

describe("the prompt #quick #M508", function()
  it("keeps locals, and leaves globals and blocks alone", function()
    local function rewritten(text)
      local out, names = locals.rewrite(text)
      return out:gsub("%s+", " "):gsub("^ ", ""), table.concat(names, ",")
    end
    for text, want in pairs {
      ["local x = 1"] = { "x = 1", "x" },
      ["local a, b = f()"] = { "a, b = f()", "a,b" },
      ["local a , b"] = { "a , b = nil", "a,b" },
      ["local x local y = 2"] = { "x = nil y = 2", "x,y" },
      ["local function f() local z = 1 return z end"] = { "function f() local z = 1 return z end", "f" },
      ["do local x = 1 end local y = 2"] = { "do local x = 1 end y = 2", "y" },
      ["if a then local b = 1 elseif c then local d else local e end local f = 1"] =
        { "if a then local b = 1 elseif c then local d else local e end f = 1", "f" },
      ["for i = 1, 2 do local x = i end repeat local q until true local r = 1"] =
        { "for i = 1, 2 do local x = i end repeat local q until true r = 1", "r" },
      ["s = 'local x = 1' -- local y\nlocal z = [[local\nw]]"] =
        { "s = 'local x = 1' -- local y z = [[local w]]", "z" },
      ["t['end'] = 1 local x = 1"] = { "t['end'] = 1 x = 1", "x" },
      ["local x == 1"] = { "x == 1", "x" },
    } do
      local out, names = rewritten(text)
      if text ~= "local x == 1" then assert.equal(want[1], out, text) end
      assert.equal(want[2], names, text)
    end
    local s = locals.new({ print = print, g = 5 })
    local function run(text)
      local code, names = locals.rewrite(text)
      s:declare(names)
      return setfenv(assert(loadstring(code)), s.env)()
    end
    run "local g; local n = 1; function bump() n = n + 1 end"
    assert.is_nil(run "return g")
    assert.equal(5, s.globals.g)
    run "bump() bump()"
    assert.equal(3, run "return n")
    run "h = 7"
    assert.equal(7, s.globals.h)
    assert.same({ "bump", "g", "h", "n" }, s:names()) -- bump and h are globals
  end)

  it("evaluates expressions and statements, over several lines, and goes on after errors", function()
    local out, errors = session {
      "local x = 20", "x + 1", "=x * 2", "_ + 2", "for i = 1, 2 do", "  print('row', i)", "end", "x.y.z", "local = 3",
      "'still here'",
      "moth.ones(2)", "return 1, nil, 'three'",
    }
    assert.matches("21\n", out)
    assert.matches("40\n", out)
    assert.matches("42\n", out)
    assert.matches("row\t1\n", out)
    assert.matches("row\t2\n", out)
    assert.matches('"still here"', out)
    assert.matches("%[1., 1.%]\n%[moth.float32 2, cpu%]", out)
    assert.matches('1\nnil\n"three"', out)
    assert.matches("stdin:1: attempt to index", errors)
    assert.matches("'<name>' expected near '='", errors)
    assert.is_nil(out:find("\27", 1, true), "colours in a pipe")
    assert.is_nil(out:find("> ", 1, true) or out:find("Ctrl-D", 1, true), "prompts in a pipe")
  end)

  it("ends by exit, quit or the end of the input, in the middle of a statement, too", function()
    for _, line in ipairs { "exit", "quit", "exit()", " quit ( );" } do
      local out, errors = session { "1 + 1", line, "2 + 2" }
      assert.same({ "2\n", "" }, { out, errors })
    end
    assert.equal("3\n4\n", (session { "quit = 3", "quit", "2 + 2" }))
    assert.matches("%%who", (session { "help()" }))
    local _, errors = session { "for i = 1, 2 do", "print(i)" }
    assert.equal("moth: the input ends within what begins with 'for i = 1, 2 do'\n", errors)
  end)

  it("points at the line typed, and shows no frame of its own", function()
    local _, errors = session { "moth.nn.Linear(2, 3)(moth.ones(4))", "%run no_such_file", "%run docs", "%plot",
      "%plot nil" }
    assert.matches("^stdin:1: %[linear%] input and weight", errors)
    assert.matches("\n%%run: no_such_file: No such file or directory\n%%run: docs: it is a folder\n\z
      usage: %%plot expr: ", errors)
    assert.is_nil(errors:find("repl/init", 1, true))
    assert.is_nil(errors:find("in function 'error'", 1, true))
    assert.same("nil\n3\nnil\n", (session { "select(2, 1, nil, 3, nil)" }))
    assert.same("a\nb\n", (session { "'a\\nb'" }))
    assert.matches("module moth.nn: %?moth.nn lists it", (session { "moth.nn" }))
  end)

  it("keeps what was typed as one line of the history, if that means the same", function()
    assert.equal(" for i = 1, 2 do print(i) end",
      locals.one_line("-- twice\nfor i = 1, 2 do -- comment\n print(i)\nend --[[ x ]]"))
    assert.equal("x = 'a -- b'", locals.one_line("x = 'a -- b'"))
    assert.is_nil(locals.one_line("x = [[a\nb]]"))
    assert.equal("a.b(1 - -2)", locals.one_line("a.b(1 - -2)"))
  end)

  it("shows tables, strings, functions", function()
    assert.equal("{ 1, 2, a = { b = \"q\\n\" } }", show.value { 1, 2, a = { b = "q\n" } })
    assert.equal("{}", show.value {})
    local t = {}
    t.me = t
    assert.equal("{ me = <seen above> }", show.value(t))
    assert.matches("… 60 more", show.value(moth.arange(1, 101):totable()))
    assert.equal("1e+300", show.value(1e300))
    assert.equal("\"\\0\\255\"", (show.value("\0\255"):gsub("\255", "\\255")))
    assert.matches("^function at .*repl_spec.lua:%d+$", show.value(session))
    assert.matches("Linear", show.value(moth.nn.Linear(2, 3)))
    assert.equal("{ { { {…} } } }", (show.value({ { { { 1 } } } }):gsub("\n%s*", "")))
  end)

  it("completes through tables, metatables, lazy fields and modules", function()
    local s = repl.session { call = pcall }
    s.locals:set("moth", moth)
    s.locals:set("x", moth.ones(2))
    s.locals:set("net", moth.nn.Sequential(moth.nn.Linear(2, 3)))
    local function has(text, ...)
      local set = {}
      for _, c in ipairs(complete.candidates(s, text)) do set[c] = true end
      for _, want in ipairs { ... } do assert.is_true(set[want], text .. " offers " .. want) end
      return set
    end
    has("mo", "moth")
    has("moth.nn.Lin", "moth.nn.Linear")
    has("moth.s", "moth.save", "moth.sum", "moth.scope")
    has("x:sof", "x:softmax")
    has("x:sq", "x:sqrt", "x:squeeze")
    has("?x.gr", "?x.grad")
    has("net:par", "net:parameters")
    has("whi", "while")
    assert.is_nil(has("x:gra", "x:grad" ~= "" and nil)["x:grad"], "a field is no method")
    has("net[1].wei", "net[1].weight")
    has("?net[1].wei", "?net[1].weight")
    s.locals:set("t", { { inner = { deep = 1 } }, key = moth.ones(2) })
    has("t[1].inner.", "t[1].inner.deep")
    has("t['key']:so", "t['key']:softmax", "t['key']:sort")
    assert.same({}, complete.candidates(s, "nothing.here."))
    assert.same({}, complete.candidates(s, "net[1]"))
    assert.same({}, complete.candidates(s, "net[7].w"))
    assert.same({ "t[1].inner" }, complete.candidates(s, "t[1].in", "f(1 + t[1].in"))
    -- The line editor's word ends at a bracket: what stands before it is in the line alone.
    assert.same({ ".inner" }, complete.candidates(s, ".in", "f(1 + t[1].in"))
    assert.same({ "t.key" }, complete.candidates(s, "t.k", "x = {t.k"))
  end)

  it("completes the names of files behind %run and between quotes", function()
    local s = repl.session { call = pcall }
    local function of(text, line) return table.concat(complete.candidates(s, text, line), " ") end
    assert.equal("lua/moth/repl/help.lua lua/moth/repl/history.lua", of("lua/moth/repl/h", "%run lua/moth/repl/h"))
    assert.equal("help.lua history.lua", of("h", "%run lua/moth/repl/h"))
    assert.equal("README.md", of("READ", "moth.load('READ"))
    assert.equal("spec/", of("spe", '%run spe'))
    assert.matches("repl_spec.lua", of("", "f('a', \"it's\", \"spec/lua/"), 1, true)
    assert.equal("", of("READ", "f('x') READ"))
    assert.equal("", of("", "%run no/such/folder/"))
  end)

  it("knows globals: %who lists them, %reset gives them up", function()
    local out, errors = session { "q = 5", "local w = 6", "function area() return 1 end", "local print = 3", "%who",
      "%reset", "q", "w", "area", "moth ~= nil", "print ~= 3", "gcinfo = 7", "%who", "%reset",
      "gcinfo ~= 7" }
    assert.equal("", errors)
    assert.matches("^  area +function[^\n]+\n  moth +module[^\n]+\n  print +3\n  q +5\n  w +6\nnil\nnil\nnil\n"
      .. "true\ntrue\n  _ +true\n  gcinfo +7\n  moth +[^\n]+\ntrue\n$", out)
  end)

  it("suggests names where what is called is nil", function()
    local _, errors = session { "local net = { moth.nn.ReLU() }", "net[1]:forwrd(1)", "prnt(1)",
      "net[1]:zzzzzz()" }
    assert.matches("ReLU has no method 'forwrd'; did you mean 'forward'%?\n", errors)
    assert.matches("call global 'prnt' %(a nil value%); did you mean 'print'%?\n", errors)
    assert.matches("ReLU has no method 'zzzzzz'\n", errors, 1, true)
  end)

  it("looks words up in ops, functions, classes and modules", function()
    local out = session { "??dropout", "??loader", "??cross_entropy", "??tensorboard", "??no such thing",
      "net = moth.nn.Sequential(moth.nn.Linear(2, 3))", "?net[1].weight" }
    for _, want in ipairs { "  native_dropout ", "  moth.nn.Dropout ", "  moth.nn.functional.dropout2d ",
      "  moth.data.DataLoader ", "  moth.nn.CrossEntropyLoss ", "  moth.tensorboard ", "[moth.float32 3x2",
      "no op, function, class or module has 'no such thing'" } do
      assert.is_truthy(out:find(want, 1, true), want .. " in\n" .. out)
    end
  end)

  it("explains ops, functions, classes, modules and values", function()
    local out = session { "?sigmoid", "?moth.nn.Linear", "?moth.save", "?moth.optim", "local v = 3", "?v", "??logistic",
      "?surely_nothing", "?nn.Conv2d", "?StepLR", "?",
      "%help", "%who", "%nonsense" }
    assert.matches("sigmoid%(Tensor self%) %-> Tensor", out)
    assert.matches("src/ops/pointwise.lua:%d+", out)
    assert.matches("class Linear", out)
    assert.matches("defined at .-linear.lua:%d+", out)
    assert.matches("AdamW", out)
    assert.matches("v = 3 %(number%)", out)
    assert.matches("sigmoid +", out)
    assert.matches("nothing is named 'surely_nothing'", out)
    assert.matches("nothing is named 'softmaxx'; did you mean '[Ss]oftmax'; ??", (session { "?softmaxx" }))
    assert.matches("nothing is named 'nn.Linaer'; did you mean 'Linear'; ??", (session { "?nn.Linaer" }))
    assert.matches("class Conv2d.-conv.lua:%d+", out)
    assert.matches("class StepLR", out)
    assert.matches("class Linear%(size in_features, size out_features, bool bias=true.-%)\n.-\nweight %(out, in%)", out)
    assert.equal("one two\nthree\n  code(1)\n    and 2",
      require("moth.repl.help").fitted("one two three\n  code(1) and 2", 10))
    assert.matches("%%t expr", out)
    assert.matches("  v +3\n", out)
  end)

  it("shows the frames of an error, and has expressions see their variables: %debug", function()
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write([[
      local kept = 7
      local function inner(x, k)
        local y = x * k
        return y + moth.randn(3, 3) + kept
      end
      function step(x)
        local r = moth.no_grad(function()
          local scale = 2
          local z = inner(x, scale)
          return z
        end)
        return r
      end]])
    f:close()
    local out, errors = session { "%run " .. path, "k = 'of the session'", "step(moth.ones(2, 4))", "%debug",
      "k + kept", "y:sum()", "nothing.at_all", "%up", "scale", "k", "%up", "%up", "%up", "%debug 9", "%debug 1",
      "x:size(2)",
      "%debug end", "k", "%debug off", "%debug", "%debug on", "step({})", "%debug", "%locals" }
    os.remove(path)
    assert.matches(">  1  [^\n]+:4 in inner\n +return y %+ [^\n]+\n"
      .. " +x = float32 %[2, 4%] cpu, k = 2, y = float32", out)
    assert.matches("\n   2  [^\n]+:9 in [^\n]+\n[^\n]+\n +scale = 2, x = ", out)
    assert.matches("\n   3  [^\n]+:7 in step\n", out)
    assert.not_matches("moth/", out:match("^(.-)\n9\n")) -- no frames of the prompt's or of no_grad's own
    assert.matches("\n9\n16%.\n", out)
    assert.matches("\n2  [^\n]+:9 in [^\n]+\n  scale +2\n  x +float32 %[2, 4%] cpu\n2\n\"of the session\"\n", out)
    assert.matches("\n4\n\"of the session\"\n", out)
    assert.matches("\n  x +{}\n", out)
    assert.matches("there are frames 1 to 4", errors)
    assert.matches("there was no error yet", errors)
  end)

  it("helps from scripts, too: moth.help, moth.config #M464 #M512 #M516", function()
    local out, errors = session { "moth.help()", "moth.help 'debug'", "moth.help(moth.relu)",
      "moth.help(moth.nn.Linear)", "moth.help 'profiler'", "moth.help(moth.debug)", "print(moth.config())",
      "moth.config().blas.path",
      "moth.config().moth.version == moth.version" }
    assert.equal("", errors)
    assert.matches("moth.help \"relu\"", out)
    assert.matches("\n  find_nan +Runs model", out)
    assert.matches("\n  compare_runs +Runs", out)
    assert.matches("relu%(Tensor self%) %-> Tensor\n.-defined at src/ops/pointwise.lua:%d+", out)
    assert.matches("class Linear.-linear.lua:%d+", out)
    assert.matches("\n  step_breakdown +", out)
    for _, name in ipairs { "moth", "lua", "cpu", "blas", "oneDNN", "turbojpeg", "cc", "cuda" } do
      assert.matches("\n" .. name .. " +[^\n]+", out)
    end
    assert.matches("true\n$", out)
  end)

  it("times, runs files, draws", function()
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write("#!/usr/bin/env moth\nlocal from_file = 6 * 7\n")
    f:close()
    local out, errors = session { "%t 1 + 1", "%run " .. path, "from_file", "%plot {1, 4, 9}",
      "%image moth.ones(4, 4)", "%reset",
      "from_file == nil" }
    os.remove(path)
    assert.equal("", errors)
    assert.matches("a run %(median of 11", out)
    assert.matches("42\n", out)
    assert.matches("┤", out)
    assert.matches("▀", out)
    assert.matches("true\n", out)
  end)

  it("draws a sample with its label, and images as files have them", function()
    local out, errors = session { "ds = moth.datasets.Digits()", "%image ds:get(1)",
      "%image moth.ones({ 4, 4, 3 }, { dtype = moth.uint8 })", "%image moth.ones(2, 1, 4, 4)" }
    assert.matches("▀.-\n1\n.*▀", out) -- the digit 0 is class 1
    assert.matches("expected %(H, W%).*got .*HINT: one of the batch, x%[1%]", errors)
  end)

  it("draws with ASCII alone where the environment wants that", function()
    local text = picture.image(moth.rand(3, 5, 4), { sixel = false, ascii = true })
    assert.is_nil(text:find "[\128-\255]")
    assert.equal(12, select(2, text:gsub("%[48;2;%d+;%d+;%d+m ", "")))
    text = picture.curve({ 1, 3, 2 }, { ascii = true })
    assert.is_nil(text:find "[\128-\255]")
    assert.matches("3 |[ .':]*\n", text)
    local terminal = require "moth.repl.terminal"
    local names = { "LC_ALL", "LC_CTYPE", "LANG", "TERM" }
    local before = {}
    for _, name in ipairs(names) do before[name] = os.getenv(name) end
    finally(function() for _, name in ipairs(names) do moth.setenv(name, before[name]) end end)
    for want, settings in pairs { [true] = { {}, { LANG = "de_DE.UTF-8" }, { LC_ALL = "C.utf8", LANG = "C" } },
      [false] = { { LC_ALL = "C", LANG = "de_DE.UTF-8" }, { LANG = "de_DE.ISO-8859-1" }, { TERM = "linux" } } } do
      for _, set in ipairs(settings) do
        for _, name in ipairs(names) do moth.setenv(name, set[name]) end
        assert.equal(want, terminal.utf8())
      end
    end
  end)

  it("loads modules again when their files change, and a file's text as input", function()
    local dir = os.tmpname()
    os.remove(dir)
    os.execute("mkdir " .. dir)
    finally(function() os.execute("rm -r " .. dir) end)
    local function module(word) return ([==[os.execute [[cat > @dir/changes.lua <<'END'
local M = { word = "@word" }
M.Net = require("moth.class")("Net")
function M.Net:say() return "says @word" end
return M
END]] ]==]):gsub("@(%l+)", { dir = dir, word = word }):gsub("\n", "\\n") end
    local function line(word) return "loadstring('" .. module(word):gsub("'", "\\'") .. "')()" end
    local out, errors = session { line "one", ("package.path = '%s/?.lua;' .. package.path"):format(dir), "%autoreload",
      "m = require 'changes'; net = m.Net()", "net:say()", line "two", "net:say()", "m.word", "m.Net() :say()",
      ("os.execute [[echo 'x = = 1' > %s/changes.lua]]"):format(dir), "net:say()", "%autoreload off", line "three",
      "net:say()", ("%%load %s/changes.lua"):format(dir), "%history 1" }
    assert.matches('"says one"\n.*reloaded changes\n"says two"\n"two"\n"says two"\n.*"says two"\n.*"says two"\n', out)
    assert.matches('local M = { word = "three" }\n', out, 1, true)
    assert.equal(1, select(2, errors:gsub("changes was not reloaded: ", "")))
  end)

  it("draws images in blocks and sixels, curves with gaps", function()
    local x = moth.tensor { { 0, 1 }, { 1, 0 } }
    local text = picture.image(x, { sixel = false })
    assert.equal(2, select(2, text:gsub("▀", "")))
    assert.matches("38;2;0;0;0m\27%[48;2;255;255;255m", text)
    local six = picture.image(moth.rand(3, 7, 5), { sixel = true })
    assert.matches("^\27Pq", six)
    assert.matches("\27\\$", six)
    assert.has_error(function() picture.image(moth.ones(2, 3, 4)) end)
    assert.has_error(function() picture.image(3) end)
    assert.equal(13, select(2, picture.curve({ 1, 0 / 0, 3, math.huge, 5 }):gsub("\n", "\n")) + 1)
    assert.matches("nothing to plot", picture.curve { 0 / 0 })
    assert.matches("┤", picture.curve(moth.arange(1, 10)))
    assert.matches("┤", picture.curve({ 2 }))
    assert.has_error(function() picture.curve({ 1, 2 }, { 1 }) end)
    assert.has_error(function() picture.curve({ "a" }) end)
  end)

  it("has the commands of other prompts: !, %run with arguments, %timeit, %history, %reload", function()
    local dir = os.tmpname()
    os.remove(dir)
    os.execute("mkdir " .. dir)
    finally(function() os.execute("rm -r " .. dir) end)
    local function write(name, text)
      local f = assert(io.open(dir .. "/" .. name, "w"))
      f:write(text)
      f:close()
    end
    write("own.lua", "return { v = 1, old = true }")
    write("script.lua", "print(arg[1], arg[2], ..., arg[0]:match '[^/]*$')")
    local out, errors = session { "!echo from the shell", "%run " .. dir .. "/script.lua a b", "arg and arg[1]",
      ("package.path = %q .. package.path"):format(dir .. "/?.lua;"), 'local m = require "own"', "m.v",
      ("!echo 'return { v = 2 }' > %s/own.lua"):format(dir), "%reload own", "m.v, m.old", "%timeit 1", "%history 2",
      "!exit 3", "%reload nothing", "%run " .. dir .. "/none.lua a",
      "%run '" .. dir .. "/script.lua' \"a b\" 'c'\"\"d", "%run " .. dir .. "/script.lua 'a" }
    assert.matches("^from the shell\na\tb\ta\tscript.lua\n\"%-i\"\n1\n2\nnil\n", out)
    assert.matches(" a run ", out)
    assert.matches("\n  10  %%timeit 1\n  11  %%history 2\na b\tcd\ta b\tscript.lua\n$", out)
    assert.equal(("! ended with status 3\n%%reload: 'nothing' was not loaded\n%%run: %s/none.lua: No such file or "
      .. "directory\n%%run: a quote ' is not closed\n"):format(dir), errors)
  end)
end)
