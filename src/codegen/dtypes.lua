-- The dtypes as generated code sees them, in the order of MOTH_DTYPE_LIST (src/moth_dtypes.h).
--   stored   C type of an element in memory            real     C type that is computed in
--   kind     MOTH_REAL_KIND of kernels/math.h          form     0 stored is real, 1 float16, 2 bfloat16
--   part     of complex dtypes: C type of the real and the imaginary part
--   class    what records name in `dtypes`: float, int, bool; "uint" are the dtypes for storage and exchange, which an
--            op has if its record says so, as it has "complex"
--   suffix   of formulas in files of several dtypes
local M = {}

local function dtype(name, stored, real, kind, form, class, suffix, size)
  local d = { name = name, stored = stored, real = real, kind = kind, form = form, class = class, suffix = suffix,
    size = size, enum = "MOTH_" .. name:upper(), is_float = kind <= 2, index = #M }
  M[#M + 1], M[name] = d, d
end

dtype("float32", "float", "float", 1, 0, "float", "f32", 4)
dtype("float64", "double", "double", 2, 0, "float", "f64", 8)
dtype("float16", "uint16_t", "float", 1, 1, "float", "f32", 2)
dtype("bfloat16", "uint16_t", "float", 1, 2, "float", "f32", 2)
dtype("int8", "int8_t", "signed char", 3, 0, "int", "i8", 1)
dtype("uint8", "uint8_t", "unsigned char", 4, 0, "int", "u8", 1)
dtype("int16", "int16_t", "short", 3, 0, "int", "i16", 2)
dtype("int32", "int32_t", "int", 3, 0, "int", "i32", 4)
dtype("int64", "int64_t", "long long", 3, 0, "int", "i64", 8)
dtype("bool", "uint8_t", "unsigned char", 5, 0, "bool", "bool", 1)
dtype("uint16", "uint16_t", "unsigned short", 4, 0, "uint", "u16", 2)
dtype("uint32", "uint32_t", "unsigned int", 4, 0, "uint", "u32", 4)
dtype("uint64", "uint64_t", "unsigned long long", 4, 0, "uint", "u64", 8)
dtype("complex64", "struct complex_c64", "struct complex_c64", 6, 0, "complex", "c64", 8)
dtype("complex128", "struct complex_c128", "struct complex_c128", 7, 0, "complex", "c128", 16)
M.complex64.part, M.complex128.part = "float", "double"

return M
