-- Operators of ai.onnx.ml: trees, lines and what stands around them in files of scikit-learn, LightGBM and XGBoost. The
-- values are those of onnxruntime for the same files, but for the two named below.
local moth = require "moth"
local messages = require "moth.onnx.messages"
local path = os.tmpname()

local function model(op, attributes, names, opset)
  local outputs = {}
  for i, name in ipairs(names) do outputs[i] = messages.value(name, "float32", { "?" }) end
  local node = messages.node(op, { "x" }, names, attributes, "n", ""):string(7, "ai.onnx.ml")
  local graph = messages.graph("g", { node }, { messages.value("x", "float32", { "N", 2 }) }, outputs)
  local m = messages.model(graph, 17)
  m:add(8, messages.new():string(1, "ai.onnx.ml"):int(2, opset or 3))
  messages.write(m, path)
end

local function run(op, attributes, x, names, opset)
  model(op, attributes, names or { "y" }, opset)
  local session = moth.onnx.InferenceSession(path)
  session:run(nil, { x = x })
  return session:run(nil, { x = x }) -- again: the recorded program
end

local function f32(list) return moth.tensor(list, { dtype = moth.float32 }) end
local X = f32 { { -1, 0 }, { 1, 0 }, { 1, 3 }, { 0 / 0, 3 } }

