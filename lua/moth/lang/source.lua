--- Compiles text that a record, a user or a file gave. Only source text: LuaJIT does not verify bytecode, so a chunk of
-- it that was made for the purpose can read and write any memory. Also used by the build (src/ops).
local M = {}

--- A chunk of statements, or nil and a message. name: as of load, "=file" or "@file".
function M.statements(text, name)
  if text:byte() == 27 then return nil, "this is bytecode; give source text" end
  return load(text, name, "t")
end

--- A chunk that returns an expression's values, or one of statements; nil and a message where text is neither.
function M.chunk(text, name)
  local chunk = load("return " .. text, name, "t")
  if chunk then return chunk end
  return M.statements(text, name)
end

return M
