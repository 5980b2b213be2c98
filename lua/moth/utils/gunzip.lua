--- Text that was compressed by gzip.
local ffi = require "ffi"
local B = require "moth_lua"

ffi.cdef [[
int moth_utils_gunzip(const char *bytes, size_t n, size_t most, char **out, size_t *size) __asm__("moth_gunzip");
void moth_utils_gunzip_free(char *bytes) __asm__("moth_gunzip_free");
const char *moth_utils_last_error(void) __asm__("moth_last_error");]]
local C = ffi.load(B.soname)
local out, size = ffi.new "char *[1]", ffi.new "size_t[1]"

--- The text that was compressed; nil and why: it is no gzip, or larger than `most` bytes, as the third value says.
return function(bytes, most)
  if C.moth_utils_gunzip(bytes, #bytes, most, out, size) ~= 0 then
    local why = ffi.string(C.moth_utils_last_error())
    return nil, why, why:find("more than", 1, true) ~= nil
  end
  local text = ffi.string(out[0], size[0])
  C.moth_utils_gunzip_free(out[0])
  return text
end
