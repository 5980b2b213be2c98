-- Families of language models in GGUF files, by llama.cpp's names and fields (gguf_fixtures.py): what transformers
-- computes with weights made by a formula.
local moth = require "moth"
local formula = require "spec.models.formula"

local cases, names = formula.cases "gguf.json"
local last = formula.last

local function made(name, shape)
  local is_norm = not name:find "bias$" and (#shape == 1 and not name:find "sinks" or name:find("_norm.", 1, true))
  return formula.weight(name, shape, is_norm)
end

local function tensors_of(case)
  local tensors = {}
  for name, shape in pairs(case.shapes) do tensors[name] = made(name, shape) end
  for name, list in pairs(case.more or {}) do tensors[name] = moth.tensor(list) end
  return tensors
end
local function path_of()
  local path = os.tmpname() .. ".gguf"
  finally(function() os.remove(path) end)
  return path
end
local function logits(model, case)
  return moth.no_grad(model.forward, model, moth.tensor(case.ids, { dtype = moth.int64 }) + 1)
end

describe("families of language models in GGUF files #quick", function()
  for _, name in ipairs(names) do
    it("are transformers' to 1e-4: " .. name, function()
      local case, path = cases[name], path_of()
      moth.gguf.save(path, case.fields, tensors_of(case))
      assert.is_close(moth.tensor(case.tail), last(logits(moth.models.load(path), case)), { rtol = 0, atol = 1e-4 })
    end)
  end

  local only_read = { bloom = true, falcon = true, falcon40 = true, glm4 = true, gptneox = true, phi3 = true }
  it("go into files and back, with nothing lost, or are refused", function()
    local path = path_of()
    for _, name in ipairs(names) do
      local case = cases[name]
      moth.gguf.save(path, case.fields, tensors_of(case))
      local model = moth.models.load(path)
      local want = logits(model, case)
      if only_read[name] then
        assert.error_matches(function() moth.models.save_gguf(model, path) end, "has no architecture for")
      else
        moth.models.save_gguf(model, path)
        assert.is_true(moth.equal(want, logits(moth.models.load(path), case)), name)
        local file = moth.gguf.load(path)
        local kind = case.fields["general.architecture"]
        if kind ~= "seed_oss" and name ~= "deepseek2_old_lite" then -- which are written in another form
          for key, v in pairs(case.fields) do
            local got = file.metadata[key]
            if type(v) == "number" and v ~= 0 and not (key:find "expert" and v == 1) then
              assert.is_true(got ~= nil and math.abs(got - v) <= 1e-6 * math.abs(v), name .. ": " .. key)
            end
          end
          for key in pairs(case.shapes) do assert.is_truthy(file.tensors[key], name .. ": " .. key) end
        end
      end
    end
  end)

  it("have windows where the file says, whatever files were read before", function()
    local case, path = cases.gpt_oss, path_of()
    local function types_with(pattern)
      local fields = {}
      for key, v in pairs(case.fields) do fields[key] = v end
      fields["gpt-oss.attention.sliding_window_pattern"] = pattern
      moth.gguf.save(path, fields, tensors_of(case))
      return table.concat(moth.models.load(path).config.layer_types, " "):gsub("_attention", "")
    end
    assert.equal("sliding sliding full", (types_with(3)))
    assert.equal("sliding full sliding", (types_with()))
    assert.equal("full full sliding", (types_with { false, false, true }))
    assert.error_matches(function() types_with { true } end, "has 1 values, there are 3 blocks")
    assert.error_matches(function() types_with "all" end, "sliding_window_pattern: expected")
  end)

  it("have experts in blocks, of one kind or another, and one by one as older files have them", function()
    local case, path = cases.mixtral, path_of()
    moth.gguf.save(path, case.fields, tensors_of(case))
    local plain = logits(moth.models.load(path), case)
    local function kind_of(name)
      return name:find "gate_exps" and "Q8_0" or name:find "blk.0.ffn_up_exps" and "Q4_0" or nil
    end
    moth.gguf.save(path, case.fields, tensors_of(case), kind_of)
    local model = moth.models.load(path)
    local want = logits(model, case)
    assert.is_true((want - plain):abs():max():item() > 0)
    moth.models.save_gguf(model, path)
    local file = moth.gguf.load(path, { blocks = true })
    assert.equal("Q8_0", file.types["blk.1.ffn_gate_exps.weight"])
    assert.equal("Q4_0", file.types["blk.0.ffn_up_exps.weight"])
    assert.is_true(moth.equal(want, logits(moth.models.load(path), case)))
    -- One expert of another kind than its neighbours: floats, which are the same numbers.
    local old, n = {}, 0
    for name, t in pairs(tensors_of(case)) do
      local layer, part = name:match "^(blk%.%d+%.ffn_%l+)_exps(%.weight)$"
      for e = 1, layer and t:size(1) or 0 do old[layer .. "." .. e - 1 .. part], n = t:select(1, e), n + 1 end
      if not layer then old[name] = t end
    end
    assert.equal(24, n)
    moth.gguf.save(path, case.fields, old)
    assert.is_true(moth.equal(plain, logits(moth.models.load(path), case)))
    moth.gguf.save(path, case.fields, old, function(name) return name:find "ffn_up%.1%." and "Q8_0" or nil end)
    model = moth.models.load(path)
    want = logits(model, case)
    moth.models.save_gguf(model, path)
    assert.is_true((want - logits(moth.models.load(path), case)):abs():max():item() < 0.05 * plain:abs():max():item())
    moth.models.save_gguf(model, path, { type = "Q8_0" })
    assert.equal("F32", moth.gguf.load(path).types["blk.0.ffn_gate_inp.weight"])
  end)
end)
