--- Which operations return a view, so that writing to the result changes x, and which return a copy. The list is found
-- by testing: a result is a view if it shares x's storage.
--
--     moth examples/view_or_copy.lua
local moth = require "moth"

local x = moth.arange(12):to(moth.float32):view(3, 4)
local columns = moth.tensor({ 1, 3 }, { dtype = moth.int64 })
local rows = {
  { "x[2]", function() return x[2] end },
  { "x[{ {}, {2, 3} }]", function() return x[{ {}, { 2, 3 } }] end },
  { "x:t()", function() return x:t() end },
  { "x:view(12)", function() return x:view(12) end },
  { "x:reshape(12)", function() return x:reshape(12) end },
  { "x:t():reshape(12)", function() return x:t():reshape(12) end, "the strides do not fit" },
  { "x:expand(2, 3, 4)", function() return x:expand(2, 3, 4) end },
  { "x:diagonal()", function() return x:diagonal() end },
  { "x:detach()", function() return x:detach() end },
  { "x:contiguous()", function() return x:contiguous() end },
  { "x:t():contiguous()", function() return x:t():contiguous() end, "it was not contiguous" },
  { "x:to(moth.float32)", function() return x:to(moth.float32) end },
  { "x:to(moth.float64)", function() return x:to(moth.float64) end, "another dtype" },
  { "x:index_select(2, columns)", function() return x:index_select(2, columns) end, "indexed by a tensor" },
  { "x:masked_select(x:gt(5))", function() return x:masked_select(x:gt(5)) end, "selected by a mask" },
  { "x:flip(1)", function() return x:flip(1) end, "there are no negative strides" },
  { "x:clone()", function() return x:clone() end, "that is what clone is for" },
  { "x + 0", function() return x + 0 end, "arithmetic makes something new" },
}
for _, row in ipairs(rows) do
  local shares = row[2]():shares_storage(x)
  print(("%-28s %-5s %s"):format(row[1], shares and "view" or "COPY", row[3] or ""))
end

print("\nWriting through views: x[2]:zero_(), x:t()[1]:fill_(7), x[{ {}, 4 }]:mul_(-1)")
x[2]:zero_()
x:t()[1]:fill_(7)
x[{ {}, 4 }]:mul_(-1)
print(x)
print("Writing to a copy changes nothing: x:index_select(2, columns):zero_()")
local before = x:clone()
x:index_select(2, columns):zero_()
print("x is as before: " .. tostring(x:equal(before)))
