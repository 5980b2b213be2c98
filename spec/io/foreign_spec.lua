-- Files of others: .npy, .npz, PyTorch's .pt, safetensors. The fixtures were written by NumPy and PyTorch
-- (fixtures.py); damaged and hostile ones are refused with the reason, and nothing in them runs.
local moth = require "moth"
local ffi = require "ffi"
local damage = require "io.damage"

local DIR = "spec/io/fixtures/"

local function load(name, o) return moth.load(DIR .. name, o) end

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

--- A function that writes a text (if given) to a temporary file, always the same one, and returns its path.
local function writer()
  local path = os.tmpname()
  finally(function() os.remove(path) end)
  return function(text)
    if not text then return path end
    local f = assert(io.open(path, "wb"))
    f:write(text)
    f:close()
    return path
  end
end

local function same(a, b, seen)
  seen = seen or {}
  if moth.is_tensor(a) then
    return moth.is_tensor(b) and a:dtype() == b:dtype() and tostring(a:size()) == tostring(b:size()) and a:equal(b)
  end
  if type(a) ~= "table" or type(b) ~= "table" then return a == b or (a ~= a and b ~= b) end
  for k, v in pairs(a) do
    if not same(v, b[k], seen) then return false end
  end
  for k in pairs(b) do
    if a[k] == nil then return false end
  end
  return true
end

local counting = moth.arange(6):reshape(2, 3)
local names = { f2 = "float16", f4 = "float32", f8 = "float64", i1 = "int8", i2 = "int16", i4 = "int32", i8 = "int64",
  u1 = "uint8" }

