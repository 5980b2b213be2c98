--- Regular expressions of files (tokenizer.json, ONNX), over UTF-8, by Oniguruma (libonig.so.5, opened when first
-- needed), the library that the tokenizers package has.
local ffi = require "ffi"
local check = require "moth.utils.check"
local open = require "moth.utils.library"
local unicode = require "moth.data.unicode"

local M = {}

ffi.cdef [[
typedef struct { int allocated, count, *first, *behind; void *history; } moth_onig_region;
typedef struct { void *encoding; uint8_t *at, *behind; } moth_onig_error;
extern uint8_t OnigEncodingUTF8[], OnigSyntaxRuby[], OnigSyntaxPython[];
int onig_initialize(void **encodings, int n);
int onig_new(void **regex, const uint8_t *text, const uint8_t *stop, unsigned options, void *encoding, void *syntax,
             moth_onig_error *error);
void onig_free(void *regex);
int onig_search(void *regex, const uint8_t *text, const uint8_t *stop, const uint8_t *from, const uint8_t *range,
                moth_onig_region *region, unsigned options);
moth_onig_region *onig_region_new(void);
void onig_region_free(moth_onig_region *region, int itself);
int onig_error_code_to_str(uint8_t *text, int code, ...);
int onigenc_is_valid_mbc_string(void *encoding, const uint8_t *text, const uint8_t *stop);
int onig_set_retry_limit_in_match(unsigned long n);
int onig_set_retry_limit_in_search(unsigned long n);
int onig_set_match_stack_limit_size(unsigned n);
]]

-- A pattern is a stranger's: steps back from one place, and of a search (0.5 s); entries of its stack, of 40 bytes.
local MOST_STEPS, MOST_STEPS_OF_ALL, MOST_STACK = 1e7, 1e8, 1e6
local MISMATCH, ERROR_TEXT = -1, 90

local onig, region
local function library()
  if onig then return onig end
  local lib = open "libonig.so.5"
  if not lib then return nil end
  local encodings = ffi.new("void *[1]", ffi.cast("void *", lib.OnigEncodingUTF8))
  if lib.onig_initialize(encodings, 1) ~= 0 then return nil end
  lib.onig_set_retry_limit_in_match(MOST_STEPS)
  lib.onig_set_retry_limit_in_search(MOST_STEPS_OF_ALL)
  lib.onig_set_match_stack_limit_size(MOST_STACK)
  onig, region = lib, ffi.gc(lib.onig_region_new(), function(r) lib.onig_region_free(r, 1) end)
  return onig
end

local function why(code, error)
  local text = ffi.new("uint8_t[?]", ERROR_TEXT)
  return ffi.string(text, onig.onig_error_code_to_str(text, code, error))
end

local function is_text(p, n) return onig.onigenc_is_valid_mbc_string(onig.OnigEncodingUTF8, p, p + n) ~= 0 end

-- A copy, a control character in place of each byte that is no part of UTF-8: Oniguruma trusts its texts.
local function text_of(p, n)
  local copy, i = ffi.new("uint8_t[?]", n), 0
  ffi.copy(copy, p, n)
  while i < n do
    local c, after = unicode.decode(p, i, n)
    if c < 0 then copy[i] = 0x1a end
    i = after
  end
  return copy
end

--- The search of a pattern: find(p, i, n) gives the first and the end of the first match from place i on in n bytes at
-- p (from 0, the end not included), or nil. The first search in a text is from place 0; till the next one from there
-- its bytes stay as they are. where: the function that errors name. syntax: "Ruby" (nil;
-- that of the tokenizers package) or "Python".
-- @return nil and why, where it is no pattern, or Oniguruma is not there
function M.compile(pattern, where, syntax)
  if not library() then return nil, "regular expressions need Oniguruma (libonig.so.5; Debian: libonig5)" end
  local bytes, out, error = ffi.cast("const uint8_t *", pattern), ffi.new "void *[1]", ffi.new "moth_onig_error"
  if not is_text(bytes, #pattern) then return nil, "it is no UTF-8" end
  syntax = onig["OnigSyntax" .. (syntax or "Ruby")]
  local code = onig.onig_new(out, bytes, bytes + #pattern, 0, onig.OnigEncodingUTF8, syntax, error)
  if code ~= 0 then return nil, why(code, error) end
  local regex = ffi.gc(out[0], onig.onig_free)
  local copy
  return function(p, i, n)
    if i == 0 then copy = not is_text(p, n) and text_of(p, n) or nil end
    local text = copy or p
    local at = onig.onig_search(regex, text, text + n, text + i, text + n, region, 0)
    if at >= 0 then return at, region.behind[0] end
    if at ~= MISMATCH then
      check.fail("[%s] the pattern %.99s in a text of %d bytes: %s", where, pattern, n, why(at, error))
    end
  end
end

return M
