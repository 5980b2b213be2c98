-- Event files: records with right checksums, messages that a reader of ours takes apart; and loggers.
-- (TensorBoard's own reader was tried by hand: scalars, histograms, images, text, graph.)
local moth = require "moth"
local ffi = require "ffi"
local bit = require "bit"
local crc = require "moth.tensorboard.crc32c"
local fails = require "fails"

local function temporary_folder()
  local path = os.tmpname()
  os.remove(path)
  finally(function() os.execute("rm -rf " .. path) end)
  return path
end

local function read(path)
  local f = assert(io.open(path, "rb"))
  local s = f:read("*a")
  f:close()
  return s
end

-- The fields of a message: lists of values by number; length-delimited ones as strings, fixed ones as raw bytes.
local function fields(s)
  local out, i = {}, 1
  local function varint()
    local n, m = 0, 1
    while true do
      local b = s:byte(i)
      i = i + 1
      n, m = n + b % 128 * m, m * 128
      if b < 128 then return n end
    end
  end
  while i <= #s do
    local key = varint()
    local field, wire = math.floor(key / 8), key % 8
    local value
    if wire == 0 then value = varint()
    else
      local n = wire == 2 and varint() or wire == 1 and 8 or 4
      value = s:sub(i, i + n - 1)
      assert.equal(n, #value)
      i = i + n
    end
    out[field] = out[field] or {}
    table.insert(out[field], value)
  end
  return out
end

local function as(ctype, s) return tonumber(ffi.cast("const " .. ctype .. " *", s)[0]) end

local function events(path)
  local s, i, list = read(path), 1, {}
  while i <= #s do
    local length = s:sub(i, i + 7)
    assert.equal(crc.masked(length), as("int32_t", s:sub(i + 8, i + 11)))
    local n = as("uint64_t", length)
    local data = s:sub(i + 12, i + 11 + n)
    assert.equal(crc.masked(data), as("int32_t", s:sub(i + 12 + n, i + 15 + n)))
    list[#list + 1] = fields(data)
    i = i + 16 + n
  end
  return list
end

describe("tensorboard #M495", function()
  it("knows CRC-32C", function()
    assert.equal("e3069283", bit.tohex(crc.crc("123456789")))
    assert.equal("00000000", bit.tohex(crc.crc("")))
    assert.equal("8a9136aa", bit.tohex(crc.crc(("\0"):rep(32)))) -- RFC 3720, B.4
  end)

  it("writes scalars, histograms, images, text and graphs", function()
    local w = moth.tensorboard.SummaryWriter(temporary_folder() .. "/a b")
    w:add_scalar("loss", 0.5, 3)
    w:add_scalar("loss", moth.tensor(0 / 0), 4)
    w:add_scalars("acc", { test = 0.25, train = 1 }, 5)
    w:add_histogram("w", moth.tensor { -1, 0, 2, 2, 0 / 0 }, 6)
    w:add_histogram("b", { 0, 1, 2, 3 }, 6, 2)
    w:add_image("i", moth.rand(3, 4, 5), 7)
    w:add_images("g", moth.rand(3, 1, 4, 4), 7, 2)
    w:add_text("t", "**hi**", 8)
    local net = moth.nn.Sequential(moth.nn.Linear(4, 3), moth.nn.ReLU(), moth.nn.Linear(3, 2))
    w:add_graph(net, moth.randn(2, 4))
    w:close()
    local list = events(w.path)
    assert.equal("brain.Event:2", list[1][3][1])
    assert.equal(9, #list)
    local run = io.popen("ls '" .. w.log_dir .. "/acc_test'"):read "*l"
    local inner = events(w.log_dir .. "/acc_test/" .. run)
    assert.equal("acc", fields(fields(inner[2][5][1])[1][1])[1][1]) -- a run for each key, of one tag
    local function value(i) return fields(fields(list[i][5][1])[1][1]) end
    assert.equal(3, list[2][2][1])
    assert.equal("loss", value(2)[1][1])
    assert.equal(0.5, as("float", value(2)[2][1]))
    local nan = as("float", value(3)[2][1])
    assert.is_true(nan ~= nan)
    local h = fields(value(4)[5][1])
    assert.same({ -1, 2, 4, 3, 9 }, { as("double", h[1][1]), as("double", h[2][1]), as("double", h[3][1]),
      as("double", h[4][1]), as("double", h[5][1]) })
    assert.equal(#h[6][1], #h[7][1])
    local sum = 0
    for k = 1, #h[7][1], 8 do sum = sum + as("double", h[7][1]:sub(k, k + 7)) end
    assert.equal(4, sum)
    h = fields(value(5)[5][1])
    assert.equal(16, #h[7][1])
    assert.equal(2, as("double", h[7][1]:sub(1, 8)))
    local image = fields(value(6)[4][1])
    assert.same({ 4, 5, 3 }, { image[1][1], image[2][1], image[3][1] })
    assert.equal("\137PNG", image[4][1]:sub(1, 4))
    assert.equal("t/text_summary", value(8)[1][1])
    local nodes = {}
    for i, n in ipairs(fields(list[9][4][1])[1]) do
      local f = fields(n)
      nodes[i] = f[1][1] .. "=" .. f[2][1] .. "(" .. table.concat(f[3] or {}, ",") .. ")"
    end
    assert.equal("linear_1=linear(relu,2/weight,2/bias)", nodes[#nodes])
    assert.equal("relu=relu(linear)", nodes[#nodes - 1])
  end)

  it("writes what plugins take", function()
    local w = moth.tensorboard.SummaryWriter(temporary_folder())
    local names = {}
    local function written(fn) -- the values of the summaries that fn writes
      local before = #events(w.path)
      fn()
      w:flush()
      local out, list = {}, events(w.path)
      for i = before + 1, #list do
        for _, v in ipairs(fields(list[i][5][1])[1]) do
          out[#out + 1] = fields(v)
          names[#names + 1] = out[#out][1][1]
        end
      end
      return out
    end
    w:flush()
    local film = fields(written(function() w:add_video("film", moth.rand(2, 3, 1, 4, 5)) end)[1][4][1])
    assert.same({ 4, 10, 1, "GIF89a" }, { film[1][1], film[2][1], film[3][1], film[4][1]:sub(1, 6) })
    local sound = fields(written(function() w:add_audio("sound", moth.tensor { 0, 2, -1 }, 1, 8000) end)[1][6][1])
    assert.same({ 8000, 3 }, { as("float", sound[1][1]), sound[3][1] })
    assert.equal("RIFF", sound[4][1]:sub(1, 4))
    assert.same({ 0, 32767, -32767 }, { as("int16_t", sound[4][1]:sub(45)), as("int16_t", sound[4][1]:sub(47)),
      as("int16_t", sound[4][1]:sub(49)) })
    local pr = fields(written(function()
      w:add_pr_curve("pr", moth.tensor { 0, 1, 1 }, moth.tensor { 0.2, 0.5, 1 }, 1, 3)
    end)[1][8][1])
    local floats = {}
    for k = 1, #pr[5][1], 4 do floats[#floats + 1] = as("float", pr[5][1]:sub(k, k + 3)) end
    assert.same({ 2, 2, 1, 1, 0, 0, 0, 1, 1, 0, 0, 1 }, { unpack(floats, 1, 12) }) -- tp, fp, tn, fn at 0, 0.5 and 1
    local mesh = written(function()
      w:add_mesh("m", moth.rand(1, 4, 3), nil, moth.ones({ 1, 2, 3 }, { dtype = moth.int32 }))
    end)
    assert.equal(2, #mesh)
    assert.equal(0, as("float", fields(mesh[2][8][1])[5][1])) -- positions count from 1 here
    written(function()
      w:add_custom_scalars { a = { b = { "Margin", { "v", "l", "u" } } } }
      w:add_tensor("t", moth.ones({ 2 }, { dtype = moth.int64 }))
      w:add_histogram_raw("h", 0, 1, 2, 1, 1, { 1 }, { 2 })
      w:add_hparams({ lr = 0.1, opt = "sgd", fast = true }, { acc = 1 }, nil, "hp")
      w:add_embedding(moth.rand(3, 2), { metadata = { "x", "y", "z" }, label_img = moth.rand(3, 1, 2, 2) })
      if pcall(require("ffi").load, "libcairo.so.2") then w:add_figure("f", moth.plot.lines { { { 1, 2 } } }) end
    end)
    assert.matches("film sound pr m_VERTEX m_FACE custom_scalars__config__ t h", table.concat(names, " "))
    assert.matches('tensor_path: "00000/default/tensors.tsv"', read(w.log_dir .. "/projector_config.pbtxt"))
    assert.equal("x\ny\nz\n", read(w.log_dir .. "/00000/default/metadata.tsv"))
    local hp = events(w.log_dir .. "/hp/" .. io.popen("ls '" .. w.log_dir .. "/hp'"):read "*l")
    assert.equal(5, #hp)
    assert.equal(w.log_dir, w:get_logdir())
    w:add_image("i", moth.rand(4, 5, 3), { dataformats = "HWC" })
    fails("dataformats 'HW' does not fit", function() w:add_image("i", moth.rand(4, 5, 3), { dataformats = "HW" }) end)
    fails("must be .N, T, C, H, W.", function() w:add_video("v", moth.rand(3, 4, 5)) end)
    fails("there are 3 points, 1 labels", function() w:add_embedding(moth.rand(3, 2), { "a" }) end)
    fails("labels must be 0 or 1", function() w:add_pr_curve("pr", moth.tensor { 0, 2 }, moth.tensor { 0.2, 0.5 }) end)
    fails("a color for each vertex", function() w:add_mesh("m", moth.rand(1, 4, 3), moth.rand(1, 3, 3)) end)
    fails("'lr' must be a number, a string or a boolean", function() w:add_hparams({ lr = {} }, {}) end)
    w:close()
  end)

  it("says what is wrong", function()
    local w = moth.tensorboard.SummaryWriter(temporary_folder())
    fails("'scalar_value': expected a tensor or a number, got the string 'b'", function() w:add_scalar("a", "b", 1) end)
    fails("'tag': expected a string, got 1", function() w:add_scalar(1, 2) end)
    fails("'global_step': expected an integer of at least 0, got 1.5", function() w:add_scalar("a", 1, 1.5) end)
    fails("has no finite value", function() w:add_histogram("a", moth.empty(0)) end)
    fails("expected an image", function() w:add_image("a", moth.ones(2)) end)
    fails("cannot make the folder", function() moth.tensorboard.SummaryWriter("/proc/no/such") end)
    w:close()
    fails("it is closed", function() w:add_scalar("a", 1) end)
  end)
end)

describe("loggers #M495", function()
  it("write JSON lines", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local log = moth.utils.JSONLLogger(path)
    log:log { step = 1, loss = moth.tensor(0.5), name = 'a"b' }
    log:log { step = 2, loss = 0 / 0 }
    log:close()
    local lines = {}
    for line in io.lines(path) do lines[#lines + 1] = require("cjson").decode(line) end
    assert.same({ { step = 1, loss = 0.5, name = 'a"b' }, { step = 2, loss = "nan" } },
      { lines[1], { step = 2, loss = (lines[2].loss:gsub("-", "")) } })
    fails("is closed", function() log:log { a = 1 } end)
    fails("expected a table", function() log:log(3) end)
  end)

  it("write CSV, and continue it", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local log = moth.utils.CSVLogger(path, { "step", "note" })
    log:log { step = 1, note = 'a, "b"' }
    log:close()
    log = moth.utils.CSVLogger(path)
    log:log { step = 2 }
    log:close()
    assert.equal('step,note\n1,"a, ""b"""\n2,\n', read(path))
    fails("has the columns step,note, not x", function() moth.utils.CSVLogger(path, { "x" }) end)
    log = moth.utils.CSVLogger(path)
    log:log { step = 3, note = 'of\ntwo "lines' }
    log:log { step = 4, ['a, "x"'] = 1, lr = 0.5 } -- new columns
    log:log { step = 5 }
    log:close()
    local rest = 'step,note,"a, ""x""",lr\n1,"a, ""b""",,\n2,,,\n3,"of\ntwo ""lines",,\n4,,1,0.5\n5,,,\n'
    assert.equal(rest, read(path))
    log = moth.utils.CSVLogger(path) -- reads that first line
    log:log { ['a, "x"'] = 2 }
    log:close()
    assert.equal(rest .. ",,2,\n", read(path))
    fails("No such file", function() moth.utils.CSVLogger("/nonexistent/a") end)
  end)

  it("CSV: a name may have two lines, a value is no table", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local log = moth.utils.CSVLogger(path)
    log:log { ["two\nlines"] = 1, x = 2 }
    log:close()
    log = moth.utils.CSVLogger(path)
    log:log { ["two\nlines"] = 3, x = 4 }
    fails("log: 'x' is a table; a value is", function() log:log { x = { 1 } } end)
    fails("log: 'x' is a function", function() log:log { x = print } end)
    log:close()
    assert.equal('"two\nlines",x\n1,2\n3,4\n', read(path))
  end)
end)