describe("npy", function()
  it("gives the arrays of NumPy: every dtype, both byte orders, column-major, all versions", function()
    for kind, name in pairs(names) do
      local t = load(kind .. ".npy")
      assert.equal(moth[name], t:dtype())
      assert.is_true(t:equal(counting:to(moth[name])), kind)
    end
    assert.is_true(load("b1.npy"):equal(counting:remainder(2):eq(1)))
    assert.is_true(load("big_f4.npy"):equal(counting:float()))
    assert.is_true(load("big_i8.npy"):equal(counting))
    local f = load("fortran.npy")
    assert.is_true(f:equal(counting:float()) and f:is_contiguous())
    assert.is_true(load("fortran3.npy"):equal(moth.arange(24):reshape(2, 3, 4):to(moth.int16)))
    assert.equal(0, load("scalar.npy"):dim())
    assert.equal(2.5, load("scalar.npy"):item())
    assert.equal("[0, 3]", tostring(load("empty.npy"):size()))
    for v = 2, 3 do assert.same({ 0, 1, 2 }, load("version" .. v .. ".npy"):totable()) end
  end)

  it("refuses what a tensor cannot hold, with the reason", function()
    for name, why in pairs({ object = "are Python objects", record = "are records", text = "are text",
      bytes = "are text", time = "are dates" }) do
      assert.error_matches(function() load(name .. ".npy") end, name .. "%.npy: npy: the elements.*" .. why)
    end
  end)

  it("of unsigned integers is read as such", function()
    assert.equal(moth.uint32, load("u4.npy"):dtype())
    assert.same({ 0, 0 }, load("u4.npy"):tolist())
  end)

  it("is written, and read again", function()
    local temporary = os.tmpname()
    local path = temporary .. ".npy"
    finally(function()
      os.remove(temporary)
      os.remove(path)
    end)
    for _, t in ipairs { moth.randn(3, 4):t(), moth.zeros(0, 2), moth.tensor(3), counting:gt(2), moth.randn(5):half(),
      moth.arange(3) } do
      moth.save(t, path)
      assert.is_true(same(t, moth.load(path)))
    end
    moth.save(moth.zeros(7, 3), path)
    local text = read(path)
    assert.equal("\147NUMPY\1\0", text:sub(1, 8))
    assert.equal(0, (#text - 84) % 64)
    assert.error_matches(function() moth.save({ 1 }, path) end, "one tensor")
    assert.error_matches(function() moth.save(moth.zeros(2):bfloat16(), path) end, "bfloat16")
  end)

  it("is refused at every truncation, and with a byte too many", function()
    local write = writer()
    for _, name in ipairs { "f8", "fortran3", "version2", "scalar" } do
      local text = read(DIR .. name .. ".npy")
      damage.truncations(write(text), text, function(n)
        if pcall(moth.load, write()) then error(("%s: accepted at %d bytes"):format(name, n)) end
      end)
      assert.error_matches(function() moth.load(write(text .. "x")) end, "follow the array")
    end
  end)

  it("refuses hostile headers", function()
    local write = writer()
    local function npy(header, data)
      return write("\147NUMPY\1\0" .. string.char(#header % 256, math.floor(#header / 256)) .. header .. (data or ""))
    end
    local function refused(header, why)
      assert.error_matches(function() moth.load(npy(header)) end, why)
    end
    refused("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}", "too large")
    refused("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "too large")
    refused("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", "truncated")
    refused("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4611686018427387904, 4)}", "more bytes than")
    refused("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "expected a size")
    refused("{'descr': '<f4', 'fortran_order': False, 'shape': (" .. ("1,"):rep(17) .. ")}", "16 dimensions")
    refused("{'descr': '<f4', 'fortran_order': False, 'shape': (1)", "damaged")
    refused("{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': ()}", "expected a string")
    refused("{'descr': '<f4', 'shape': (1,)}", "missing")
    refused("{'descr': '<f4', 'descr': '<f4'}", "twice")
    refused("{'descr': '<f3', 'fortran_order': False, 'shape': ()}", "none that moth has")
    refused("", "dictionary")
    assert.error_matches(function() moth.load(write("\147NUMPY\4\0\0\0\0\0")) end, "version 4.0")
    assert.error_matches(function() moth.load(write("\147NUMPY\2\0\255\255\255\255")) end, "too large")
  end)
end)

describe("npz", function()
  it("gives the arrays by name, stored or deflated", function()
    local t = load("stored.npz")
    assert.is_true(t.w:equal(counting:float()) and t.b:equal(moth.eye(2, { dtype = moth.float64 })))
    assert.equal(3, t.n:item())
    t = load("deflated.npz")
    assert.is_true(t.w:equal(counting:float()) and t.zeros:eq(0):all():item() and t.zeros:numel() == 1000)
    t = load("zip64.npz")
    assert.is_true(t.w:equal(counting:float()) and t.n:item() == 2.5)
    assert.is_true(moth.interop.load_npz(DIR .. "stored.npz").w:equal(counting:float()))
    assert.error_matches(function() moth.interop.load_npz(DIR .. "tensor.pt") end, "another kind: pth")
    assert.error_matches(function() moth.interop.load_npy(DIR .. "stored.npz") end, "another kind: npz")
  end)

  it("refuses archives that reach out, are bombs, or are something else", function()
    assert.error_matches(function() load("names.zip") end, "leads out of the archive")
    assert.error_matches(function() load("absolute.zip") end, "is absolute")
    assert.error_matches(function() load("link.zip") end, "a link or a device")
    assert.error_matches(function() load("other.zip") end, '"readme.txt" is no array')
    assert.error_matches(function() load("bomb.zip", { max_expanded = 1e6 }) end,
      "expand to more than the allowed 1000000 bytes")
    assert.error_matches(function() load("bomb.zip") end, "not a %.npy file") -- its 2 MB are allowed
  end)
end)

describe("PyTorch's files #M197", function()
  local function check_plain(t)
    for name, value in pairs(t.every) do
      local expected = name == "bool" and counting:remainder(2):eq(1) or counting:to(moth[name])
      assert.equal(moth[name], value:dtype())
      assert.is_true(value:equal(expected), name)
    end
    local x = counting:float()
    assert.is_true(t.x:equal(x) and t.t:equal(x:t()) and t.row:equal(x[2]))
    assert.is_true(t.step:equal(x:flatten()[{ { 1, -1, 2 } }]) and t.expanded:equal(x[1]:expand(4, 3)))
    assert.same({ 1, 3 }, { unpack(t.t:stride()) })
    assert.same({ 0, 1 }, { unpack(t.expanded:stride()) })
    for _, name in ipairs { "t", "row", "step", "expanded" } do assert.is_true(t.x:shares_storage(t[name]), name) end
    t.row:fill_(9)
    assert.equal(9, t.x[{ 2, 1 }]:item())
    t.row:copy_(moth.tensor { 3, 4, 5 })
    assert.equal(2.5, t.scalar:item())
    assert.equal("[0, 3]", tostring(t.empty:size()))
    assert.equal("[0, 3]", tostring(t.empty_view:size()))
    assert.is_true(t.parameter:requires_grad() and t.parameter:is_leaf())
    assert.is_false(t.x:requires_grad())
    local l = t.list
    assert.same({ 1, -300, 70000, 2 ^ 40, -2 ^ 40 }, { unpack(l, 1, 5) })
    assert.is_true(ffi.istype("int64_t", l[6]) and l[6] == 2LL ^ 60)
    assert.is_true(l[7] == true and l[8] == false and l[9] == nil and l.n == 11)
    assert.equal("text é", l[10])
    assert.equal(0.1, l[11])
    assert.same({ 1, { 2, { 3 } } }, t.tuple)
    assert.same({ 2, 3 }, t.size)
    assert.equal(moth.float16, t.dtype)
    assert.equal("cpu", t.device)
    assert.equal("yes", t.keys[1]) -- True is 1 in Python
    assert.is_true(t.keys.two == 2 and t.keys[2.5] == "half")
    assert.same({ "z", "a", "m" }, t.ordered:keys())
  end

  it("are read: every dtype, views of one storage, plain values", function()
    check_plain(load("plain.pt"))
    local unsigned = load("unsigned.pt")
    for _, name in ipairs({ "uint16", "uint32", "uint64" }) do
      assert.equal(moth[name], unsigned[name]:dtype())
      assert.same({ { 0, 1 }, { 40000, 65535 } }, unsigned[name]:tolist())
    end
    assert.equal("18446744073709551615ULL", tostring(unsigned.top:item()))
    assert.is_true(unsigned.row:shares_storage(unsigned.uint16))
    check_plain(moth.interop.load_pth(DIR .. "plain.pt"))
    check_plain(load("deflated.pt"))
    assert.is_true(load("tensor.pt"):equal(counting:float())) -- protocol 4
  end)

  it("are read: floats of 8 bits as bfloat16, which holds them exactly", function()
    local t = load("small.pt")
    for _, name in ipairs { "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu" } do
      assert.equal(moth.bfloat16, t[name]:dtype())
      local want = t[name .. " as float"]
      assert.is_true(moth.allclose(t[name]:float(), want, { rtol = 0, atol = 0, equal_nan = true }), name)
      assert.is_true(t[name .. " row"]:shares_storage(t[name]))
      assert.is_true(t[name .. " row"]:equal(t[name][4]))
    end
  end)

  it("are read: sparse tensors, there and back; tensors with attributes of Python", function()
    local function check(t)
      assert.same({ { 0, 4, 0, 0 }, { 0, 0, 0, 0 }, { 0, 0, 0, 2 } }, t.coo:to_dense():totable())
      assert.same({ 3, 2 }, { t.coo:nnz(), t.sorted:nnz() })
      assert.same({ false, true }, { t.coo:is_coalesced(), t.sorted:is_coalesced() })
      assert.is_true(moth.equal(t.csr:to_dense(), t.coo:to_dense()))
      assert.equal("sparse_csr", t.csr:layout())
      assert.equal(1, t.hybrid:dense_dim())
      assert.same({ 4, 0, 4 }, t.hybrid:to_dense():sum(2):totable())
    end
    local t = load("sparse.pt")
    check(t)
    local path = os.tmpname() .. ".pt"
    finally(function() os.remove(path) end)
    t.grad = moth.eye(2):to_sparse():requires_grad_()
    t.none = moth.zeros(2, 3):to_sparse()
    t.unsigned = moth.tensor({ 1, 65535 }, { dtype = moth.uint16 })
    t.part = t.unsigned[2]
    moth.save(t, path)
    local back = moth.load(path)
    check(back)
    assert.is_true(moth.equal(back.grad:to_dense(), moth.eye(2)))
    assert.same({ 2, 3 }, back.none:size())
    assert.is_true(back.part:equal(t.part) and back.part:shares_storage(back.unsigned))
    local tagged = load("attributes.pt")
    assert.same({ true, false, false }, { tagged.parameter:requires_grad(), tagged.tensor:requires_grad(),
      tagged.buffer:requires_grad() })
    assert.same({ 2, 3, 4 }, { tagged.parameter:numel(), tagged.tensor:numel(), tagged.buffer:numel() })
    assert.error_matches(function() load("sparse_csc.pt") end, "the layout torch.sparse_csc, which moth does not have")
    assert.error_matches(function() load("conj.pt") end, "conjugate or negative.*resolve_conj")
    for _, loader in ipairs { moth.load, moth.interop.load_pth } do
      assert.error_matches(function() loader(DIR .. "program.pt2") end, "a program of torch.export.*program.state_dict")
    end
  end)

  it("go into a model of the same names #M190", function()
    local c = load("checkpoint.pt")
    assert.equal(3, c.epoch)
    local model = moth.nn.Sequential(moth.nn.Linear(3, 4), moth.nn.BatchNorm1d(4))
    local missing, unexpected, mismatched = model:load_state_dict(c.model)
    assert.same({ {}, {}, {} }, { missing, unexpected, mismatched })
    assert.is_true(model[1].weight:equal(c.model["0.weight"]))
    assert.equal("0.weight", c.model:keys()[1])
    assert.is_number(c.optimizer.param_groups[1].lr)
    assert.equal("[4, 3]", tostring(c.optimizer.state[0].exp_avg:size()))
  end)

  it("keep sharing on a device, too", function()
    local t = load("plain.pt", { map_location = "cpu" })
    assert.is_true(t.x:shares_storage(t.row))
    assert.error_matches(function() load("plain.pt", { map_location = "mars" }) end, "mars")
  end)

  local refusals = { -- file, the reason; none of them may run or end the process
    system = "posix%.system.*nothing was run", eval4 = "builtins%.eval", hidden = "__builtin__%.exec",
    torch_load = "torch%.hub%.load", instance = "collections%.deque", set = "a set; save a list",
    numpy = "numpy%..*a NumPy value", huge_integer = "more than 64 bits", cycle = "contains itself",
    deep = "nest deeper than 100", protocol0 = "protocol 2 to 5", long4 = "more than 64 bits",
    string = "longer than the data", memo = "out of order", inst = "operation 0x53", newobj = "operation 0x81",
    stack = "nothing on the stack|no mark", rest = "something follows the end",
    reach_offset = "beyond the 4 elements",
    reach_stride = "beyond the 4", reach_negative = "beyond the 4", big_endian = "not little%-endian",
    missing = "storage 0 are missing", short = "storage 0 has 20 bytes, but its elements need 24",
    script = "TorchScript program", legacy = "old format.*torch%.save%(torch%.load",
  }
  for name, why in pairs(refusals) do
    it("are refused: " .. name, function()
      local ok, message = pcall(load, name .. ".pt")
      assert.is_false(ok)
      local found = false
      for part in (why .. "|"):gmatch("(.-)|") do found = found or message:find(part) end
      assert.is_truthy(found, message)
      assert.is_truthy(message:find(name .. ".pt", 1, true), message)
      assert.is_nil(io.open("moth_was_here"))
    end)
  end

  it("share tables that are held twice: a bomb of 2^40 values is forty tables", function()
    local t, n = load("bomb.pt"), 0
    while type(t) == "table" and t[2] do
      assert.is_true(rawequal(t[1], t[2]))
      t, n = t[1], n + 1
    end
    assert.equal(40, n)
  end)

  -- Copying each text where it is meant would take hours here.
  it("hold long texts that are meant many times once, and take no more memory than they may", function()
    local t = load("strings.pt")
    assert.is_true(#t == 400000 and #t[400000] == 2 ^ 20)
    assert.error_matches(function() load("keys.pt") end, "something else than a storage")
    assert.error_matches(function() load("values.pt") end, "needs more memory than moth gives it")
  end)

  it("and plain pickles, tar and gzip files are told from each other", function()
    local write = writer()
    for text, why in pairs { ["\128\2}q\0."] = "a Python pickle, which is a program",
      [("x"):rep(257) .. "ustar" .. ("\0"):rep(250)] = "tar archive", ["\31\139\8\0"] = "gzip",
      ["GGUF\3\0\0\0"] = "moth.gguf.load reads", ["\8\8\18\4moth"] = "ONNX model.*HINT: moth.onnx.load",
      ["\27LJ\2"] = "none of the formats", [""] = "an empty file", ["PAR1\21\4"] = "Parquet.*CSV",
      ["\137HDF\r\n\26\n"] = "HDF5.*moth.data.HDF5", ["\255\216\255\224"] = "JPEG image.*moth.data.read_image",
      ["\137PNG\r\n\26\n"] = "PNG image.*moth.data.read_image", ["GIF89a"] = "GIF image.*convert it",
      ['{"a":1}\n{"a":2}\n'] = "JSON, a value in each line.*moth.data.JSONL", ['[1, 2]'] = "this is JSON;",
      ["\0\0\8\1\0\0\0\2"] = "IDX file.*moth.datasets.IDX", ["hello\n"] = "this is text;.*moth.data.TextLines",
      ["version https://git-lfs.github.com/spec/v1\noid sha256:1\n"] = "pointer of Git LFS.*git lfs pull",
      ["<!DOCTYPE html>\n<html>404</html>"] = "a web page", ["%PDF-1.4"] = "PDF", ["(\181/\253"] = "zstd.*unpack" } do
      assert.error_matches(function() moth.load(write(text)) end, why)
      assert.error_matches(function() moth.export.load(write(text)) end, why)
    end
    -- Of text the end of the name tells more.
    local base = os.tmpname()
    for ending, why in pairs { csv = "moth.data.CSV%(path%)", ["csv.gz"] = "this is text",
      tsv = 'delimiter = "\\t"', jsonl = "moth.data.JSONL", json = "moth.json.decode", t7 = "Torch7" } do
      local f = assert(io.open(base .. "." .. ending, "w"))
      f:write "a,b\n1,2\n"
      f:close()
      local ok, e = pcall(moth.load, base .. "." .. ending)
      os.remove(base .. "." .. ending)
      assert.is_false(ok)
      assert.matches(why, e)
    end
    os.remove(base)
    local file = write ""
    moth.export.save(moth.export(moth.relu, { moth.ones(2) }), file)
    assert.error_matches(function() moth.load(file) end, "a program of moth.export.save\nHINT: moth.export.load")
    moth.edge.export(moth.export(moth.relu, { moth.ones(2) }), file)
    assert.error_matches(function() moth.export.load(file) end, "a file of moth.edge.export")
  end)

  it("are refused at every truncation; a flipped bit is refused or changes nothing", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    for _, name in ipairs { "tensor.pt", "deflated.npz", "stored.npz", "zip64.npz" } do
      local text, good, passed = read(DIR .. name), load(name), 0
      damage.truncations(path, text, function(n)
        if pcall(moth.load, path) then error(("%s: accepted at %d bytes"):format(name, n)) end
      end)
      local all = damage.flips(path, text, function(i, b)
        local ok, value = pcall(moth.load, path)
        if ok and not same(good, value) then error(("%s: byte %d, bit %d gives another value"):format(name, i, b)) end
        if ok then passed = passed + 1 end
      end)
      assert.is_true(passed < all) -- dates, padding and the like may change
    end
  end)
end)

describe("safetensors of others", function()
  it("are read: bfloat16, metadata of all kinds, bools that are neither 0 nor 1", function()
    local t = load("hf.safetensors")
    assert.same({ { 1, 2 }, { 3, 4 } }, t["model.embed.weight"]:totable())
    assert.equal(moth.bfloat16, t["model.embed.weight"]:dtype())
    local mask = t["model.mask"]
    assert.equal(2, mask:sum():item())
    assert.equal(2, moth.arange(3)[mask]:numel())
    local _, metadata = moth.load_safetensors(DIR .. "hf.safetensors")
    assert.equal("pt", metadata.format)
  end)

  it("of small floats are numbers of bfloat16", function()
    assert.same({ 0, 0 }, load("f8.safetensors").w:totable())
    assert.equal(moth.bfloat16, load("f8.safetensors").w:dtype())
  end)
end)
