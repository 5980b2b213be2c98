-- moth.save, moth.load, scopes and the memory policy.
local moth = require "moth"
local ffi = require "ffi"
local damage = require "io.damage"

local function temporary()
  local path = os.tmpname()
  finally(function() os.remove(path) end)
  return path
end

describe("save and load #quick", function()
  it("says the format of a file, and refuses a newer one by name", function()
    local B = require "moth_lua"
    local path = temporary()
    moth.save({ w = moth.ones(2) }, path)
    local _, metadata = moth.load_safetensors(path)
    assert.same({ "1", moth.version }, { metadata["moth.format"], metadata["moth.version"] })
    local function write(...)
      B.save_safetensors(path, { "w" }, { moth.ones(2) }, { { "moth.sha256", ("0"):rep(64) }, { "format", "moth" },
        { "moth.tree", metadata["moth.tree"] }, ... }, true)
    end
    write({ "moth.format", "2" }, { "moth.version", "7.1.0" })
    assert.error_matches(function() moth.load(path) end, "%[load%] /%S+ is of format 2, written by moth 7.1.0; this "
      .. "moth, " .. moth.version:gsub("%.", "%%.") .. ", reads format 1\nHINT: use that moth, or write the")
    write({ "moth.format", "x" })
    assert.error_matches(function() moth.load(path) end, "is of format x")
    -- Files from before there was a version number.
    write()
    assert.same({ 1, 1 }, moth.load(path).w:totable())
  end)

  it("brings back tensors of every dtype, nested tables and values", function()
    local path = temporary()
    local state = { list = { 1, 2.5, "x", true, false }, nested = { deep = { n = 0.1 } }, [10] = "ten", empty = {},
      big = 2 ^ 53, inf = math.huge, dtype = moth.bfloat16 }
    for _, d in ipairs({ "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64",
      "bool" }) do
      state[d] = moth.arange(6):reshape(2, 3):to(d)
    end
    state.view = moth.arange(6):reshape(2, 3):t()
    state.none = moth.zeros(0, 3)
    state.scalar = moth.tensor(3)
    state.leaf = moth.ones(2, { requires_grad = true })
    moth.save(state, path)
    local back = moth.load(path)
    assert.same(state.list, back.list)
    assert.equal(0.1, back.nested.deep.n)
    assert.equal("ten", back[10])
    assert.equal(math.huge, back.inf)
    assert.equal(moth.bfloat16, back.dtype)
    for k, v in pairs(state) do
      if moth.is_tensor(v) then
        assert.equal(v:dtype(), back[k]:dtype())
        assert.same(v:size(), back[k]:size())
        assert.is_true(v:equal(back[k]))
      end
    end
    assert.is_true(back.leaf:requires_grad())
  end)

  it("writes equal bytes for equal values, in every process", function()
    local build = os.getenv("MOTH_BUILD") or "build"
    local code = [[moth.save({ a = { 1, { b = moth.arange(3), c = "q" } }, d = {}, e = true, [7] = false }, "%s")]]
    local seen = {}
    for i = 1, 3 do
      local path = os.tmpname()
      assert.equal(0, os.execute(("%s/moth -e '%s'"):format(build, code:format(path))))
      local f = assert(io.open(path, "rb"))
      seen[i] = f:read("*a")
      f:close()
      os.remove(path)
    end
    assert.is_true(seen[1] == seen[2] and seen[2] == seen[3])
    local deep = {}
    for _ = 1, 400 do deep = { deep } end
    assert.error_matches(function() moth.save(deep, temporary()) end, "tables nest deeper than")
  end)

  it("refuses the names of other formats, and says who writes them", function()
    for ending, what in require "moth.each" { npz = "moth.save writes .npy", onnx = "moth.onnx.export",
      GGUF = "save_gguf", h5 = "moth does not write them", json = "moth.json.encode" } do
      local path = os.tmpname()
      os.remove(path)
      assert.error_matches(function() moth.save({ a = moth.ones(1) }, path .. "." .. ending) end,
        "%[save%] .*the name is that of another format: .*" .. what)
      assert.is_nil(io.open(path .. "." .. ending))
    end
  end)
  it("refuses what cannot be saved, by its path", function()
    for _, ending in ipairs { "", ".pt" } do
      assert.error_matches(function() moth.save(moth.nn.Linear(1, 1), "unused" .. ending) end,
        "save: a Linear cannot be saved; save its :state_dict%(%)")
    end
    local path = temporary()
    assert.error_matches(function() moth.save({ a = { f = print } }, path) end, "function at 'a%.f'")
    local loop = {}
    loop.me = loop
    assert.error_matches(function() moth.save(loop, path) end, "contains itself")
    assert.error_matches(function() moth.save({}, "/nonexistent/dir/file") end, "/nonexistent")
    assert.error_matches(function() moth.load("/nonexistent") end, "/nonexistent")
  end)

  it("refuses every truncation and every flipped bit of a small checkpoint", function()
    local path = temporary()
    -- Damage that a checksum of names and elements does not find: the shape of an empty tensor, a hexadecimal digit's
    -- case.
    moth.save({ w = moth.arange(4), none = moth.zeros(0, 3), ["a\31"] = moth.ones(1), n = 3 }, path)
    local f = assert(io.open(path, "rb"))
    local bytes = f:read("*a")
    f:close()
    damage.truncations(path, bytes, function(n)
      local ok, message = pcall(moth.load, path)
      if ok then error("accepted at " .. n .. " bytes") end
      assert(message:find(path, 1, true), message)
    end)
    local n = damage.flips(path, bytes, function(i, b)
      if pcall(moth.load, path) then error(("accepted with bit %d of byte %d flipped"):format(b, i)) end
    end)
    assert.equal(8 * #bytes, n)
    assert.equal(3, moth.load(path).n)
    f = assert(io.open(path, "ab"))
    f:write("x")
    f:close()
    assert.error_matches(function() moth.load(path) end, "follow the last tensor")
  end)

  it("keeps any plain table: names, bytes, numbers and integers of all kinds #M433", function()
    local path = temporary()
    local state = { [true] = "yes", [false] = "no", [-1] = "minus", [0.5] = "half", [2 ^ 53] = "large",
      ["a\0b"] = moth.ones(1), ["a"] = moth.ones(2), ["\255\254"] = moth.ones(3), __metadata__ = moth.ones(4),
      [""] = moth.ones(5), bytes = ("\0\1\128\255"):rep(3), text = "é \n\t\"", zero = -0.0,
      int64 = 2LL ^ 62 + 1, uint64 = 18446744073709551615ULL, least = -9223372036854775807LL - 1LL,
      tiny = 5e-324, inf = -math.huge, keys = { keys = moth.ones(6) }, list = { {}, { {} } } }
    local deep = {}
    local node = deep
    for _ = 1, 200 do
      node.x = {}
      node = node.x
    end
    node.x = "bottom"
    state.deep = deep
    moth.save(state, path)
    local back = moth.load(path)
    for k, v in pairs(state) do
      if moth.is_tensor(v) then
        assert.is_true(v:equal(back[k]), tostring(k))
      elseif type(v) ~= "table" then
        assert.equal(v, back[k])
      end
    end
    assert.equal(-math.huge, 1 / back.zero)
    assert.is_true(ffi.istype("int64_t", back.int64) and ffi.istype("uint64_t", back.uint64))
    assert.is_true(back.keys.keys:equal(moth.ones(6)))
    assert.same({ {}, { {} } }, back.list)
    node = back.deep
    for _ = 1, 200 do node = node.x end
    assert.equal("bottom", node.x)
    moth.save({ nan = 0 / 0 }, path)
    local nan = moth.load(path).nan
    assert.is_true(nan ~= nan)
  end)

  it("keeps a state dict whose entries are called like its methods, in order", function()
    local path = temporary()
    local m = moth.nn.Module()
    for _, name in ipairs { "values", "keys", "items", "len" } do
      m:register_parameter(name, moth.nn.Parameter(moth.ones(2)))
    end
    moth.save(m:state_dict(), path)
    local Ordered = require "moth.nn.ordered"
    assert.same({ "values", "keys", "items", "len" }, Ordered.keys(moth.load(path)))
  end)

  it("refuses modules and optimizers, saying what to save", function()
    local path = temporary()
    local m = moth.nn.Linear(2, 2)
    assert.error_matches(function() moth.save({ model = m }, path) end,
      "a Linear at 'model' cannot be saved; save its :state_dict%(%)")
    assert.error_matches(function() moth.save({ g = moth.Generator(1) }, path) end, "userdata at 'g'")
    local deep = {}
    for _ = 1, 400 do deep = { deep } end
    assert.error_matches(function() moth.save(deep, path) end, "nest deeper than 300")
  end)

  it("refuses a description that is sealed but makes no sense, and survives it", function()
    local B = require "moth_lua"
    local path = temporary()
    local function tree(text)
      B.save_safetensors(path, { "w" }, { moth.ones(2):long() }, { { "moth.sha256", ("0"):rep(64) },
        { "format", "moth" }, { "moth.tree", text } }, true)
      return pcall(moth.load, path)
    end
    assert.is_true(tree('{"k":"n","v":"1"}'))
    for _, text in ipairs { "", "[", "1", "null", '"x"', "[]", '{"k":"?"}', '{"k":"x","v":"none"}', '{"k":"x"}',
      '{"k":"x","v":{}}', '{"k":"t","h":[1]}', '{"k":"t","h":[["n","nan",{"k":"z"}]]}', '{"k":"t","h":[["s"]]}',
      '{"k":"t","a":1}', '{"k":"t","h":[["h",{},{"k":"z"}]]}', '{"k":"d","v":"float99"}', '{"k":"i","v":"x"}',
      '{"k":"i"}', '{"k":"h"}', '{"k":"x","v":"w","g":true}', '{"k":"sd","h":[["n","x",{"k":"b","v":true}]]}',
      ('{"k":"t","a":['):rep(2000) .. ("]}"):rep(2000) } do
      local ok, message = tree(text)
      assert.is_false(ok, text:sub(1, 60))
      assert.is_string(message)
    end
  end)

  it("says that there is no memory, wherever it ends, and goes on", function()
    local path = temporary()
    moth.save({ a = moth.ones(3), b = moth.ones(2000) }, path)
    for _, file in ipairs { path, "spec/io/fixtures/plain.pt", "spec/io/fixtures/deflated.npz",
      "spec/io/fixtures/fortran.npy", "spec/io/fixtures/hf.safetensors" } do
      local good, n = false, 0
      while not good do
        n = n + 1
        moth.memory.fail_at(n, true)
        local ok, message = pcall(moth.load, file)
        moth.memory.fail_at(0)
        good = ok
        assert.is_true(ok or message:find("out of memory", 1, true) ~= nil, message)
        assert.is_true(n < 500)
      end
      assert.is_true(n > 1)
    end
  end)

  it("writes plain safetensors for others, byte for byte what the format says", function()
    local path = temporary()
    moth.save_safetensors({ w = moth.tensor { 1, 2 } }, path, { format = "pt" })
    local f = assert(io.open(path, "rb"))
    local bytes = f:read("*a")
    f:close()
    local header = '{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    assert.equal(header, bytes:sub(9, 8 + #header))
    assert.is_true(moth.load(path).w:equal(moth.tensor { 1, 2 }))
    assert.same({ format = "pt" }, select(2, moth.load_safetensors(path)))
  end)

  it("puts tensors where map_location says", function()
    local path = temporary()
    moth.save({ w = moth.ones(2, { requires_grad = true }) }, path)
    local back = moth.load(path, { map_location = moth.device("cpu") })
    assert.is_true(back.w:requires_grad() and back.w:is_leaf())
    assert.error_matches(function() moth.load(path, { map = "cpu" }) end, "unknown option 'map'")
    if moth.cuda.is_available() then
      assert.equal("cuda", tostring(moth.load(path, { map_location = "cuda" }).w:device()))
    end
  end)

  it("keeps the old file when writing fails", function()
    local path = temporary()
    moth.save({ a = 1 }, path)
    assert.has_error(function() moth.save({ a = print }, path) end)
    assert.equal(1, moth.load(path).a)
  end)
end)

describe("a checkpoint of everything #M434", function()
  local nn, optim, data = moth.nn, moth.optim, moth.data

  -- A run with all that has a state: dropout by the default generator, a loader shuffled by its own, a schedule.
  local function run(o)
    moth.manual_seed(3)
    local x = moth.randn(50, 4, { generator = moth.Generator(1) })
    local ds = data.TensorDataset(x, x:matmul(moth.ones(4, 1)))
    local r = { model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)) }
    r.opt = optim[o.optim](r.model:parameters(), { lr = 0.01, weight_decay = 0.1 })
    r.sched = optim.lr_scheduler.StepLR(r.opt, { step_size = 7, gamma = 0.5 })
    r.loader = data.DataLoader(ds, { batch_size = 8, shuffle = true,
      generator = o.own and moth.Generator(9) or nil, collate_fn = o.collate })
    r.step, r.losses = 0, {}
    return r
  end
  local function go_on(r, steps)
    while steps > 0 do
      for x, y in r.loader:iter() do
        r.opt:zero_grad()
        local loss = nn.functional.mse_loss(r.model(x), y)
        loss:backward()
        r.opt:step()
        r.sched:step()
        r.step, steps = r.step + 1, steps - 1
        r.losses[r.step] = loss:item()
        if steps == 0 then break end
      end
    end
  end

  for _, o in ipairs { { optim = "SGD", own = true }, { optim = "Adam", own = false }, { optim = "AdamW", own = true },
    { optim = "AdamW", own = false, collate = function(samples) return data.default_collate(samples) end } } do
    local name = ("goes on to the bit within an epoch: %s, %s generator"):format(o.optim, o.own and "own" or "default")
    it(name, function()
      local path = temporary()
      local whole = run(o)
      go_on(whole, 10) -- an epoch has 7
      moth.save({ model = whole.model:state_dict(), opt = whole.opt:state_dict(), sched = whole.sched:state_dict(),
        loader = whole.loader:state_dict(), rng = moth.get_rng_state(), step = whole.step }, path)
      local unbroken = run(o)
      go_on(unbroken, 30)
      local again = run(o)
      moth.manual_seed(77)
      local c = moth.load(path)
      again.model:load_state_dict(c.model)
      again.opt:load_state_dict(c.opt)
      again.sched:load_state_dict(c.sched)
      again.loader:load_state_dict(c.loader)
      moth.set_rng_state(c.rng)
      again.step = c.step
      go_on(again, 20)
      for i = 1, 30 do
        local got = i <= 10 and whole.losses[i] or again.losses[i]
        assert.is_true(unbroken.losses[i] == got, ("step %d: %.17g, resumed %.17g"):format(i, unbroken.losses[i], got))
      end
      for key, t in unbroken.model:state_dict():items() do
        assert.is_true(t:equal(again.model:state_dict()[key]), key)
      end
    end)
  end

  it("knows when it does not fit", function()
    local r = run { optim = "SGD" }
    local sd = r.loader:state_dict()
    sd.size = 49
    assert.error_matches(function() r.loader:load_state_dict(sd) end, "its size is 49, that of the loader 50")
    assert.error_matches(function() r.loader:load_state_dict({}) end, "expected what state_dict gave")
    assert.error_matches(function() moth.set_rng_state({ -1, 0, 0, 0 }) end, "expected what get_state gave")
    assert.error_matches(function() moth.set_rng_state({ 0 / 0, 1e300, 0, 0 }) end, "expected what get_state gave")
  end)
