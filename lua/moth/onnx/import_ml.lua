--- Operators of ONNX's domain of classical learning, ai.onnx.ml; trees: import_trees.lua.
local B = require "moth_lua"
local moth = require "moth"
local import = require "moth.onnx.import"
local trees = require "moth.onnx.import_trees"
local rule = import.rule

local ML = { domain = "ai.onnx.ml", any = true }

rule("Binarizer", "threshold=0", function(c, x) return x:gt(c.threshold):to(x:dtype()) end, ML)

rule("ArrayFeatureExtractor", function(c, x, index)
  local at = c:positions(index:reshape { -1 }, x:size(-1))
  local y = x:index_select(x:dim(), at)
  return x:dim() == 1 and y:reshape { 1, -1 } or y
end, ML)

rule("Scaler", "offset scale", function(c, x)
  local function vector(list) return import.tensor(list, "float32", x:device()) end
  x = x:to(moth.float32)
  if c.offset then x = x - vector(c.offset) end
  return c.scale and x * vector(c.scale) or x
end, ML)

-- Keys and values are of one of these types each, as lists or tensors.
local function entries(c, what)
  local t = c[what .. "_tensor"]
  if t then
    if not B.is_tensor(t) then return t, "strings" end
    return c:list(t), t:dtype().name
  end
  for _, kind in ipairs { "strings", "int64s", "floats" } do
    if c[what .. "_" .. kind] then
      return c[what .. "_" .. kind], ({ strings = "strings", int64s = "int64", floats = "float32" })[kind]
    end
  end
  return c:fail("it has no %s", what)
end

rule("LabelEncoder", "keys_tensor keys_strings keys_int64s keys_floats values_tensor values_strings values_int64s \z
  values_floats default_tensor default_string='_Unused' default_int64=-1 default_float=-0", function(c, x)
  local keys = entries(c, "keys")
  local values, kind = entries(c, "values")
  local map, nan = {}, nil
  for i, k in ipairs(keys) do
    if k ~= k then nan = values[i] else map[k] = values[i] end
  end
  local default = kind == "strings" and c.default_string or kind == "float32" and c.default_float or c.default_int64
  local t = c.default_tensor
  if t then default = B.is_tensor(t) and c:list(t)[1] or not B.is_tensor(t) and t[1] or default end
  local items, out = B.is_tensor(x) and c:list(x) or x, {}
  for i = 1, B.is_tensor(x) and x:numel() or x.n do
    local v = items[i]
    if v ~= v then out[i] = nan else out[i] = map[v] end
    if out[i] == nil then out[i] = default end
  end
  local shape = B.is_tensor(x) and x:size() or x.shape
  if kind ~= "strings" then return import.tensor(out, kind):reshape(shape) end
  out.kind, out.shape, out.n = "strings", shape, #out
  return out
end, { domain = "ai.onnx.ml", any = true, numbers = 1 })

-- ---- lines, distances to supports ----------------------------------------------------------------

local function rows(c, x)
  if x:dim() == 1 then x = x:reshape { 1, -1 } end
  if x:dim() ~= 2 then c:fail("expected rows of features, got a tensor of %d dimensions", x:dim()) end
  return x:to(moth.float32)
end

local function transform(c, name)
  return trees.transforms[name] or c:fail("post_transform = %s", tostring(name))
end

