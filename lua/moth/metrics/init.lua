--- moth.metrics: how good a model is, batch by batch and over ranks (docs/metrics.md).
--
--     local accuracy = moth.metrics.Accuracy("multiclass", { num_classes = 10 })
--     for x, labels in loader:iter() do accuracy:update(model(x), labels) end
--     print(accuracy:compute():item())
--     accuracy:reset()
--     moth.metrics.functional.accuracy(logits, labels, "multiclass", { num_classes = 10 }) -- of one batch
--
-- Names, options and values are torchmetrics'; class ids count from 1.
local lazy = require "moth.lang.lazy"

local classes, functions = {}, {}
for file, names in require "moth.each" {
  metric = "Metric",
  classification = [[Accuracy=accuracy Precision=precision Recall=recall Specificity=specificity F1Score=f1_score
    FBetaScore=fbeta_score JaccardIndex=jaccard_index ConfusionMatrix=confusion_matrix MeanIoU=mean_iou]],
  ranking = "AUROC=auroc AveragePrecision=average_precision",
  regression = [[MeanAbsoluteError=mean_absolute_error MeanSquaredError=mean_squared_error
    MeanAbsolutePercentageError=mean_absolute_percentage_error R2Score=r2_score]],
  text = "Perplexity=perplexity BLEUScore=bleu_score",
  aggregation = "MeanMetric SumMetric MaxMetric MinMetric CatMetric Running RunningMean RunningSum MetricCollection",
} do
  for name, fn in names:gmatch "(%w+)=?([%w_]*)" do
    classes[name] = { file, name }
    if fn ~= "" then functions[fn] = { file, fn } end
  end
end

local M = lazy({}, "moth.metrics.", classes, "moth.metrics")
M.functional = lazy({}, "moth.metrics.", functions, "moth.metrics.functional")
return M