end)

describe("scope", function()
  it("frees temporaries and keeps results and what is asked to stay", function()
    local before, inner
    collectgarbage()
    before = moth.memory.stats().live
    local kept
    local r = moth.scope(function(keep)
      local a = moth.randn(100000)
      kept = keep(moth.ones(3))
      inner = a
      return (a * 2):sum()
    end)
    assert.is_number(r:item())
    assert.same({ 1, 1, 1 }, kept:totable())
    assert.is_true(moth.memory.stats().live - before < 100000)
    assert.error_matches(function() return inner + 1 end, "released")
  end)

  it("nests, and frees when the function fails", function()
    local t
    assert.has_error(function()
      moth.scope(function()
        t = moth.ones(3)
        moth.scope(function() moth.ones(4) end)
        error("out", 0)
      end)
    end, "out")
    assert.has_error(function() return t + 1 end)
  end)
end)

describe("memory", function()
  it("of dropped temporaries stays near what explicit freeing needs", function()
    local n = 1024 * 1024 -- 4 MB
    local function loop(free)
      collectgarbage()
      collectgarbage()
      moth.memory.reset_peak()
      local base = moth.memory.stats().live
      for _ = 1, 3 do
        for _ = 1, 200 do
          local t = moth.empty(n)
          if free then t:free() end
        end
      end
      return moth.memory.stats().peak - base
    end
    local explicit = loop(true)
    local dropped = loop(false)
    assert.is_true(dropped <= 1.5 * explicit + 64 * 2 ^ 20 + 4 * n)
  end)

  it("is an error when there is none, and the process goes on", function()
    assert.error_matches(function() moth.empty(2 ^ 45) end, "out of memory")
    moth.memory.fail_at(1, true)
    local ok, message = pcall(moth.ones, 3)
    moth.memory.fail_at(0)
    assert.is_false(ok)
    assert.truthy(message:find("out of memory", 1, true))
    assert.same({ 1, 1, 1 }, moth.ones(3):totable())
  end)
end)

describe("scope and optimizers", function()
  it("lets a whole training step be a scope", function()
    for _, name in ipairs({ "SGD", "Adam", "AdamW" }) do
      local w = moth.randn(3, { requires_grad = true })
      local opt = moth.optim[name]({ w }, { lr = 0.1, momentum = name == "SGD" and 0.9 or nil })
      local first
      for _ = 1, 20 do
        local loss = moth.scope(function()
          opt:zero_grad()
          local l = (w * w):sum()
          l:backward()
          opt:step()
          return l
        end)
        first = first or loss:item()
      end
      assert.is_true((w * w):sum():item() < first)
    end
  end)
end)
