--- Files tokenizer.json: those that load encode and decode a text.
local moth = require "moth"
local damage = require "fuzz.damage"

local bpe = '{"version":"1.0","added_tokens":[{"id":6,"content":"<s>","special":true,"lstrip":false,"rstrip":true},'
  .. '{"id":7,"content":"<pad>","special":false}],"normalizer":NORMAL,"pre_tokenizer":PRE,"post_processor":POST,'
  .. '"decoder":null,"model":{"type":"BPE","unk_token":"?","fuse_unk":true,"byte_fallback":FALLBACK,'
    .. '"ignore_merges":false,'
  .. '"vocab":{"?":0,"a":1,"b":2,"ab":3,"\226\150\129":4,"<0x41>":5,"\196\160":8,"c":9,"abc":10},'
    .. '"merges":["a b",["ab","c"]]}}'
local function file(o)
  return damage.json_seed((bpe:gsub("%u%u%u+", function(word) return o[word] end)))
end
local template = '{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],'
  .. '"special_tokens":{"<s>":{"ids":[6],"tokens":["<s>"]}}}'
-- Other steps: a pattern, added tokens of each kind, a chain of decoders.
local others = '{"added_tokens":[{"id":6,"content":"<s>","special":true,"lstrip":true,"rstrip":true,'
  .. '"normalized":false,"single_word":false},{"id":7,"content":"ab","single_word":true,"normalized":true}],'
  .. '"normalizer":{"type":"Replace","pattern":'
  .. '{"Regex":"a{2,3}+|[^\\\\p{L}&&[b-d]]"},"content":"a"},"pre_tokenizer":{"type":"Sequence",'
  .. '"pretokenizers":[{"type":"Split","pattern":'
  .. '{"Regex":"(?i:\'s|b)|(?<=a)c?|[\\\\p{Lu}[a-z]]+?(?=\\\\s)|\\\\s+(?!\\\\S)"},"behavi'
  .. 'or":"MergedWithNext","invert":false},{"type":"Punctuation","behavior":"Isolated"}]},"decoder":{"type":"Sequence",'
  .. '"decoders":[{"type":"Replace","pattern":{"String":"b"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},'
  .. '{"type":"Strip","content":" ","start":1,"stop":0}]},"model":{"type":"WordLevel","unk_token":"?","vocab":'
  .. '{"?":0,"a":1,"b":2,"c":3,"<0x41>":5}}}'
local seeds = {
  damage.json_seed(others),
  file { NORMAL = "null", PRE = '{"type":"ByteLevel","add_prefix_space":true,"use_regex":true}', POST = "null",
    FALLBACK = "false" },
  file { NORMAL = '{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\226\150\129"},{"type":"Replace",'
    .. '"pattern":{"String":" "},"content":"\226\150\129"}]}', PRE = "null", POST = template, FALLBACK = "true" },
  file { NORMAL = '{"type":"NFC"}', PRE = '{"type":"Sequence","pretokenizers":[{"type":"Metaspace","replacement":'
    .. '"\226\150\129","prepend_scheme":"first","split":true}]}', POST = '{"type":"Sequence","processors":[' .. template
    .. "]}", FALLBACK = "false" },
}

local M = {}

function M.make(c)
  local seed = c:pick(seeds)
  if c:one_in(8) then return damage.bytes(c, seed.text) end
  return damage.json(c, seed, seeds)
end

function M.read(bytes, running, at)
  local f = assert(io.open(at, "wb"))
  f:write(bytes)
  f:close()
  local tokenizer = moth.tokenizer.load(at)
  running()
  local ids = tokenizer:encode("abc <s> ab A\195\164\255 c", true)
  tokenizer:decode(ids, true)
  return "ran"
end

return M
