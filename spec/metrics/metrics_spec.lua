-- moth.metrics: values of torchmetrics 1.9 (spec/parity/metrics.py compares more of them), batches, ranks, mistakes.
local moth = require "moth"
local metrics = moth.metrics
local F = metrics.functional

local function ids(list) return moth.tensor(list, { dtype = moth.int64 }) end
local function close(want, got)
  assert.is_close(moth.tensor(want):double(), got:double(), { rtol = 1e-5, atol = 1e-6 })
end

local scores = moth.tensor { { 2, 1, 0.5, 0 }, { 0, 3, 1, -1 }, { 1, 0, 2, 3 }, { 4, 1, 3, 2 }, { 0, 1, 5, 2 },
  { 1, 2, 0, 0.5 } }
local truth = ids { 1, 2, 3, 3, 3, 1 }

describe("metrics of classes", function()
  it("average as asked", function()
    local function all(fn, options)
      local out = {}
      for i, average in ipairs { "micro", "macro", "weighted" } do
        options.average, options.num_classes = average, 4
        out[i] = F[fn](scores, truth, "multiclass", options):item()
      end
      return out
    end
    close({ 0.5, 0.458333, 0.5 }, moth.tensor(all("accuracy", {})))
    close({ 1, 1, 1 }, moth.tensor(all("accuracy", { top_k = 2 })))
    close({ 0.5, 0.5, 0.75 }, moth.tensor(all("precision", {})))
    close({ 0.5, 0.458333, 0.5 }, moth.tensor(all("recall", {})))
    close({ 0.5, 0.416667, 0.527778 }, moth.tensor(all("f1_score", {})))
    close({ 0.333333, 0.291667, 0.361111 }, moth.tensor(all("jaccard_index", {})))
    close({ 0.5, 1, 1 / 3, 0 }, F.accuracy(scores, truth, "multiclass", { num_classes = 4, average = "none" }))
    close({ 0.5, 0.5, 1, 0 }, F.precision(scores, truth, "multiclass", { num_classes = 4, average = "none" }))
  end)

  it("take class ids from 1, as predictions too, and leave out ignore_index", function()
    local said = scores:argmax(2)
    assert.equal(0.5, F.accuracy(said, truth, "multiclass", { num_classes = 4 }):item())
    assert.equal(0.5, F.accuracy(said, truth, "multiclass", { num_classes = 4, ignore_index = 1 }):item())
    assert.error_matches(function() F.accuracy(said, truth - 1, "multiclass", { num_classes = 4 }) end,
      "target must be from 1 to 4: class ids count from 1, got 0")
    assert.error_matches(function() F.accuracy(said, truth, "multiclass", { num_classes = 2 }) end, "got [34]")
    assert.error_matches(function() metrics.Accuracy "multiclass" end, "'multiclass' needs num_classes")
    assert.error_matches(function() metrics.F1Score("binary", { threshold = 2 }) end, "expected 0 to 1, got 2")
    assert.error_matches(function() metrics.FBetaScore("binary", { beta = -1 }) end, "beta must be above 0, got %-1")
    assert.error_matches(function() F.accuracy(scores, truth:reshape(2, 3), "multiclass", { num_classes = 4 }) end,
      "same shape, got %[6, 4%] and %[2, 3%]")
  end)

  it("take probabilities, logits and decisions of two classes", function()
    local t = ids { 0, 1, 1, 0 }
    for _, p in ipairs { moth.tensor { 0.2, 0.9, 0.4, 0.6 }, moth.tensor { -2, 3, -0.1, 0.2 }, ids { 0, 1, 0, 1 } } do
      assert.equal(0.5, F.accuracy(p, t, "binary"):item())
      assert.same({ { 1, 1 }, { 1, 1 } }, F.confusion_matrix(p, t, "binary"):tolist())
    end
    assert.equal(0.75, F.accuracy(moth.tensor { 0.2, 0.9, 0.4, 0.6 }, t, "binary", { threshold = 0.3 }):item())
    local p, l = moth.tensor { { 0.1, 0.9 }, { 0.8, 0.7 } }, ids { { 0, 1 }, { 0, 0 } }
    close({ 0.5, 0.5 }, F.accuracy(p, l, "multilabel", { num_labels = 2, average = "none" }))
    assert.same({ 2, 2, 2 }, F.confusion_matrix(p, l, "multilabel", { num_labels = 2 }).shape)
  end)

  it("count each class for each", function()
    local m = F.confusion_matrix(scores, truth, "multiclass", { num_classes = 4 })
    assert.same({ { 1, 1, 0, 0 }, { 0, 1, 0, 0 }, { 1, 0, 1, 1 }, { 0, 0, 0, 0 } }, m:tolist())
    m = F.confusion_matrix(scores, truth, "multiclass", { num_classes = 4, normalize = "true" })
    close({ 0.5, 0.5, 0, 0 }, m[1])
  end)

  it("measure the overlap of segments", function()
    local p, t = ids { { { 1, 1 }, { 2, 2 } } }, ids { { { 1, 2 }, { 2, 2 } } }
    close((1 / 2 + 2 / 3) / 2, F.mean_iou(p, t, 3, { input_format = "index" }))
    close({ 1 / 2, 2 / 3, -1 }, F.mean_iou(p, t, 3, { input_format = "index", per_class = true }))
    close((1 / 2 + 2 / 3) / 2, F.jaccard_index(p, t, "multiclass", { num_classes = 3 }))
  end)
end)