-- Two trees: x1 <= 0 ? leaf 1 : (x2 > 2 ? leaf 3 : leaf 4), NaN as true; and x2 < 1 ? leaf 1 : leaf 2.
local function nodes(more)
  local t = { { "nodes_treeids", { 0, 0, 0, 0, 0, 1, 1, 1 } }, { "nodes_nodeids", { 0, 1, 2, 3, 4, 0, 1, 2 } },
    { "nodes_featureids", { 0, 0, 1, 0, 0, 1, 0, 0 } },
    { "nodes_missing_value_tracks_true", { 1, 0, 0, 0, 0, 0, 0, 0 } },
    { "nodes_modes", { "BRANCH_LEQ", "LEAF", "BRANCH_GT", "LEAF", "LEAF", "BRANCH_LT", "LEAF", "LEAF" } },
    { "nodes_truenodeids", { 1, 0, 3, 0, 0, 1, 0, 0 } }, { "nodes_falsenodeids", { 2, 0, 4, 0, 0, 2, 0, 0 } },
    { "nodes_values_as_tensor", f32 { 0, 0, 2, 0, 0, 1, 0, 0 } } }
  for _, pair in ipairs(more) do t[#t + 1] = pair end
  return t
end

local function weights(what, ids, list)
  return { what .. "_treeids", { 0, 0, 0, 1, 1 } }, { what .. "_nodeids", { 1, 3, 4, 1, 2 } }, { what .. "_ids", ids },
    { what .. "_weights_as_tensor", f32(list) }
end

local function rounded(t) return ((t:double() * 1e4):round() / 1e4):totable() end

describe("moth.onnx, ai.onnx.ml", function()
  teardown(function() os.remove(path) end)

  it("trees that give numbers: sums, means, least and largest, with base values", function()
    local a, b, c, d = weights("target", { 0, 0, 0, 0, 0 }, { 1, 2, 4, 8, 16 })
    local function of(how) return run("TreeEnsembleRegressor", nodes { a, b, c, d, { "n_targets", 1 },
      { "aggregate_function", how }, { "base_values_as_tensor", f32 { 100 } } }, X)[1]:reshape(-1):totable() end
    assert.same({ 109, 112, 118, 117 }, of "SUM")
    assert.same({ 104.5, 106, 109, 108.5 }, of "AVERAGE")
    assert.same({ 101, 104, 102, 101 }, of "MIN")
    assert.same({ 108, 108, 116, 116 }, of "MAX")
  end)

  it("of several numbers: trees of one each, and leaves of several", function()
    local a, b, c, d = weights("target", { 1, 1, 1, 0, 0 }, { 1, 2, 4, 8, 16 })
    local o = { a, b, c, d, { "n_targets", 3 } }
    local y = run("TreeEnsembleRegressor", nodes(o), X)[1]
    assert.same({ { 8, 1, 0 }, { 8, 4, 0 }, { 16, 2, 0 }, { 16, 1, 0 } }, y:totable())
    o[3] = { "target_ids", { 2, 1, 1, 0, 0 } }
    assert.same({ { 8, 0, 1 }, { 8, 4, 0 }, { 16, 2, 0 }, { 16, 0, 1 } },
      run("TreeEnsembleRegressor", nodes(o), X)[1]:totable())
    o[6] = { "aggregate_function", "MAX" }
    assert.same({ { 8, 0, 1 }, { 8, 4, 0 }, { 16, 2, 0 }, { 16, 0, 1 } },
      run("TreeEnsembleRegressor", nodes(o), X)[1]:totable())
  end)

  it("trees that choose a class", function()
    local a, b, c, d = weights("class", { 0, 0, 0, 0, 0 }, { -1, 2, 4, -8, 16 })
    local o = { a, b, c, d, { "classlabels_strings", { "no", "yes" } }, { "post_transform", "LOGISTIC" } }
    local label, y = unpack(run("TreeEnsembleClassifier", nodes(o), X, { "label", "y" }))
    assert.same({ "no", "no", "yes", "yes" }, { label[1], label[2], label[3], label[4] })
    assert.same({ { 0.9999, 0.0001 }, { 0.982, 0.018 }, { 0, 1 }, { 0, 1 } }, rounded(y))
    -- Of several classes the one of the largest score. Where there are two, and both have scores, onnxruntime 1.32
    -- gives 1 where the second score is above 0, whatever the labels and the first score are.
    a, b, c, d = weights("class", { 0, 1, 1, 0, 1 }, { 1, 2, 4, 8, 16 })
    o = { a, b, c, d, { "classlabels_int64s", { 30, 20 } } }
    label, y = unpack(run("TreeEnsembleClassifier", nodes(o), X, { "label", "y" }))
    assert.same({ 30, 30, 20, 20 }, label:totable())
    assert.same({ { 9, 0 }, { 8, 4 }, { 0, 18 }, { 1, 16 } }, y:totable())
    o[5] = { "classlabels_int64s", { 30, 20, 10 } }
    assert.same({ 30, 30, 20, 20 }, run("TreeEnsembleClassifier", nodes(o), X, { "label", "y" })[1]:totable())
  end)

  it("TreeEnsemble of version 5, with sets of members", function()
    local modes = moth.tensor({ 6, 0 }, { dtype = moth.uint8 })
    local function of(more)
      local o = { { "tree_roots", { 0 } }, { "nodes_modes", modes }, { "nodes_featureids", { 0, 1 } },
        { "nodes_splits", f32 { 0, 1 } }, { "nodes_truenodeids", { 0, 1 } }, { "nodes_trueleafs", { 1, 1 } },
        { "nodes_falsenodeids", { 1, 2 } }, { "nodes_falseleafs", { 0, 1 } }, { "leaf_targetids", { 0, 1, 0 } },
        { "leaf_weights", f32 { 1, 2, 3 } }, { "n_targets", 2 }, { "membership_values", f32 { 1, 5, 0 / 0 } } }
      for _, pair in ipairs(more or {}) do o[#o + 1] = pair end
      return run("TreeEnsemble", o, f32 { { 1, 0 }, { 5, 9 }, { 2, 0 }, { 2, 2 } }, nil, 5)[1]
    end
    assert.same({ { 1, 0 }, { 1, 0 }, { 0, 2 }, { 3, 0 } }, of():totable())
    -- The format's numbers: 1 is SOFTMAX, 2 is LOGISTIC; onnxruntime 1.32 has them the other way round.
    assert.same({ 0.7311, 0.2689 }, rounded(of { { "post_transform", 1 } })[1])
    assert.same({ 0.7311, 0.5 }, rounded(of { { "post_transform", 2 } })[1])
  end)

  it("trees are read as programs, too, and damaged ones are refused", function()
    local a, b, c, d = weights("target", { 0, 0, 0, 0, 0 }, { 1, 2, 4, 8, 16 })
    local o = nodes { a, b, c, d, { "n_targets", 1 } }
    model("TreeEnsembleRegressor", o, { "y" })
    local ep = moth.onnx.load(path)
    assert.same({ { 9 }, { 12 }, { 18 }, { 17 } }, ep(X):totable())
    assert.same({ { 12 } }, ep(X:narrow(1, 2, 1)):totable())
    local function refused(at, value, why)
      local was = o[at]
      o[at] = { was[1], value }
      assert.error_matches(function() run("TreeEnsembleRegressor", o, X) end,
        "node 'n' %(TreeEnsembleRegressor%): " .. why)
      o[at] = was
    end
    refused(6, { 1, 0, 0, 0, 0, 1, 0, 0 }, "tree 0 has no root: its first node, 0, is below another")
    refused(6, { 1, 0, 2, 0, 0, 1, 0, 0 }, "its trees are deeper than 4096 nodes, or go round in a circle")
    refused(6, { 1, 0, 7, 0, 0, 1, 0, 0 }, "node 2 of tree 0 has a branch to none")
    refused(3, { 0, 0, 5, 0, 0, 1, 0, 0 }, "feature 5 of rows of 2")
    refused(5, { "BRANCH_LEQ", "LEAF", "BRANCH", "LEAF", "LEAF", "LEAF", "LEAF", "LEAF" }, "nodes_modes has 'BRANCH'")
    refused(11, { 0, 0, 0, 3, 0 }, "a weight for the target 3; there are 1, from 0")
    refused(10, { 1, 3, 4, 1, 9 }, "target_nodeids has node 9 of tree 1, which is none")
  end)

  it("lines: numbers, classes of one score and of several", function()
    local x = f32 { { -1, 2 }, { 1, 0 } }
    assert.same({ { 5, -3 }, { 11, 1 } }, run("LinearRegressor", { { "coefficients", { 1, -2, 2, 0 } },
      { "targets", 2 }, { "intercepts", { 10, -1 } } }, x)[1]:totable())
    local o = { { "coefficients", { 1, -1 } }, { "intercepts", { 1 } }, { "classlabels_ints", { 7, 9 } } }
    local label, y = unpack(run("LinearClassifier", o, x, { "label", "y" }))
    assert.same({ 7, 9 }, label:totable())
    assert.same({ { 3, -2 }, { -1, 2 } }, y:totable())
    o[4] = { "post_transform", "LOGISTIC" }
    assert.same({ { 0.8808, 0.1192 }, { 0.1192, 0.8808 } }, rounded(run("LinearClassifier", o, x, { "label", "y" })[2]))
    o = { { "coefficients", { 1, 0, 0, 1, -1, 0 } }, { "intercepts", { 0, 0, 0 } },
      { "classlabels_strings", { "a", "b", "c" } }, { "post_transform", "SOFTMAX" } }
    label, y = unpack(run("LinearClassifier", o, x, { "label", "y" }))
    assert.same({ "b", "a" }, { label[1], label[2] })
    assert.same({ 0.0351, 0.7054, 0.2595 }, rounded(y)[1])
    assert.error_matches(function() run("LinearRegressor", { { "coefficients", { 1 } } }, x) end,
      "1 coefficients for 2 features and 1 results")
  end)

  it("supports: numbers, one class, classes with and without probabilities", function()
    local x = f32 { { -1, 2 }, { 1, 0 } }
    local o = { { "kernel_type", "POLY" }, { "kernel_params", { 1, 1, 2 } }, { "n_supports", 2 },
      { "support_vectors", { 1, 0, 0, 1 } }, { "coefficients", { 1, -1 } }, { "rho", { 1 } } }
    assert.same({ { -8 }, { 4 } }, run("SVMRegressor", o, x)[1]:totable())
    o[7] = { "one_class", 1 }
    assert.same({ { -1 }, { 1 } }, run("SVMRegressor", o, x)[1]:totable())
    o = { { "kernel_params", { 1, 0, 1 } }, { "vectors_per_class", { 1, 1 } }, { "support_vectors", { 1, 0, 0, 1 } },
      { "coefficients", { 2, -1 } }, { "rho", { 0 } }, { "classlabels_ints", { 4, 6 } } }
    local label, y = unpack(run("SVMClassifier", o, x, { "label", "y" }))
    assert.same({ 6, 4 }, label:totable())
    assert.same({ { 4, -4 }, { -2, 2 } }, y:totable())
    o[7], o[8] = { "prob_a", { -1 } }, { "prob_b", { 0 } }
    label, y = unpack(run("SVMClassifier", o, x, { "label", "y" }))
    assert.same({ 6, 4 }, label:totable())
    assert.same({ { 0.018, 0.982 }, { 0.8808, 0.1192 } }, rounded(y))
  end)

  it("what stands before and behind: norms, what is missing, one of several, tables of scores", function()
    local x = f32 { { -1, 4 }, { 0, 0 } }
    assert.same({ { -0.2, 0.8 }, { 0, 0 } }, rounded(run("Normalizer", { { "norm", "L1" } }, x)[1]))
    assert.same({ { -0.25, 1 }, { 0, 0 } }, rounded(run("Normalizer", {}, x)[1]))
    assert.same({ { -0.2425, 0.9701 }, { 0, 0 } }, rounded(run("Normalizer", { { "norm", "L2" } }, x)[1]))
    assert.same({ { -1, 4 }, { 7, 8 } }, run("Imputer", { { "imputed_value_floats", { 7, 8 } } }, x)[1]:totable())
    assert.same({ { -1, 4, 0 }, { 0, 0, 0 } },
      run("FeatureVectorizer", { { "inputdimensions", { 3 } } }, x)[1]:totable())
    assert.same({ { { 0, 0 }, { 0, 1 } }, { { 1, 0 }, { 1, 0 } } },
      run("OneHotEncoder", { { "cats_int64s", { 0, 4 } } }, x)[1]:totable())
    assert.error_matches(function() run("OneHotEncoder", { { "cats_int64s", { 0, 4 } }, { "zeros", 0 } }, x) end,
      "an element is of no category")
    local maps = run("ZipMap", { { "classlabels_strings", { "no", "yes" } } }, x)[1]
    assert.same({ { no = -1, yes = 4 }, { no = 0, yes = 0 } }, { maps[1], maps[2] })
  end)
end)
