-- Tables as text, read in C: lines, cells, columns of numbers, batches.
local moth = require "moth"
local data = moth.data

local function file(text)
  local path = os.tmpname()
  finally(function() os.remove(path) end)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
  return path
end

-- The cells of a line as RFC 4180 has them, plainly; nil: damaged.
local function plain_cells(line, delimiter)
  local out, at = {}, 1
  repeat
    local cell
    if line:sub(at, at) == '"' then
      local from, to = at + 1, at + 1
      while true do
        to = line:find('"', to, true)
        if not to then return nil end
        if line:sub(to + 1, to + 1) ~= '"' then break end
        to = to + 2
      end
      cell, at = line:sub(from, to - 1):gsub('""', '"'), to + 1
      if at <= #line and line:sub(at, at) ~= delimiter then return nil end
    else
      local stop = line:find(delimiter, at, true) or #line + 1
      cell, at = line:sub(at, stop - 1), stop
    end
    out[#out + 1] = cell
    at = at + 1
  until at > #line + 1
  return out
end

describe("tables read in C #quick", function()
  it("numbers are the nearest doubles, as tonumber's", function()
    local texts = { "0", "-0", "1", "+5", ".5", "5.", "007", " 8 ", "1e5", "1E-3", "0x10", "1e400", "-1e400", "1e-400",
      "4.9e-324", "2.2250738585072011e-308", "1.7976931348623157e308", "9007199254740993", "0.1", "123456789012345678",
      "12345678901234567890123", "0.30000000000000004", "3." .. ("1"):rep(600), "inf", "8.5e-17" }
    math.randomseed(3)
    for _ = 1, 500 do texts[#texts + 1] = ("%.17g"):format((math.random() - 0.5) * 10 ^ math.random(-300, 300)) end
    local csv = data.CSV(file("x\n" .. table.concat(texts, "\n")))
    local got = csv:numbers({ dtype = moth.float64 })
    assert.same({ #texts, 1 }, got:size())
    for i, text in ipairs(texts) do
      assert.equal(tonumber(text), got[i][1]:item(), text)
      assert.equal(tonumber(text), csv:get(i).x, text)
    end
    assert.is_true(1 / got[2][1]:item() < 0)
  end)

  it("columns, parts of the rows, empty cells, CRLF, separators, quotes, BOM", function()
    local csv = data.CSV(
      file('\239\187\191"a";b;"c;\r\nd"\r\n1;2;x\r\n\r\n;"3";"y ""z"""\r\n5;6;\r\n'),
      { delimiter = ";" })
    assert.same({ "a", "b", "c;\r\nd" }, csv.columns)
    assert.same({ a = 1, b = 2, ["c;\r\nd"] = "x" }, csv:get(1))
    assert.same({ b = 3, ["c;\r\nd"] = 'y "z"' }, csv:get(2))
    assert.same({ a = 5, b = 6 }, csv:get(3))
    local t = csv:numbers { "b", "a" }
    assert.equal(moth.float32, t:dtype())
    assert.same({ 2, 3, 6 }, t:select(2, 1):totable())
    assert.same({ false, true, false }, t:select(2, 2):isnan():totable())
    assert.same({ { 5 } }, csv:numbers({ "a" }, { from = 3, count = 1 }):totable())
    assert.same({ 0, 2 }, csv:numbers({ "a", "b" }, { from = 4 }):size())
    assert.same({ 0, 1 }, csv:numbers({ "a" }, { from = 9, count = 0 }):size())
    local headless = data.CSV(file "\239\187\1911,2\n3,4", { header = false })
    assert.same({ { 1, 2 }, { 3, 4 } }, headless:numbers():totable())
    assert.same({ { 3 } }, headless:numbers({ 1 }, { from = 2 }):totable())
    assert.same({ 0, 1 }, data.CSV(file "a\n"):numbers():size())
  end)

  it("only a quote that begins a cell opens one", function()
    local csv = data.CSV(file 'what,size\n5" nail,1\n"6"" nail",2\nx "y\n z",3\n"a\nb",4\n', { header = true })
    assert.same({ what = '5" nail', size = 1 }, csv:get(1))
    assert.same({ what = '6" nail', size = 2 }, csv:get(2))
    assert.error_matches(function() csv:get(3) end, "sample 3 %(line 4 of the file%) has 1 cells")
    assert.same({ what = "a\nb", size = 4 }, csv:get(5))
    assert.equal(1, csv:numbers({ "size" }, { from = 2, count = 1 }):numel())
  end)

  it("errors say sample, line and column", function()
    local path = file "a,b\n1,2\n\n3,oops\n4\n5,6,7\n8,\"9\n"
    local csv = data.CSV(path)
    local function says(pattern, ...)
      local ok, err = pcall(csv.numbers, csv, ...)
      assert.is_false(ok)
      assert.matches(pattern, err)
      assert.is_truthy(err:find(path, 1, true))
    end
    says("sample 2 %(line 4 of the file%): column 'b' is no number: 'oops'")
    says("sample 3 %(line 5 of the file%) has 1 cells, there are 2 columns", { "a" })
    says("sample 4 %(line 6 of the file%) has 3 cells", { "a" }, { from = 4, count = 1 })
    says("sample 5 %(line 7 of the file%): a quote is not closed, in cell 2", { "a" }, { from = 5 })
    says("no column 'bb'; did you mean 'b'", { "bb" })
    says("'a' is asked for twice", { "a", "a" })
    says("2 samples from 5 on, there are 5", { "a" }, { from = 5, count = 2 })
    assert.error_matches(function() data.CSV(file "a,a\n1,2\n"):numbers { "a" } end, "two columns 'a'")
    for _, call in ipairs { function(c) c:get(1) end, function(c) c:read() end, function(c) c:chunks(1)() end } do
      assert.error_matches(function() call(data.CSV(file "a,b,a\n1,2,3\n")) end, "two columns 'a'")
    end
    assert.same({ { 2 } }, { data.CSV(file "a,b,a\n1,2,3\n", { features = { "b" } }):get(1):totable() })
    assert.same({ 2 }, data.CSV(file "a,b,a\n1,2,3\n"):read({ "b" }).b:totable())
    assert.same({ x = 1, y = 2, z = 3 }, data.CSV(file "a,b,a\n1,2,3\n", { columns = { "x", "y", "z" } }):get(1))
    assert.error_matches(function() data.CSV(file "a,b\n1,2\n", { columns = { "a" } }) end,
      "columns has 1 names, the first line has 2 cells")
    assert.same({ { 1, 2 } }, data.CSV(file "a,a\n1,2\n"):numbers():totable())
  end)

  it("types, missing values, columns, chunks", function()
    local path = file('zip,n,x,ok,name\n00501,12345678901234567,1.5,true,"a\nb"\n02134,7,NA,False,\n9,-3,-999,yes,NA\n')
    local csv = data.CSV(path, { types = { zip = "string", n = "int", x = "float", ok = "bool" },
      missing = { "NA", "-999" } })
    local first = csv:get(1)
    assert.is_true(first.n == 12345678901234567LL)
    assert.same({ "00501", 1.5, true, "a\nb" }, { first.zip, first.x, first.ok, first.name })
    assert.same({ zip = "9", n = -3, ok = true }, csv:get(3))
    local t = csv:read()
    assert.same({ { "00501", "02134", "9" }, { "a\nb", false, false }, { true, false, true } },
      { t.zip, t.name, t.ok:tolist() })
    assert.is_true(t.n:equal(moth.tensor({ 12345678901234567LL, 7LL, -3LL }, { dtype = moth.int64 })))
    assert.same({ moth.float64, { false, true, true } }, { t.x:dtype(), t.x:isnan():tolist() })
    assert.same({ { 7 } }, csv:numbers({ "n" }, { from = 2, count = 1 }):tolist())
    assert.is_true(csv:numbers({ "x" }):isnan():tolist()[3][1])
    local seen = {}
    for chunk, from in csv:chunks(2, { "n" }) do seen[#seen + 1] = { from, chunk.n:size(1), chunk.zip } end
    assert.same({ { 1, 2 }, { 3, 1 } }, seen)
    local x, y = data.CSV(path, { features = { "x" }, target = "zip", types = { zip = "string" }, missing = { "NA" } })
      :get_batch(moth.tensor({ 3, 2 }, { dtype = moth.int64 }))
    assert.same({ -999, { "9", "02134" } }, { x[1][1]:item(), y })
    assert.is_true(x[2][1]:isnan():item())
    -- Without types, columns are what their cells are.
    local plain = data.CSV(file "i,f,s,b\n1,1,a,\n2,2.5,7,\n"):read()
    assert.same({ moth.int64, moth.float64, { "a", "7" }, moth.float64 },
      { plain.i:dtype(), plain.f:dtype(), plain.s, plain.b:dtype() })
    assert.same({ moth.float64, { 1, 3 } }, (function()
      local c = data.CSV(file "i,j\n1,0\n,0\n3,0\n"):read { "i" }
      return { c.i:dtype(), { c.i[1]:item(), c.i[3]:item() } }
    end)())
    local function fails(words, o, call)
      local other = file "a,b\n1,2\n\n3,oops\n4,\n5,9223372036854775808\n6\n"
      assert.error_matches(function() call(data.CSV(other, o)) end, words)
    end
    local function at(i) return function(c) c:get(i) end end
    fails("sample 2 %(line 4 of the file%): column 'b' is no int: 'oops'", { types = { b = "int" } }, at(2))
    fails("sample 2 %(line 4 of the file%): column 'b' is no float: 'oops'", { types = { b = "float" } },
      function(c) c:read() end)
    fails("sample 4 %(line 6 of the file%): column 'b' is no int", { types = { b = "int" } }, at(4))
    fails("sample 5 %(line 7 of the file%) has 1 cells, there are 2 columns", { types = { b = "int" } }, at(5))
    fails("sample 2 %(line 4 of the file%): column 'b' has no value\nHINT: types = { b = \"float\" }",
      { types = { b = "int" }, missing = { "oops" } }, function(c) c:read({ "b" }, { count = 3 }) end)
    fails("column 'b' is no number: '2'", { types = { b = "string" } }, function(c) c:numbers { "b" } end)
    fails("is no bool: '2'", { types = { b = "bool" } }, at(1))
    fails("no column 'bb'; did you mean 'b'", { types = { bb = "int" } }, at(1))
    fails("expected auto, bool, float, int, string, got 'integer'", { types = { b = "integer" } }, at(1))
    fails("read: 9 samples from 2 on, there are 5", nil, function(c) c:read { from = 2, count = 9 } end)
    fails("has no column 'c'", nil, function(c) c:read { "c" } end)
    -- Columns that are not asked for are not converted; Lua's binary numbers are text.
    local some = data.CSV(file "a,b\n1,oops\n2,0b11\n", { types = { b = "int" } })
    assert.equal(3, some:read({ "a" }).a:sum():item())
    assert.equal(3, some:numbers({ "a" }):sum():item())
    assert.same({ "oops", "0b11" }, data.CSV(file "b\noops\n0b11\n"):read().b)
  end)

  it("batches are what get and default_collate make", function()
    local function same(text, o, positions)
      local csv = data.CSV(file(text), o)
      local samples = {}
      for k, i in ipairs(positions) do samples[k] = { n = o.target and 2 or 1, csv:get(i) } end
      local x, y = data.default_collate(samples)
      for _ = 1, 2 do -- the second time, what the first has learnt
        local bx, by = csv:get_batch(moth.tensor(positions, { dtype = moth.int64 }))
        if o.transform then
          assert.same(x, bx)
        else
          assert.equal(x:dtype(), bx:dtype())
          assert.same(x:isnan():totable(), bx:isnan():totable())
          assert.is_true(moth.equal(moth.nan_to_num(x), moth.nan_to_num(bx)))
        end
        if moth.is_tensor(y) then
          assert.equal(y:dtype(), by:dtype())
          assert.is_true(moth.equal(y, by))
        else
          assert.same(y, by)
        end
      end
    end
    local text = "a,b,c,kind\n1,2.5,3,cat\n4,,6,dog\n7,8,9.5,cow\n"
    same(text, { features = { "b", "a" } }, { 3, 1, 1 })
    same(text, { features = { "b", "a" }, target = "a" }, { 2, 3 })
    same(text, { features = { "a" }, target = "c" }, { 1, 2 })
    same(text, { features = { "a" }, target = "c" }, { 1, 3 })
    same(text, { features = { "a", "a" }, target = "c" }, { 1, 3 })
    same(text, { features = { "a" }, target = "kind" }, { 3, 2 })
    same(text, { transform = function(s) return s.kind end }, { 3, 2 })
    local csv = data.CSV(file(text), { features = { "a", "kind" } })
    assert.error_matches(function() csv:get_batch(moth.tensor({ 1 }, { dtype = moth.int64 })) end,
      "sample 1: column 'kind' is no number: 'cat'")
    local Twice = data.CSV:subclass "Twice"
    function Twice:get(i) return data.CSV.get(self, i) * 2 end
    local twice = Twice(file(text), { features = { "a" } })
    assert.same({ { 8 } }, twice:get_batch(moth.tensor({ 2 }, { dtype = moth.int64 })):totable())
    for workers = 0, 2, 2 do
      local seen = {}
      local loader = data.DataLoader(data.CSV(file(text), { features = { "a", "c" }, target = "a" }),
        { batch_size = 2, num_workers = workers })
      for x, y in loader:iter() do seen[#seen + 1] = { x:totable(), y:totable() } end
      assert.same({ { { { 1, 3 }, { 4, 6 } }, { 1, 4 } }, { { { 7, 9.5 } }, { 7 } } }, seen)
    end
  end)

  it("cells are those of a plain reader, of any text", function()
    math.randomseed(7)
    local pieces = { '"', '""', ",", ";", "a", "1", "-2.5", " ", "\r", "\t", "\255", "\0", "e", ".", "" }
    local B = require "moth_lua"
    for _ = 1, 4000 do
      local parts = {}
      for k = 1, math.random(0, 12) do parts[k] = pieces[math.random(#pieces)] end
      local line = table.concat(parts)
      local expected, got = plain_cells(line, ","), B.media.csv_cells(line, 44, true)
      assert.same(expected, got, ("%q"):format(line))
      local values, n = B.media.csv_cells(line, 44, false)
      for k = 1, expected and #expected or 0 do
        local want = expected[k] ~= "" and (tonumber(expected[k]) or expected[k]) or nil
        if want == want then assert.equal(want, values[k], ("%q"):format(line)) end
      end
      assert.equal(expected and #expected, n)
      local ok, csv = pcall(data.CSV, file(line .. "\n" .. line), { header = false }) -- an error, or numbers
      if ok then pcall(csv.numbers, csv) end
    end
  end)
end)
