--- moth.tokenizer: text as ids and back.
--
--     local tk = moth.tokenizer.load "tokenizer.json"      -- or a model's folder; what data.Tokenizer makes
--     local ids = tk:encode "hello"                        -- from 1, as positions in Lua; in the file from 0
--     print(tk:decode(ids))
local signature = require "moth.utils.signature"

local M = {}

--- The tokenizer of a tokenizer.json, of a vocab.json with merges.txt beside it, or of a folder that has one of them.
M.load = signature("tokenizer.load(path path)", function(path) return require("moth.data").Tokenizer(path) end)

return M
