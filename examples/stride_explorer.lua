--- Shape, stride and offset: how reshape, transpose, permute, slices and expand change them without touching the
-- elements, and how the address of an element follows from them.
--
--     moth examples/stride_explorer.lua
local moth = require "moth"

local function show(title, x)
  print(("%-34s %s"):format(title, moth.describe(x)))
  return x
end

print("-- The same 24 numbers, seen in several ways:")
local x = show("x = arange(24):view(2, 3, 4)", moth.arange(24):view(2, 3, 4))
show("x:view(6, 4)", x:view(6, 4))
show("x:reshape(4, 6)", x:reshape(4, 6))
show("x:transpose(2, 3)", x:transpose(2, 3))
show("x:permute(3, 1, 2)", x:permute(3, 1, 2))
show("x[2]", x[2])
show("x[{ {}, {}, {1, 4, 2} }]", x[{ {}, {}, { 1, 4, 2 } }])
show("x:unsqueeze(1)", x:unsqueeze(1))
show("x[{ {}, {}, 1 }]:expand(5, -1, -1)", x[{ {}, {}, 1 }]:expand(5, -1, -1))
show("x:transpose(2, 3):contiguous()", x:transpose(2, 3):contiguous())

print("\n-- view wants the strides to fit; reshape copies where they do not:")
local t = x:transpose(2, 3)
print("x:transpose(2, 3):view(2, 12)    " .. tostring(select(2, pcall(t.view, t, 2, 12))))
show("x:transpose(2, 3):reshape(2, 12)", t:reshape(2, 12))
print("does that share x's storage?     " .. tostring(t:reshape(2, 12):shares_storage(x)))

-- Element [i, j, k] lies at offset + (i-1)*stride[1] + (j-1)*stride[2] + (k-1)*stride[3], counted in elements.
local function place(y, ...)
  local at = y:storage_offset()
  for d = 1, y:dim() do at = at + (select(d, ...) - 1) * y:stride(d) end
  return at
end

print("\n-- Places by hand, against the address of the element itself:")
local right, n = 0, 0
local start = x:data_ptr() - x:storage_offset() * x:element_size()
for _, y in ipairs { x, t, x:permute(3, 1, 2), x[{ {}, { 2, 3 }, { 1, 4, 2 } }] } do
  for i = 1, y:size(1) do
    for j = 1, y:size(2) do
      for k = 1, y:size(3) do
        n = n + 1
        local element = y[{ i, j, k }]
        if start + place(y, i, j, k) * y:element_size() == element:data_ptr()
          and element:item() == place(y, i, j, k) then right = right + 1 end
      end
    end
  end
end
print(("t[{2, 4, 3}] lies at %d: 0 + (2-1)*%d + (4-1)*%d + (3-1)*%d; it holds %d"):format(place(t, 2, 4, 3),
  t:stride(1), t:stride(2), t:stride(3), t[{ 2, 4, 3 }]:item()))
print(("%d of %d places computed by hand are right"):format(right, n))
