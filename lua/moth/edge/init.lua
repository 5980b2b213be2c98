--- moth.edge: exported programs as files that C runs without Lua, by a library of a few hundred kilobytes.
--
--     local ep = moth.export(model:eval(), { x })
--     moth.edge.export(ep, "model.mte")
--
-- A file has the calls of kernels that the program comes down to. The library (`make edge`), its C API and what it is
-- not made for: docs/deploy.md. moth.edge.load runs a file in this process, by the same code.
local moth = require "moth"
local export = require "moth.export"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local lazy = require "moth.lang.lazy"

local M = {}

--- Writes an exported program to a file for the edge library. Dimensions of dynamic_shapes stay dynamic.
-- output_names: names of the outputs, else the keys of the tables that they stand in, or "output_1", …
--
-- moth.cond and moth.while_loop are branches and loops there. Parameters and buffers that the program writes to are
-- copied when the file is loaded, and keep what is written from run to run, until session:reset() (moth_edge_reset).
--
-- Errors: what the library cannot run: calls whose results' sizes depend on elements (nonzero), ops of one's own,
-- complex numbers, numbers that depend on a dynamic size in no way that can be followed, writes to operands of
-- moth.cond.
M.export = signature("edge.export(any program, path path, *, table output_names?)", function(ep, path, names)
  if not export.is_exported(ep) then
    check.fail("[edge.export] expected an exported program, got %s\nHINT: moth.export(model:eval(), { x }) makes one",
      require("moth.class").name(ep))
  end
  require("moth.edge.file").save(ep, path, { output_names = names })
end)

--- The file's program, run in this process by the code of the edge library on libmoth's kernels: a function of
-- tensors that returns tensors. To see what C will see.
M.load = signature("edge.load(path path)", function(path) return require("moth.edge.session").load(path) end)

lazy(M, "moth.edge.", {}, "moth.edge")
moth.edge = M
return M
