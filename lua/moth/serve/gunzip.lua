--- Bodies that clients send compressed (Content-Encoding: gzip).
local ffi = require "ffi"
require "moth_lua" -- loads the library

ffi.cdef [[
int moth_serve_gunzip(const char *bytes, size_t n, size_t most, char **out, size_t *size) __asm__("moth_gunzip");
void moth_serve_gunzip_free(char *bytes) __asm__("moth_gunzip_free");
const char *moth_serve_last_error(void) __asm__("moth_last_error");]]
local C = ffi.load "libmoth.so"
local out, size = ffi.new "char *[1]", ffi.new "size_t[1]"

--- The text that was compressed; nil, a status and why: it is no gzip, or larger than `most` bytes.
return function(bytes, most)
  if C.moth_serve_gunzip(bytes, #bytes, most, out, size) ~= 0 then
    local why = ffi.string(C.moth_serve_last_error())
    if why:find("more than", 1, true) then return nil, 413, ("the body expands to over %.0f bytes"):format(most) end
    return nil, 400, "the body: " .. why
  end
  local text = ffi.string(out[0], size[0])
  C.moth_serve_gunzip_free(out[0])
  return text
end
