-- Files of other versions of moth, by the rule of docs/export.md: a format number that this moth does not write is
-- refused, older or newer; of one that it does, what every op of the file still means is read, whichever moth wrote it.
local moth = require "moth"
local B = require "moth_lua"

describe("files of other versions #quick #M416", function()
  local path = os.tmpname()
  teardown(function() os.remove(path) end)

  -- Writes a file again with other metadata: a table, or function(metadata).
  local function rewritten(change)
    local names, tensors, metadata = B.load_safetensors(path)
    for i, t in ipairs(tensors) do tensors[i] = t:clone() end
    change(metadata)
    local list = { { "moth.sha256", ("0"):rep(64) } }
    for key, value in require("moth.each")(metadata) do
      if key ~= "moth.sha256" then list[#list + 1] = { key, value } end
    end
    B.save_safetensors(path, names, tensors, list, true)
  end

  -- What comes of a file that save has written and change has made another version's: loaded, or why not.
  local function of(save, load, change)
    save()
    rewritten(change)
    local ok, result = pcall(load, path)
    return ok and "read" or tostring(result), ok and result
  end
  local function refused(said, ...)
    for _, pattern in ipairs { ... } do assert.matches(pattern, said) end
  end

  local x = moth.tensor { { 1, -2 }, { 3, -4 } }
  local function program() return moth.export(function(v) return (v + 1):relu() end, { x }) end

  it("programs: .mth2", function()
    local function try(change) return of(function() moth.export.save(program(), path) end, moth.export.load, change) end
    local said, ep = try(function(m) m.moth = "0.0.1" end) -- of an older moth, whose ops were the same
    assert.equal("read", said)
    assert.is_true(moth.equal((x + 1):relu(), ep(x)))
    assert.equal("read", (try(function(m) m.note, m.graph = "new", m.graph:gsub("^{", '{"later":{"a":[1]},') end)))
    refused(try(function(m) m.format, m.moth = "moth.export 0", "0.0.1" end),
      "its format is 'moth.export 0', written by moth 0.0.1; this moth, %S+, reads 'moth.export 1' and")
    refused(try(function(m) m.format = "moth.export 4" end), "its format is 'moth.export 4'", "and 'moth.export 3'")
    refused(try(function(m) m.format = "moth.export 1.5" end), "its format is 'moth.export 1.5'")
    refused(try(function(m) m.graph, m.moth = m.graph:gsub('"relu"', '"relu_of_old"'), "0.0.1" end),
      "it calls the op 'relu_of_old', which this moth, %S+, does not have", "it was written by moth 0.0.1")
    refused(try(function(m) m.graph = m.graph:gsub("relu%(Tensor self%)", "relu(Tensor self, float slope)") end),
      "where op relu had other arguments", "then: relu%(Tensor self, float slope%)", "now:  relu%(Tensor self%)")
    refused(try(function(m) m.graph = m.graph:gsub('"relu":"[^"]*"', '"x":"x"') end), "op relu had other arguments")
  end)

  it("programs are of format 2 where an older moth would misread their formulas", function()
    local function format_of(fn)
      local ep = moth.export(fn, { x }, { dynamic_shapes = { { "rows" } } })
      moth.export.save(ep, path)
      local y = moth.randn(7, 2)
      assert.is_true(moth.allclose(fn(y), moth.export.load(path)(y)))
      return select(3, B.load_safetensors(path)).format
    end
    assert.equal("moth.export 1", format_of(function(v) return v:reshape(v:size(1) * 2) / v:size(1) end))
    assert.equal("moth.export 3", format_of(function(v) return v * (0.3 * v:size(1)) end))
    local y = moth.randn(7, 2)
    for text, factor in pairs {
      ['"scale":0.3'] = 0.3 * 7, ['"of":"sqrt"'] = math.sqrt(7), ['"of":"reciprocal","scale":2'] = 2 / 7,
      ['"of":"rsqrt","scale":0.3'] = 0.3 / math.sqrt(7), ['"of":"cube"'] = false, ['"scale":"2"'] = false,
    } do -- as format 2 had them
      moth.export.save(moth.export(function(v) return v * (0.3 * v:size(1)) end, { x },
        { dynamic_shapes = { { "rows" } } }), path)
      rewritten(function(m)
        local count
        m.graph, count = m.graph:gsub('{"f":%b{}}', '{"f":{"terms":[[1,"rows"]],"add":0,' .. text .. "}}")
        assert.equal(1, count)
      end)
      local ok, ep = pcall(moth.export.load, path)
      assert.equal(factor ~= false, ok, ep)
      if ok then
        assert.is_true(moth.allclose(y * factor, ep(y)))
      else
        assert.matches("a formula of sizes is damaged", ep)
      end
    end
    assert.equal("moth.export 2", format_of(function(v)
      local n = v:size(1)
      return v + moth.zeros(math.ceil(n / 2) * n):sum()
    end))
  end)

  it("of the edge library: .mte", function()
    local function try(change) return of(function() moth.edge.export(program(), path) end, moth.edge.load, change) end
    assert.equal("read", (try(function(m) m.moth = "0.0.1" end)))
    refused(try(function(m) m.format = "moth.edge 0" end), "the file's format is 'moth.edge 0'", "reads .*'moth.edge")
    refused(try(function(m) m.format = "moth.edge 99" end), "the file's format is 'moth.edge 99'")
    refused(try(function(m) m.graph = m.graph:gsub('%["relu",%d+%]', '["relu",7]') end),
      "op relu has other arguments in this library than in the moth that wrote the file: export it again")
    refused(try(function(m) m.graph = m.graph:gsub('%["relu",', '["relu_of_old",') end),
      "this library has no op relu_of_old")
  end)

  it("checkpoints", function()
    local function try(change) return of(function() moth.save({ x = x }, path) end, moth.load, change) end
    local said, t = try(function(m) m["moth.version"] = "0.0.1" end)
    assert.equal("read", said)
    assert.is_true(moth.equal(x, t.x))
    assert.equal("read", (try(function(m) m["moth.format"] = nil end))) -- the first ones did not say it
    refused(try(function(m) m["moth.format"], m["moth.version"] = "0", "0.0.1" end),
      "is of format 0, written by moth 0.0.1; this moth, %S+, reads format 1", "HINT: use that moth")
    refused(try(function(m) m["moth.format"] = "2" end), "is of format 2")
    refused(try(function(m) m["moth.tree"] = m["moth.tree"]:gsub('"k":"x"', '"k":"later"') end),
      "the description of the table is damaged")
  end)
end)
