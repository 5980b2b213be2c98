-- The largest elements of bags of rows: whole strips of columns and rests, all dtypes, NaN, empty bags, on every level
-- of the CPU, with any number of threads.
local B = require "moth_lua"
local moth = require "moth"
local ops = B.ops

local function positions(t) return moth.tensor(t, { dtype = moth.int64 }) end

-- The same by amax and argmax of each bag, as lists.
local function plain(w, index, starts)
  local values, rows = {}, {}
  for b = 1, #starts do
    local from, to = starts[b], (starts[b + 1] or #index + 1) - 1
    if from <= to then
      local some = positions { unpack(index, from, to) }
      local bag = w:index_select(1, some)
      values[b], rows[b] = bag:amax(1), some:index_select(1, bag:argmax(1))
    else
      values[b], rows[b] = moth.zeros(w:size(2)):to(w:dtype()), moth.ones(w:size(2)):long()
    end
  end
  return moth.stack(values), moth.stack(rows)
end

describe("bags of rows", function()
  it("have their first maxima, NaN before all", function()
    moth.manual_seed(5)
    local index, starts, best = {}, { 1, 4, 4, 5, 20 }, B.cpu_level()
    for i = 1, 33 do index[i] = moth.randint(1, 9, {}):item() end
    for _, size in ipairs { 1, 3, 64, 65, 131 } do
      local x = (moth.randn(9, size) * 2):round() -- with equal ones
      x[2][1], x[4][size], x[5][1], x[6][1] = 0 / 0, 0 / 0, math.huge, -math.huge
      for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16" } do
        local w = x:to(moth[dtype])
        local values, rows = plain(w, index, starts)
        for _, level in ipairs { "generic", "avx2", best } do
          for threads = 1, pcall(B.cpu_level, level) and 2 or 0 do
            moth.set_num_threads(threads)
            local got, at = ops.native_bag_max(w, positions(index), positions(starts))
            assert.is_true(moth.allclose(got, values, 0, 0, true), level .. dtype .. size)
            assert.is_true(at:equal(rows), level .. dtype .. size)
          end
        end
        B.cpu_level(best)
      end
    end
  end)
end)