describe("metrics of scores", function()
  local p, t = moth.tensor { 0.1, 0.4, 0.35, 0.8, 0.4 }, ids { 0, 0, 1, 1, 1 }
  it("have the areas of sklearn, ties included", function()
    close(0.75, F.auroc(p, t, "binary"))
    close(0.805556, F.average_precision(p, t, "binary"))
    close(0.833333, F.auroc(p, t, "binary", { thresholds = 5 }))
    close(0.833333, F.average_precision(p, t, "binary", { thresholds = 5 }))
    close(0.666667, F.auroc(p, t, "binary", { max_fpr = 0.5 }))
    close({ 0.75, 1, 1, 0 }, F.auroc(scores, truth, "multiclass", { num_classes = 4, average = "none" }))
  end)
  it("have torchmetrics' values where a class is missing", function()
    assert.equal(0, F.auroc(p, t * 0, "binary"):item())
    assert.equal(0, F.average_precision(p, t * 0, "binary"):item())
    local ap = F.average_precision(scores, truth, "multiclass", { num_classes = 4, average = "none" })
    assert.is_true(ap[4]:isnan():item())
    assert.is_false(F.average_precision(scores, truth, "multiclass", { num_classes = 4 }):isnan():item())
    assert.error_matches(function() metrics.AUROC("binary"):compute() end, "%[AUROC%] there is no data")
    assert.error_matches(function() metrics.AUROC("binary", { thresholds = 1 }) end, "expected at least 2")
    local four, which = moth.tensor { 0.1, 0.4, 0.35, 0.8 }, ids { 0, 0, 1, 1 }
    for _, order in ipairs { { 0, 0.3, 0.38, 0.5, 1 }, { 1, 0.38, 0, 0.5, 0.3 } } do -- a list in any order
      assert.near(0.75, F.auroc(four, which, "binary", { thresholds = order }):item(), 1e-6)
    end
  end)
end)

describe("metrics of numbers and text", function()
  local p, t = moth.tensor { 2.5, 0, 2, 8 }, moth.tensor { 3, -0.5, 2, 7 }
  it("are those of sklearn", function()
    close(0.5, F.mean_absolute_error(p, t))
    close(0.375, F.mean_squared_error(p, t))
    close(math.sqrt(0.375), F.mean_squared_error(p, t, false))
    close(0.948608, F.r2_score(p, t))
    close({ 0.965438, 0.908163 }, F.r2_score(moth.tensor { { 0, 2 }, { -1, 2 }, { 8, -5 } },
      moth.tensor { { 0.5, 1 }, { -1, 1 }, { 7, -6 } }, { multioutput = "raw_values" }))
    assert.error_matches(function() F.r2_score(p[{ { 1 } }], t[{ { 1 } }]) end, "needs at least two samples, has 1")
    assert.error_matches(function() F.mean_squared_error(p, t:unsqueeze(1)) end, "%[4%] and %[1, 4%]")
  end)
  it("are recorded for gradients in their functional form, and not in their class", function()
    local x = p:clone():requires_grad_()
    F.mean_squared_error(x, t):backward()
    close({ -0.25, 0.25, 0, 0.5 }, x.grad)
    local m = metrics.MeanSquaredError()
    m:update(x, t)
    assert.is_false(m:compute():requires_grad())
  end)
  it("count the tokens of a language model", function()
    close(4, F.perplexity(moth.zeros(2, 3, 4), ids { { 1, 2, 3 }, { 4, 1, -100 } }, -100))
    local flat = moth.zeros({ 1, 1000, 5 }, { dtype = moth.bfloat16 }) -- the sum has more than 8 bits
    assert.near(5, F.perplexity(flat, moth.ones({ 1, 1000 }, { dtype = moth.int64 })):item(), 1e-4)
    assert.error_matches(function() F.perplexity(moth.zeros(2, 3), ids { { 1, 2, 3 } }) end, "batch, length, vocab")
  end)
  it("compare translations", function()
    local said = { "the cat is on the mat" }
    close(0.759836, F.bleu_score(said, { { "there is a cat on the mat", "a cat is on the mat" } }))
    assert.equal(0, F.bleu_score({ "nothing alike here" }, { "the cat is on the mat" }):item())
    close(1, F.bleu_score(said, { { { "the", "cat", "is", "on", "the", "mat" } } }))
    assert.error_matches(function() F.bleu_score(said, {}) end, "references for each of 1 sentences, got 0")
  end)
end)

