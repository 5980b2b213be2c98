--- Ensembles of trees of ONNX's domain of classical learning: TreeEnsemble, TreeEnsembleRegressor and -Classifier, with
-- onnxruntime's values where the format leaves them open. All rows go down all trees, a level at a time: the state
-- is the position of a node for each row and tree; leaves lead to themselves.
local moth = require "moth"
local import = require "moth.onnx.import"
local rule = import.rule

local MODES = { BRANCH_LEQ = "le", BRANCH_LT = "lt", BRANCH_GTE = "ge", BRANCH_GT = "gt", BRANCH_EQ = "eq",
  BRANCH_NEQ = "ne", [0] = "le", "lt", "ge", "gt", "eq", "ne" }
local MEMBER, MOST_DEPTH, MOST_TABLE = 6, 4096, 2 ^ 27

-- ---- reading: a forest is lists of nodes (feature, split, mode, missing, yes, no; a leaf has no feature) -----------

local function numbers(t) return type(t) == "table" and t or t and t:reshape({ -1 }):totable() end

-- Lists of attributes that belong together are of one length.
local function same_length(c, n, lists)
  for name, list in require "moth.each"(lists) do
    if #list ~= n then c:fail("%s has %d elements, expected %d", name, #list, n) end
  end
end

-- The levels below the roots. Branches that come together or are none are errors in the format, endless ones here.
local function depth_of(c, forest)
  local level, depth = forest.roots, 0
  while true do
    local below, seen, any = {}, {}, false
    for _, k in ipairs(level) do
      if forest.feature[k] then
        any = true
        for _, next_one in ipairs { forest.yes[k], forest.no[k] } do
          if not seen[next_one] then below[#below + 1], seen[next_one] = next_one, true end
        end
      end
    end
    if not any then return depth end
    level, depth = below, depth + 1
    if depth > MOST_DEPTH then c:fail("its trees are deeper than %d nodes, or go round in a circle", MOST_DEPTH) end
  end
end

-- The forest of the older operators: nodes by the ids of tree and node, weights by the same.
local function by_ids(c, what)
  local ids, trees = c.nodes_nodeids or {}, c.nodes_treeids or {}
  local n = #ids
  local splits = numbers(c.nodes_values_as_tensor) or c.nodes_values or {}
  local missing = c.nodes_missing_value_tracks_true or {}
  same_length(c, n, { nodes_treeids = trees, nodes_featureids = c.nodes_featureids or {}, nodes_values = splits,
    nodes_modes = c.nodes_modes or {}, nodes_truenodeids = c.nodes_truenodeids or {},
    nodes_falsenodeids = c.nodes_falsenodeids or {} })
  local f = { n = n, feature = {}, split = {}, mode = {}, missing = {}, yes = {}, no = {}, roots = {}, leaves = {} }
  local place, is_below = {}, {}
  local function key(tree, node) return tree .. " " .. node end
  for k = 1, n do
    local at = key(trees[k], ids[k])
    if place[at] then c:fail("tree %d has two nodes %d", trees[k], ids[k]) end
    place[at] = k
  end
  for k = 1, n do
    local mode = c.nodes_modes[k]
    if mode ~= "LEAF" then
      f.mode[k] = MODES[mode] or c:fail("nodes_modes has '%s', which is not known", mode)
      f.feature[k], f.split[k], f.missing[k] = c.nodes_featureids[k] + 1, splits[k], missing[k] == 1
      f.yes[k] = place[key(trees[k], c.nodes_truenodeids[k])]
      f.no[k] = place[key(trees[k], c.nodes_falsenodeids[k])]
      if not f.yes[k] or not f.no[k] then c:fail("node %d of tree %d has a branch to none", ids[k], trees[k]) end
      is_below[f.yes[k]], is_below[f.no[k]] = true, true
    end
  end
  local begun = {}
  for k = 1, n do -- the first node of a tree is its root
    if not begun[trees[k]] then
      if is_below[k] then c:fail("tree %d has no root: its first node, %d, is below another", trees[k], ids[k]) end
      f.roots[#f.roots + 1], begun[trees[k]] = k, true
    end
  end
  local weights = numbers(c[what .. "_weights_as_tensor"]) or c[what .. "_weights"] or {}
  local nodes, of, targets = c[what .. "_nodeids"] or {}, c[what .. "_treeids"] or {}, c[what .. "_ids"] or {}
  same_length(c, #weights, { [what .. "_nodeids"] = nodes, [what .. "_treeids"] = of, [what .. "_ids"] = targets })
  for i = 1, #weights do
    local k = place[key(of[i], nodes[i])] or c:fail("%s_nodeids has node %d of tree %d, which is none", what, nodes[i],
      of[i])
    f.leaves[k] = f.leaves[k] or {}
    table.insert(f.leaves[k], { targets[i] + 1, weights[i] })
  end
  return f
end

-- The forest of TreeEnsemble: inner nodes and leaves apart. A set of members is a chain of comparisons.
local function by_places(c)
  local modes, features, splits = numbers(c.nodes_modes) or {}, c.nodes_featureids or {}, numbers(c.nodes_splits) or {}
  local n, missing, members = #modes, c.nodes_missing_value_tracks_true or {}, numbers(c.membership_values) or {}
  local weights, targets = numbers(c.leaf_weights) or {}, c.leaf_targetids or {}
  same_length(c, n, { nodes_featureids = features, nodes_splits = splits, nodes_trueleafs = c.nodes_trueleafs or {},
    nodes_falseleafs = c.nodes_falseleafs or {}, nodes_truenodeids = c.nodes_truenodeids or {},
    nodes_falsenodeids = c.nodes_falsenodeids or {} })
  same_length(c, #weights, { leaf_targetids = targets })
  local f = { n = n + #weights, feature = {}, split = {}, mode = {}, missing = {}, yes = {}, no = {}, roots = {},
    leaves = {} }
  local function branch(is_leaf, id)
    if id < 0 or id >= (is_leaf == 1 and #weights or n) then c:fail("a branch to %d, which is none", id) end
    return is_leaf == 1 and n + id + 1 or id + 1
  end
  local function set(k, from, mode, split, yes, no)
    f.feature[k], f.mode[k], f.split[k], f.missing[k] = features[from] + 1, mode, split, missing[from] == 1
    f.yes[k], f.no[k] = yes, no
  end
  local at = 1
  for k = 1, n do
    local yes = branch(c.nodes_trueleafs[k], c.nodes_truenodeids[k])
    local no = branch(c.nodes_falseleafs[k], c.nodes_falsenodeids[k])
    if modes[k] ~= MEMBER then
      local mode = MODES[modes[k]] or c:fail("nodes_modes has %s, which is not known", tostring(modes[k]))
      set(k, k, mode, splits[k], yes, no)
    else
      local this = k
      repeat -- NaN ends a set
        local v, after = members[at], members[at + 1]
        if not v or v ~= v then c:fail("membership_values has fewer sets than there are nodes with them") end
        local more = after and after == after
        if more then f.n = f.n + 1 end
        set(this, k, "eq", v, yes, more and f.n or no)
        this, at = f.n, at + 1
      until not more
      at = at + 1
    end
  end
  for i = 1, #weights do f.leaves[n + i] = { { targets[i] + 1, weights[i] } } end
  for i, root in ipairs(c.tree_roots or {}) do f.roots[i] = branch(0, root) end
  return f
end

-- ---- as tensors ---------------------------------------------------------------------------------------------------

-- The target of the leaves below a root; nil: they have several, or a leaf has another number of weights than one.
local function one_target(f, root)
  local todo, target = { root }, nil
  local seen = {}
  while #todo > 0 do
    local k = table.remove(todo)
    if f.feature[k] then
      for _, next_one in ipairs { f.yes[k], f.no[k] } do
        if not seen[next_one] then todo[#todo + 1], seen[next_one] = next_one, true end
      end
    else
      local list = f.leaves[k] or {}
      if #list ~= 1 or target and target ~= list[1][1] then return nil end
      target = list[1][1]
    end
  end
  return target
end

-- What a forest is as tensors. first: a leaf has one weight, the first (of one target).
local function tables(c, f, targets, dtype, device, first)
  local function vector(list, default, of)
    local full = {}
    for k = 1, f.n do full[k] = list[k] == nil and default or list[k] end
    return import.tensor(full, of, device)
  end
  local t = { depth = depth_of(c, f), trees = #f.roots, columns = 0, modes = {} }
  for k = 1, f.n do
    local column = f.feature[k]
    if column and column < 1 then c:fail("nodes_featureids has %d", column - 1) end
    t.columns = math.max(t.columns, column or 0)
    for _, weight in ipairs(f.leaves[k] or {}) do
      if weight[1] < 1 or weight[1] > targets then
        c:fail("a weight for the target %d; there are %d, from 0", weight[1] - 1, targets)
      end
    end
  end
  -- Trees of one target each, those of the same one side by side; else a column for each target.
  local groups = {}
  for _, root in ipairs(f.roots) do
    local target = groups and one_target(f, root)
    if not target then groups = nil end
    if groups then
      groups[target] = groups[target] or {}
      table.insert(groups[target], root)
    end
  end
  local roots = f.roots
  if groups then
    roots, t.groups = {}, {}
    for target = 1, targets do
      t.groups[target] = { #roots + 1, #(groups[target] or {}) }
      for _, root in ipairs(groups[target] or {}) do roots[#roots + 1] = root end
    end
  end
  t.roots = import.tensor(roots, "int64", device):reshape { 1, -1 }
  t.feature, t.split = vector(f.feature, 1, "int64"), vector(f.split, 0, dtype)
  for k = 1, f.n do
    f.yes[k], f.no[k] = f.yes[k] or k, f.no[k] or k
    if f.missing[k] then t.missing = true end
  end
  t.yes, t.no = vector(f.yes, 1, "int64"), vector(f.no, 1, "int64")
  if t.missing then
    local list = {}
    for k = 1, f.n do list[k] = f.missing[k] and 1 or 0 end
    t.missing = import.tensor(list, "bool", device)
  end
  local masks, kinds = {}, 0
  for k = 1, f.n do
    local mode = f.mode[k]
    if mode then
      if not masks[mode] then masks[mode], kinds = {}, kinds + 1 end
      masks[mode][k] = 1
    end
  end
  for mode, mask in require "moth.each"(masks) do t.modes[mode] = kinds > 1 and vector(mask, 0, "bool") or true end
  if groups then
    local list = {}
    for k = 1, f.n do list[k] = f.leaves[k] and f.leaves[k][1][2] or 0 end
    t.weights = import.tensor(list, dtype, device)
    return t
  end
  if f.n * targets > MOST_TABLE then c:fail("a table of %d nodes and %d targets is too large", f.n, targets) end
  local list, has, all = {}, {}, true
  for i = 1, f.n * targets do list[i], has[i] = 0, 0 end
  for k = 1, f.n do
    local leaf = f.leaves[k]
    for i, weight in ipairs(leaf or {}) do
      local at = (k - 1) * targets + weight[1]
      if not (first and i > 1) then list[at], has[at] = list[at] + weight[2], 1 end
    end
    if not f.feature[k] then
      for target = 1, targets do all = all and has[(k - 1) * targets + target] == 1 end
    end
  end
  t.weights = import.tensor(list, dtype, device):reshape { f.n, targets }
  if not all then t.has = import.tensor(has, "bool", device):reshape { f.n, targets } end
  return t
end

local forests = setmetatable({}, { __mode = "k" }) -- by node: made once

local function forest_of(c, read, targets, dtype, device, first)
  local key = dtype .. " " .. tostring(device)
  local made = forests[c.node]
  if not made then
    made = {}
    forests[c.node] = made
  end
  made[key] = made[key] or import.aside(function() return tables(c, read(c), targets, dtype, device, first) end)
  return made[key]
end

-- ---- running ------------------------------------------------------------------------------------------------------

-- The node of each row in each tree at its end: int64 (N, trees), positions.
local function descend(t, x)
  local at = t.roots:expand { x:size(1), t.trees }
  for _ = 1, t.depth do
    local v, split, goes = x:gather(2, t.feature:take(at)), t.split:take(at), nil
    for mode, mask in require "moth.each"(t.modes) do
      local holds = v[mode](v, split)
      if mask ~= true then holds = holds:logical_and(mask:take(at)) end
      goes = goes and goes:logical_or(holds) or holds
    end
    if t.missing then goes = goes:logical_or(v:isnan():logical_and(t.missing:take(at))) end
    at = moth.where(goes, t.yes:take(at), t.no:take(at))
  end
  return at
end

local folds = {
  SUM = function(v, dim) return v:sum(dim) end, AVERAGE = function(v, dim) return v:sum(dim) end,
  MIN = function(v, dim) return v:amin(dim) end, MAX = function(v, dim) return v:amax(dim) end,
}

-- Scores (N, targets) before base values; and which of them a leaf gave: bool of the same size, or nil where all are.
local function scores(t, x, how)
  local at, fold = descend(t, x), folds[how]
  if t.groups then
    local v, parts, has, all = t.weights:take(at), {}, {}, true
    for target, group in ipairs(t.groups) do
      local some = group[2] > 0
      local mine = v:narrow(2, some and group[1] or 1, some and group[2] or 1)
      parts[target] = some and fold(mine, 2) or moth.zeros_like(mine:select(2, 1))
      has[target], all = some and 1 or 0, all and some
    end
    local y = moth.stack(parts, 2)
    return y, not all and import.tensor(has, "bool", x:device()):reshape({ 1, -1 }):expand(y:size()) or nil
  end
  local v = t.weights[{ at }] -- (N, trees, targets)
  if not t.has then return fold(v, 2), nil end
  local given = t.has[{ at }]
  local has = given:any(2)
  if how == "MIN" or how == "MAX" then
    v = moth.where(given, v, moth.full_like(v, how == "MIN" and math.huge or -math.huge))
    v = fold(v, 2)
    return moth.where(has, v, moth.zeros_like(v)), has
  end
  return fold(v, 2), has
end

-- The inverse of the normal distribution as onnxruntime approximates it.
local function probit(x)
  x = x * 2 - 1
  local log = ((1 - x) * (1 + x)):log()
  local v = log * 0.5 + 2 / (3.14159 * 0.147)
  return moth.where(x:lt(0), moth.full_like(x, -1), moth.full_like(x, 1))
    * (-v + (v * v - log * (1 / 0.147)):sqrt()):sqrt() * 1.41421356
end

local transforms = {
  NONE = function(x) return x end, LOGISTIC = function(x) return x:sigmoid() end,
  SOFTMAX = function(x) return x:softmax(2) end, PROBIT = probit,
  SOFTMAX_ZERO = function(x) -- zeros are left out of it
    local most = x:amax(2, true)
    local y = moth.where(x:abs():gt(1e-7), (x - most):exp(), x * (-most):exp())
    return y / y:sum(2, true)
  end,
}
local by_number = { [0] = "NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT" }

-- Rows of numbers in the type that splits are compared in.
local function rows(c, x, wide)
  if x:dim() == 1 then x = x:reshape { 1, -1 } end
  if x:dim() ~= 2 then c:fail("expected rows of features, got a tensor of %d dimensions", x:dim()) end
  return x:to(wide and moth.float64 or moth.float32), wide and "float64" or "float32"
end

local function is_double(t) return moth.is_tensor(t) and t:dtype() == moth.float64 end

local function check_columns(c, t, x)
  if t.columns > x:size(2) then c:fail("feature %d of rows of %d", t.columns - 1, x:size(2)) end
end

local function regression(c, x, read, targets, wide, how, transform, base)
  if not folds[how] then c:fail("aggregate_function = %s", tostring(how)) end
  local apply = transforms[transform] or c:fail("post_transform = %s", tostring(transform))
  local v, dtype = rows(c, x, wide or x:dtype() == moth.float64)
  local t = forest_of(c, read, targets, dtype, v:device(), targets == 1)
  check_columns(c, t, v)
  local y = scores(t, v, how)
  if how == "AVERAGE" then y = y / t.trees end
  if #base == targets then y = y + import.tensor(base, dtype, v:device()) end
  -- Of one target the others are left out, as in onnxruntime.
  return (targets > 1 or transform == "PROBIT") and apply(y) or y
end

local NODES = "nodes_featureids nodes_nodeids nodes_treeids nodes_values nodes_values_as_tensor nodes_modes \z
  nodes_truenodeids nodes_falsenodeids nodes_missing_value_tracks_true nodes_hitrates nodes_hitrates_as_tensor \z
  base_values base_values_as_tensor post_transform='NONE' "
local ML = { domain = "ai.onnx.ml", any = true }

rule("TreeEnsembleRegressor", NODES .. "aggregate_function='SUM' n_targets target_ids target_nodeids target_treeids \z
  target_weights target_weights_as_tensor", function(c, x)
  local y = regression(c, x, function() return by_ids(c, "target") end, c.n_targets or 1,
    is_double(c.nodes_values_as_tensor), c.aggregate_function, c.post_transform,
    numbers(c.base_values_as_tensor) or c.base_values or {})
  return y:to(moth.float32)
end, ML)

rule("TreeEnsemble", "aggregate_function=1 leaf_targetids leaf_weights membership_values n_targets nodes_falseleafs \z
  nodes_falsenodeids nodes_featureids nodes_hitrates nodes_missing_value_tracks_true nodes_modes nodes_splits \z
  nodes_trueleafs nodes_truenodeids post_transform=0 tree_roots", function(c, x)
  local how = ({ [0] = "AVERAGE", "SUM", "MIN", "MAX" })[c.aggregate_function]
  local y = regression(c, x, by_places, c.n_targets or 1, is_double(c.nodes_splits), how or c.aggregate_function,
    by_number[c.post_transform] or c.post_transform, {})
  return y:to(x:dtype())
end, ML)

-- Two classes, of which the trees score one: whether the second wins, and the scores of both. positive: all weights are
-- 0 or more, the score is a probability.
local function of_one_score(score, apply, transform, positive)
  local wins = score:gt(positive and 0.5 or 0)
  local first = -score
  if transform == "PROBIT" then
    score = probit(score)
    first = score
  elseif transform == "LOGISTIC" then
    first, score = apply(first), apply(score)
  elseif positive then
    first = 1 - score
  end
  return wins, moth.stack({ first, score }, 2)
end

rule("TreeEnsembleClassifier", NODES .. "class_ids class_nodeids class_treeids class_weights class_weights_as_tensor \z
  classlabels_int64s classlabels_strings", function(c, x)
  local labels = c.classlabels_strings and #c.classlabels_strings > 0 and c.classlabels_strings or nil
  local n = #(labels or c.classlabels_int64s or {})
  local apply = transforms[c.post_transform] or c:fail("post_transform = %s", tostring(c.post_transform))
  local v, dtype = rows(c, x, is_double(c.nodes_values_as_tensor) or x:dtype() == moth.float64)
  local t = forest_of(c, function() return by_ids(c, "class") end, n, dtype, v:device())
  check_columns(c, t, v)
  local base = numbers(c.base_values_as_tensor) or c.base_values or {}
  local y, has = scores(t, v, "SUM")
  local ids, only, positive = c.class_ids or {}, n == 2, true
  for _, id in ipairs(ids) do only = only and id == ids[1] end
  local winner
  if only and #base < 2 then
    for _, weight in ipairs(numbers(c.class_weights_as_tensor) or c.class_weights or {}) do
      positive = positive and weight >= 0
    end
    local second = ids[1] == 1 -- then there are two scores, one of them 0, and a base value is the first one's
    local score = y:select(2, second and 2 or 1)
    if #base == 1 and not second then score = score + base[1] end
    local wins, both = of_one_score(score, apply, c.post_transform, positive)
    y = second and apply(y) or both
    winner = wins:to(moth.int64)
  else
    if n == 2 and #base == 1 then base = { base[1], 0 } end -- so onnxruntime
    if #base == n then y, has = y + import.tensor(base, dtype, v:device()), nil end
    local among = has and moth.where(has, y, moth.full_like(y, -math.huge)) or y
    winner = among:argmax(2) - 1
    if n > 1 then y = apply(y) end
  end
  if not labels then
    local list = import.tensor(c.classlabels_int64s, "int64", v:device())
    return list:take(winner + 1), y:to(moth.float32)
  end
  local out = { kind = "strings", shape = { v:size(1) }, n = v:size(1) }
  for i, k in ipairs(c:list(winner)) do out[i] = labels[k + 1] end
  return out, y:to(moth.float32)
end, ML)

return { transforms = transforms, of_one_score = of_one_score }
