-- Modules whose names are shorter than their paths: moth.func is moth.autograd.func. The build writes a file for each
-- (src/ops/gen.lua), so that `require "moth.func"` works by itself.
return {
  backends = "cuda.backends", bench = "utils.bench", capi = "lang.capi", cpp_extension = "library.extension",
  cpu = "device.cpu", fmt = "lang.fmt", func = "autograd.func", gradcheck = "autograd.gradcheck",
  inductor = "edge.inductor",
  interop = "io.interop", json = "io.json", ops = "dispatch.ops", testing = "utils.testing", trace = "lang.trace",
  transforms = "data.transforms", tree = "lang.tree",
}