describe("a metric", function()
  it("adds batches, gives the value of one, forgets", function()
    local m = metrics.Accuracy("multiclass", { num_classes = 4 })
    assert.equal(2 / 4, m(scores[{ { 1, 4 } }], truth[{ { 1, 4 } }]):item())
    assert.equal(1 / 2, m(scores[{ { 5, 6 } }], truth[{ { 5, 6 } }]):item())
    assert.equal(0.5, m:compute():item())
    m:reset()
    m:update(scores[{ { 2, 2 } }], truth[{ { 2, 2 } }])
    assert.equal(1, m:compute():item())
  end)

  it("goes on from its state, and joins those of others", function()
    for _, options in ipairs { {}, { thresholds = 9 } } do
      local function make() return metrics.AveragePrecision("binary", options) end
      local a, b, all = make(), make(), make()
      local p, t = moth.tensor { 0.3, 0.2, 0.9, 0.6, 0.5, 0.1 }, ids { 0, 1, 1, 0, 1, 0 }
      a:update(p[{ { 1, 3 } }], t[{ { 1, 3 } }])
      b:update(p[{ { 4, 6 } }], t[{ { 4, 6 } }])
      all:update(p, t)
      local c = make()
      c:load_state_dict(a:state_dict())
      c:merge_state(b)
      assert.equal(all:compute():item(), c:compute():item())
      assert.error_matches(function() c:merge_state(metrics.SumMetric()) end, "expected another %w+, got SumMetric")
      assert.error_matches(function() c:load_state_dict {} end, "load_state_dict: expected the state")
    end
  end)

  it("has the value of no data, and says so", function()
    local function nothing(m) return m:compute():item() end
    assert.equal(0, nothing(metrics.Accuracy "binary"))
    assert.equal(0, nothing(metrics.SumMetric()))
    assert.equal(-math.huge, nothing(metrics.MaxMetric()))
    assert.equal(math.huge, nothing(metrics.MinMetric()))
    for _, name in ipairs { "MeanMetric", "MeanSquaredError", "Perplexity" } do
      local v = nothing(metrics[name]())
      assert.is_true(v ~= v, name)
    end
  end)

  it("counts the last few numbers, or all", function()
    local mean, last, sum = metrics.MeanMetric(), metrics.RunningMean(2), metrics.RunningSum { window = 3 }
    for i = 1, 5 do
      mean:update(i, i)
      assert.equal(i, last(i):item())
      sum:update(i)
    end
    close(55 / 15, mean:compute())
    assert.equal(4.5, last:compute():item())
    assert.equal(12, sum:compute():item())
    local max = metrics.MaxMetric { nan_strategy = "ignore" }
    max:update { 1, 0 / 0, 3 }
    assert.equal(3, max:compute():item())
    assert.error_matches(function() metrics.SumMetric { nan_strategy = "error" }:update(0 / 0) end, "a value is NaN")
  end)

  it("stands in a collection by its name", function()
    local all = metrics.MetricCollection({ acc = metrics.Accuracy "binary", metrics.F1Score "binary" },
      { prefix = "val_" })
    all:update(moth.tensor { 0.9, 0.8 }, ids { 1, 0 })
    local v = all:compute()
    close(0.5, v.val_acc)
    close(2 / 3, v.val_F1Score)
    local again = metrics.MetricCollection({ acc = metrics.Accuracy "binary", F1Score = metrics.F1Score "binary" })
    again:load_state_dict(all:state_dict())
    close(2 / 3, again:compute().F1Score)
  end)

  it("is written in three functions", function()
    local Hits = metrics.Metric:subclass "Hits"
    function Hits:states() return { hits = moth.zeros({}, { dtype = moth.int64 }) } end -- luacheck: ignore self
    function Hits:measure(p, t) return { hits = p:eq(t):sum() } end -- luacheck: ignore self
    function Hits:result(s) return s.hits end -- luacheck: ignore self
    local m = Hits()
    m:update(ids { 1, 2 }, ids { 1, 3 })
    assert.equal(2, m(ids { 1, 2 }, ids { 1, 2 }):item())
    assert.equal(3, m:compute():item())
    assert.error_matches(function() metrics.Metric():compute() end, "has no states")
  end)

  it("counts what all ranks have seen, also where one has seen nothing", function()
    require("distributed.ranks").agree({ size = 3, code = [[
      local m = moth.metrics
      local function ids(t) return moth.tensor(t, { dtype = moth.int64 }) end
      local acc, auroc, max, mean = m.Accuracy("binary"), m.AUROC("binary"), m.MaxMetric(), m.MeanMetric()
      local p, t = moth.tensor { 0.3, 0.2, 0.9, 0.6 }, ids { 0, 1, 1, 0 }
      if rank < 2 then
        local from = rank == 0 and { 1, 3 } or { 4, 4 }
        acc:update(p[{ from }], t[{ from }])
        auroc:update(p[{ from }], t[{ from }])
        max:update(rank)
        mean:update(rank, 1 + rank)
      end
      for _ = 1, 2 do -- its own state is as before
        print(acc:compute():item(), auroc:compute():item(), max:compute():item())
        assert(math.abs(mean:compute():item() - 2 / 3) < 1e-6)
      end
      local own = m.SumMetric { sync_on_compute = false }
      own:update(rank)
      assert(own:compute():item() == rank)]] }, ("0.5\t0.5\t1\n"):rep(2))
  end)
end)
