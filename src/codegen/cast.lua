-- Prints conversions between dtypes, for C and CUDA C from one description: an element of one dtype as one of another.
-- Float to integer: towards zero, out of range the nearest limit, NaN 0 (math_int.h). Integers wrap. Anything but 0 is
-- true. To 16 bits each value is rounded once, from whatever it was.
local dtypes = require "moth.codegen.dtypes"

local M = {}

-- All but the complex ones, which are converted as pairs of floats. They stand at the end of the list.
M.plain = {}
for _, d in ipairs(dtypes) do
  if d.class ~= "complex" then M.plain[#M.plain + 1] = d end
end

-- Integers that float32 does not hold go to 16 bits through double; those that double does not hold are first cut in a
-- way that the rounding does not see.
local exact = {
  float64 = "%s", int32 = "(double)%s", uint32 = "(double)%s",
  int64 = "m_i64_to_odd(%s)", uint64 = "m_u64_to_odd(%s)",
}

--- The text of x, an element of dtype `from`, as one of dtype `to`, and a list of the formulas in it (kernels/math*.h).
-- f16: the names of what reads and writes float16 where these are no formulas.
function M.value(to, from, x, f16)
  local used = {}
  local function formula(name, argument)
    used[#used + 1] = name
    return ("%s(%s)"):format(f16 and f16[name] or name, argument)
  end
  if from.form == 1 then x = formula("m_f16_to_f32", x) elseif from.form == 2 then x = formula("m_bf16_to_f32", x) end
  local text
  if to.class == "bool" then
    text = x .. " != 0"
  elseif not to.is_float then
    text = from.is_float and formula(from.name == "float64" and "m_from_f64" or "m_from_f32", x) or x
  elseif to.form == 0 then
    text = x
  elseif exact[from.name] then
    local odd = exact[from.name]:match("m_[%w_]+")
    if odd then used[#used + 1] = odd end
    text = formula(to.form == 1 and "m_f64_to_f16" or "m_f64_to_bf16", exact[from.name]:format(x))
  else
    text = formula(to.form == 1 and "m_f32_to_f16" or "m_f32_to_bf16", "(float)" .. x)
  end
  return ("(%s)(%s)"):format(to.stored, text), used
end

-- The formulas of all conversions into a dtype.
function M.formulas(to)
  local list = {}
  for _, from in ipairs(to.class ~= "complex" and M.plain or {}) do
    for _, name in ipairs(select(2, M.value(to, from, "x"))) do list[#list + 1] = name end
  end
  return list
end

local function name_of(to, from) return to == from and "copy_same" or "copy_from_" .. from.name end

local c_loop = [[
static void %s(char **p, const int64_t *s, int64_t n, const MothParam *k) {
  (void)k;
  if (s[0] == sizeof(%s) && s[1] == sizeof(%s)) {
    %s *o = (%s *)p[0];
    const %s *a = (const %s *)p[1];
    STRETCHES(o, n, from, end, %d, n) {
      if (far) {
        ASK_AHEAD_OUT(o, from, %d);
        ASK_AHEAD(a, from, %d);
      }
      MOTH_VECTOR for (int64_t i = from%s; i < end; i++) o[i] = %s;
    }
  } else {
    for (int64_t i = 0; i < n; i++)
      *(%s *)(p[0] + i * s[0]) = %s;
  }
}
]]

local c_same = [[
static void copy_same(char **p, const int64_t *s, int64_t n, const MothParam *k) {
  (void)k;
  if (s[0] == sizeof(%s) && s[1] == sizeof(%s)) {
    memmove(p[0], p[1], (size_t)n * sizeof(%s));
    return;
  }
  for (int64_t i = 0; i < n; i++)
    *(%s *)(p[0] + i * s[0]) = *(const %s *)(p[1] + i * s[1]);
}
]]

-- How many elements at the head of a stretch the processor's own instructions convert (kernels/cpu/f16.h).
local function by_instruction(to, from)
  local name = to.form == 1 and from.name == "float32" and "f16_narrow"
    or to.name == "float32" and from.form == 1 and "f16_widen"
  return name and (" + %s(o + from, a + from, end - from)"):format(name) or ""
end

--- The loops of type MothLoop into a dtype from each, and their names in the order of the dtypes. The text needs
-- kernels/cpu/loop.h and the formulas under their own names, of the dtype's kind. has(name): whether there is a loop
-- from that dtype, else "0" stands for its name; nil: from all.
function M.c(to, has)
  local t, names, o = {}, {}, to.stored
  local stretch = 1024 / to.size
  for i, from in ipairs(M.plain) do
    local a = from.stored
    names[i] = name_of(to, from)
    if has and not has(from.name) then
      names[i], t[i] = "0", ""
    elseif from == to then
      t[i] = c_same:format(o, o, o, o, o)
    else
      t[i] = c_loop:format(names[i], o, a, o, o, a, a, stretch, stretch, stretch, by_instruction(to, from),
        (M.value(to, from, "a[i]")), o,
        (M.value(to, from, ("*(const %s *)(p[1] + i * s[1])"):format(a))))
    end
  end
  return table.concat(t, "\n"), names
end

local cuda_loop = [[
struct %s_f {
  __device__ __forceinline__ %s operator()(%s x) const { return %s; }
};
static MothStatus %s(const MothPointwise *p) {
  return pointwise<%s_f, %s, %s>("%s", p, %s_f());
}
]]

--- The same for CUDA: functions of type MothCudaLoop. The text needs kernels/cuda/typed/pointwise.cuh.
function M.cuda(to)
  local t, names = {}, {}
  for i, from in ipairs(M.plain) do
    local name = name_of(to, from)
    local value = from == to and "x"
      or M.value(to, from, "x", { m_f16_to_f32 = "f16_load", m_f32_to_f16 = "f16_store" })
    names[i] = name
    t[i] = cuda_loop:format(name, to.stored, from.stored, value, name, name, to.stored, from.stored,
      from == to and "copy" or name, name)
  end
  return table.concat(t, "\n"), names
end

return M