-- x (N, F) by a list of coefficients, F for each of n targets, and a list of what is added.
local function lines(c, x, coefficients, n, added)
  if #coefficients ~= n * x:size(2) then
    c:fail("%d coefficients for %d features and %d results", #coefficients, x:size(2), n)
  end
  local w = import.tensor(coefficients, "float32", x:device()):reshape { n, -1 }
  return B.ops.linear(x, w, #added == n and import.tensor(added, "float32", x:device()) or nil)
end

rule("LinearRegressor", "coefficients intercepts post_transform='NONE' targets=1", function(c, x)
  local y = lines(c, rows(c, x), c.coefficients or {}, c.targets, c.intercepts or {})
  return c.targets > 1 and transform(c, c.post_transform)(y) or y -- of one target it is left out, as in onnxruntime
end, ML)

-- Texts or numbers of the winners, which count from 0.
local function labelled(c, winner, texts, numbers)
  if not texts or #texts == 0 then return import.tensor(numbers, "int64", winner:device()):take(winner + 1) end
  local out = { kind = "strings", shape = { winner:size(1) }, n = winner:size(1) }
  for i, k in ipairs(c:list(winner)) do out[i] = texts[k + 1] or c:fail("there is no label %d", k) end
  return out
end

rule("LinearClassifier", "classlabels_ints classlabels_strings coefficients intercepts multi_class=0 \z
  post_transform='NONE'", function(c, x)
  x = rows(c, x)
  local apply, n = transform(c, c.post_transform), #(c.intercepts or {})
  if n == 0 then n = #(c.coefficients or {}) / x:size(2) end
  local y = lines(c, x, c.coefficients or {}, n, c.intercepts or {})
  local winner
  if n == 1 then
    winner, y = y:reshape({ -1 }):gt(0):to(moth.int64), select(2, trees.of_one_score(y:reshape { -1 }, apply,
      c.post_transform, true))
  else
    winner, y = y:argmax(2) - 1, apply(y)
  end
  return labelled(c, winner, c.classlabels_strings, c.classlabels_ints), y
end, ML)

local kernels = {
  LINEAR = function(dot) return dot end,
  POLY = function(dot, gamma, added, degree) return (dot * gamma + added):pow(degree) end,
  SIGMOID = function(dot, gamma, added) return (dot * gamma + added):tanh() end,
}

-- Kernels of rows and support vectors: (N, supports).
local function kernel_of(c, x, n)
  local gamma, added, degree = unpack(c.kernel_params or { 0, 0, 0 })
  local supports = import.tensor(c.support_vectors or {}, "float32", x:device())
  if supports:numel() ~= n * x:size(2) then
    c:fail("support_vectors has %d elements for %d features and %d vectors", supports:numel(), x:size(2), n)
  end
  supports = supports:reshape { n, -1 }
  if c.kernel_type == "RBF" then return ((x:unsqueeze(2) - supports):square():sum(3) * -gamma):exp() end
  local kernel = kernels[c.kernel_type] or c:fail("kernel_type = %s", c.kernel_type)
  return kernel(x:matmul(supports:t()), gamma, added, degree)
end

rule("SVMRegressor", "coefficients kernel_params kernel_type='LINEAR' n_supports=0 one_class=0 post_transform='NONE' \z
  rho support_vectors", function(c, x)
  x = rows(c, x)
  if c.n_supports > 0 then x = kernel_of(c, x, c.n_supports) end
  local y = lines(c, x, c.coefficients or {}, 1, {}) + (c.rho and c.rho[1] or 0)
  if c.one_class == 1 then return moth.where(y:gt(0), moth.ones_like(y), moth.full_like(y, -1)) end
  return y
end, ML)

-- Probabilities of n classes from those of pairs, r[i][j] of i against j: the second way of Wu, Lin and Weng (2004),
-- with libsvm's stop.
local function coupled(r, n)
  local q, p, qp = {}, {}, {}
  for i = 1, n do
    q[i], p[i] = {}, 1 / n
    for j = 1, n do q[i][j] = i ~= j and -r[j][i] * r[i][j] or 0 end
    for j = 1, n do
      if i ~= j then q[i][i] = q[i][i] + r[j][i] ^ 2 end
    end
  end
  for _ = 1, 100 do
    local pqp, worst = 0, 0
    for i = 1, n do
      qp[i] = 0
      for j = 1, n do qp[i] = qp[i] + q[i][j] * p[j] end
      pqp = pqp + p[i] * qp[i]
    end
    for i = 1, n do worst = math.max(worst, math.abs(qp[i] - pqp)) end
    if worst < 0.005 / n then break end
    for i = 1, n do
      local d = (pqp - qp[i]) / q[i][i]
      p[i] = p[i] + d
      pqp = (pqp + d * (d * q[i][i] + 2 * qp[i])) / (1 + d) ^ 2
      for j = 1, n do
        qp[j], p[j] = (qp[j] + d * q[i][j]) / (1 + d), p[j] / (1 + d)
      end
    end
  end
  return p
end

rule("SVMClassifier", "classlabels_ints classlabels_strings coefficients kernel_params kernel_type='LINEAR' \z
  post_transform='NONE' prob_a prob_b rho support_vectors vectors_per_class", function(c, x)
  x = rows(c, x)
  local counts, apply = c.vectors_per_class or {}, transform(c, c.post_transform)
  local labels = c.classlabels_strings and #c.classlabels_strings > 0 and c.classlabels_strings or c.classlabels_ints
  local n, total, starts = #counts, 0, {}
  for i, count in ipairs(counts) do starts[i], total = total, total + count end
  if n == 0 then -- a line for each class
    n = #(labels or {})
    local y = lines(c, x, c.coefficients or {}, n, {}) + (c.rho and c.rho[1] or 0)
    return labelled(c, y:argmax(2) - 1, c.classlabels_strings, c.classlabels_ints), apply(y)
  end
  local coefficients, rho = c.coefficients or {}, c.rho or {}
  if #coefficients ~= (n - 1) * total then
    c:fail("%d coefficients for %d classes and %d vectors", #coefficients, n, total)
  end
  local weights, pairs_of = {}, {}
  for i = 1, n do
    for j = i + 1, n do
      local base = #pairs_of * total
      pairs_of[#pairs_of + 1] = { i, j }
      for k = 1, total do weights[base + k] = 0 end
      for k = starts[i] + 1, starts[i] + counts[i] do weights[base + k] = coefficients[(j - 2) * total + k] end
      for k = starts[j] + 1, starts[j] + counts[j] do weights[base + k] = coefficients[(i - 1) * total + k] end
    end
  end
  if #rho ~= #pairs_of then c:fail("rho has %d elements for %d pairs of classes", #rho, #pairs_of) end
  local y = lines(c, kernel_of(c, x, total), weights, #pairs_of, rho)
  local a, b = c.prob_a or {}, c.prob_b or {}
  local list, winners, scores = c:list(y), {}, {}
  for row = 1, x:size(1) do
    local votes, r = {}, {}
    for i = 1, n do votes[i], r[i] = 0, {} end
    for k, pair in ipairs(pairs_of) do
      local v, i, j = list[(row - 1) * #pairs_of + k], pair[1], pair[2]
      if v > 0 then votes[i] = votes[i] + 1 else votes[j] = votes[j] + 1 end
      if #a > 0 then
        r[i][j] = math.min(math.max(1 / (1 + math.exp(v * a[k] + b[k])), 1e-7), 1 - 1e-7)
        r[j][i] = 1 - r[i][j]
      end
    end
    if #a > 0 then
      for _, p in ipairs(coupled(r, n)) do scores[#scores + 1] = p end
    end
    local best = 1
    for i = 2, n do
      if votes[i] > votes[best] then best = i end
    end
    winners[row] = best - 1
  end
  local winner = import.tensor(winners, "int64")
  if #a > 0 then
    y = import.tensor(scores, "float32", x:device()):reshape { x:size(1), n }
  elseif n == 2 then -- so onnxruntime: above 0 the first class wins
    y = moth.cat({ -y, y }, 2)
  end
  return labelled(c, winner, c.classlabels_strings, c.classlabels_ints), apply(y)
end, ML)

-- ---- what stands before and behind ---------------------------------------------------------------

rule("Normalizer", "norm='MAX'", function(c, x)
  x = x:to(moth.float32)
  local last = x:dim()
  local by = c.norm == "MAX" and x:amax(last, true) or c.norm == "L1" and x:abs():sum(last, true)
    or c.norm == "L2" and x:square():sum(last, true):sqrt() or c:fail("norm = %s", c.norm)
  return x / moth.where(by:eq(0), moth.ones_like(by), by)
end, ML)

rule("Imputer", "imputed_value_floats imputed_value_int64s replaced_value_float=0 replaced_value_int64=0",
  function(c, x)
  local is_float = import.is_float(x)
  local list = is_float and c.imputed_value_floats or c.imputed_value_int64s
  local old = is_float and c.replaced_value_float or c.replaced_value_int64
  if not list or #list == 0 then c:fail("it has no values for %s", x:dtype().name) end
  local hit = old ~= old and x:isnan() or x:eq(old)
  return moth.where(hit, import.tensor(list, x:dtype().name, x:device()):expand(x:size()), x)
end, ML)

rule("FeatureVectorizer", "inputdimensions", function(c, ...)
  local parts = {}
  for i = 1, c.n do
    local x, n = rows(c, (select(i, ...))), c.inputdimensions[i]
    if n > x:size(2) then x = moth.nn.functional.pad(x, { 0, n - x:size(2) }) end
    parts[i] = x:narrow(2, 1, n)
  end
  return moth.cat(parts, 2)
end, ML)

rule("OneHotEncoder", "cats_int64s cats_strings zeros=1", function(c, x)
  local texts, cats = not B.is_tensor(x), c.cats_int64s
  local shape, found
  if texts then
    local place, list = {}, {}
    for k, text in ipairs(c.cats_strings or c:fail("it has no categories of texts")) do place[text] = k end
    for i = 1, x.n do list[i] = place[x[i]] or 0 end
    shape, found = x.shape, import.tensor(list, "int64"):reshape { -1, 1 }:eq(moth.arange(1, #c.cats_strings + 1))
    cats = c.cats_strings
  else
    if not cats then c:fail("it has no categories of numbers") end
    shape = x:size()
    found = x:to(moth.int64):reshape({ -1, 1 }):eq(import.tensor(cats, "int64", x:device()))
  end
  if c.zeros == 0 and not found:any(2):all():item() then c:fail("an element is of no category, and zeros = 0") end
  local size = {}
  for d, n in ipairs(shape) do size[d] = n end
  size[#size + 1] = #cats
  return found:to(moth.float32):reshape(size)
end, ML)

-- A table of scores by label for each row.
rule("ZipMap", "classlabels_int64s classlabels_strings", function(c, x)
  local labels = c.classlabels_strings and #c.classlabels_strings > 0 and c.classlabels_strings or c.classlabels_int64s
  if x:dim() == 1 then x = x:reshape { 1, -1 } end
  if x:size(2) ~= #labels then c:fail("%d labels for %d scores", #labels, x:size(2)) end
  local list, out = c:list(x), { kind = "sequence" }
  for i = 1, x:size(1) do
    out[i] = {}
    for k, label in ipairs(labels) do out[i][label] = list[(i - 1) * #labels + k] end
  end
  return out
end, ML)
