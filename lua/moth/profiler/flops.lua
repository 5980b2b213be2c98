--- Floating-point operations and bytes of calls, from the shapes of their tensors.
local M = {}

local function product(t, from, to)
  local n = 1
  for d = from or 1, to or #t do n = n * t[d] end
  return n
end

-- An addition and a multiplication are two operations. a: the shapes of the arguments, r: those of the results.
local rules = {}

-- The result's elements times twice the length of what is summed: the last dimension of the first factor.
local function of_product(first)
  return function(a, r) return 2 * product(r[1]) * (a[first][#a[first]] or 1) end
end
for _, name in ipairs { "mm", "bmm", "matmul", "linear", "mv", "dot", "inner" } do rules[name] = of_product(1) end
for _, name in ipairs { "addmm", "baddbmm", "addmv" } do rules[name] = of_product(2) end

-- Each result of a convolution is a product with one filter: weight[1] filters of the other sizes.
local function convolution(a, r) return 2 * product(r[1]) * product(a[2], 2) end
local function transposed(a) return 2 * product(a[1]) * product(a[2], 2) end
for _, d in ipairs { "1d", "2d", "3d" } do
  rules["conv" .. d] = convolution
  rules["conv_transpose" .. d] = transposed
end
rules.convolution = convolution

-- Of q and k, and of the weights and v.
rules.scaled_dot_product_attention = function(a) return 4 * product(a[1]) * a[2][#a[2] - 1] end

--- The operations of a call of an op, or nil where no rule says: those of products, convolutions, attention; of the
-- other ops none is counted.
function M.flops(name, arguments, results)
  local rule = rules[name]
  if not rule or not arguments or not results or not results[1] then return nil end
  local ok, n = pcall(rule, arguments, results)
  return ok and n or nil
end

local function bytes(list)
  local n = 0
  for _, t in ipairs(list or {}) do n = n + product(t) * t.dtype.size end
  return n
end

--- The bytes of the tensors that a call reads and writes, each counted once.
function M.bytes(arguments, results) return bytes(arguments) + bytes(results) end

return M
