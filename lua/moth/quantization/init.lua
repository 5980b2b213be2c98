--- moth.quantization: networks with int8 and int4 weights; docs/quantization.md.
--
--     local q = moth.quantization
--     local m8 = q.quantize_dynamic(m, { nn.Linear }, { dtype = moth.int8 })      -- activations at run time
--     m.qconfig = q.get_default_qconfig("x86")
--     local p = q.prepare(m:eval()); for _, x in ipairs(data) do p(x) end           -- calibrated
--     local s8 = q.convert(p)
--     local t = q.prepare_qat(m:train()); train(t); local t8 = q.convert(t:eval())   -- trained with rounding
--     local m4 = q.quantize_weights(m, { bits = 4, group = 128, keep = { "lm_head" } })
--     print(q.compare(m, s8, batch))
local lazy = require "moth.lang.lazy"

local files = {}
for file, fields in require "moth.each" {
  observer = "Observer MinMaxObserver MovingAverageMinMaxObserver HistogramObserver PerChannelMinMaxObserver \z
    MovingAveragePerChannelMinMaxObserver",
  fake_quantize = "FakeQuantize GroupFakeQuantize enable_observer disable_observer enable_fake_quant \z
    disable_fake_quant freeze_bn_stats update_bn_stats",
  qconfig = "QConfig get_default_qconfig get_default_qat_qconfig",
  layers = "QuantizedLinear DynamicQuantizedLinear QuantizedConv2d QuantizedConv1d QuantizedEmbedding Int4Linear \z
    QuantStub DeQuantStub",
  blocks = "BlockLinear BlockEmbedding quantize_blocks",
  weights = "int8_weight int4_weight dequantize_int4",
  convert = "prepare prepare_qat convert quantize_dynamic quantize_weights",
  fuse = "fuse_modules", stochastic = "stochastic_int8", compare = "compare sqnr",
} do
  for field in fields:gmatch("%S+") do files[field] = { file, field } end
end

return lazy({}, "moth.quantization.", files, "moth.quantization")
