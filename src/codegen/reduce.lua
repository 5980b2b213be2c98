-- Prints reductions and scans of the loop IR, for typed kernels. As C (kernels/cpu/typed/reduce.h, scan.h): the loop
-- over a block of neighbouring elements, the loop across columns, and those of running results. As CUDA C
-- (kernels/cuda/typed/combine.cuh): the operator that the kernels there are instantiated with. The text says `real` and
-- `stored`: the file that includes it is compiled for one dtype. A reduction is
--   name   of the loops: block_<name>, cols_<name>, Reduce_<name>
--   join   how two partial results become one: a key of M.joins
--   value  the node that is joined for an element, load(1); shift() is a number of each result
--   staged whether the value is worth a pass of its own ahead of the joins: sums of float dtypes alone
-- On the CPU the order of the joins depends on the number of elements only: LANES (of short blocks: FEW) accumulators
-- side by side, which a fixed tree joins; blocks are joined in double or 64 bits. Flushing does the same for columns.
local M = {}

--   lane    the type of partial results inside a block; none, that of no elements
--   join    of two such; wide: of one and what is gathered over blocks, in the member `acc` of a MothParam
--   truth   whether partial results are integers for float dtypes, too, and results bytes
--   cuda    the types of partial results of a thread's elements and of more
--   tree    whether CUDA joins the elements of a thread pairwise, not one after the other: for exactness
--   scan    the type of running results, and of what is written; none: there are no such scans
M.joins = {
  sum = { lane = "sum_lane", none = "0", join = "M_JOIN_SUM", wide = "M_JOIN_SUM", acc = "WIDE(%s)",
    cuda = { "sum_lane", "sum_total" }, tree = true, scan = { "wide", "wide_stored" } },
  prod = { lane = "wide", none = "1", join = "M_JOIN_PROD", wide = "M_JOIN_PROD", acc = "WIDE(%s)",
    cuda = { "sum_total", "sum_total" }, scan = { "wide", "wide_stored" } },
  max = { lane = "real", none = "m_lowest()", join = "m_join_max", wide = "M_JOIN_MAX", acc = "WIDE(%s)",
    cuda = { "real", "real" }, scan = { "real", "stored" } },
  min = { lane = "real", none = "m_highest()", join = "m_join_min", wide = "M_JOIN_MIN", acc = "WIDE(%s)",
    cuda = { "real", "real" }, scan = { "real", "stored" } },
  any = { lane = "uint8_t", none = "0", join = "M_JOIN_ANY", wide = "M_JOIN_ANY", acc = "(%s).i", truth = true,
    cuda = { "unsigned", "unsigned" } },
  all = { lane = "uint8_t", none = "1", join = "M_JOIN_ALL", wide = "M_JOIN_ALL", acc = "(%s).i", truth = true,
    cuda = { "unsigned", "unsigned" } },
}

function M.shift() return { op = "shift" } end

local function uses_shift(node)
  if node.op == "shift" then return true end
  for _, argument in ipairs(node) do
    if uses_shift(argument) then return true end
  end
  return false
end

--- A node as C or CUDA C: `load` is the text of the element.
function M.expression(node, load)
  if node.op == "load" then return load end
  if node.op == "shift" then return "shift" end
  if node.op == "const" then return "((real)" .. node.text .. ")" end
  local list = {}
  for i, argument in ipairs(node) do list[i] = M.expression(argument, load) end
  return ("m_%s(%s)"):format(node.name, table.concat(list, ", "))
end

-- $NAME in a form by the values of a table.
local function fill(form, values) return (form:gsub("%$(%u+)", values)) end

-- lane[0] = n elements of `a` joined, WIDTH at a time.
local lane_loop = [[
    $LANE lane[$WIDTH];
    for (int k = 0; k < $WIDTH; k++)
      lane[k] = $NONE;
    int64_t i = 0;
    for (; i + $WIDTH <= n; i += $WIDTH)
      for (int k = 0; k < $WIDTH; k++) {
        $LANE x = ($LANE)$MAPK;
        lane[k] = $JOIN(x, lane[k]);
      }
    for (int k = 0; i + k < n; k++) {
      $LANE x = ($LANE)$MAPK;
      lane[k] = $JOIN(x, lane[k]);
    }
    for (int half = $WIDTH / 2; half; half /= 2)
      for (int k = 0; k < half; k++)
        lane[k] = $JOIN(lane[k], lane[k + half]);
    r = lane[0];
]]

local block = [[
/* *acc = *acc joined with n <= BLOCK elements: $WHAT */
static void block_$NAME(const stored *a, int64_t n, real shift, MothParam *acc) {
  (void)shift;
  $LANE r = $NONE;
  if (n < 2 * FEW) {
    for (int64_t i = 0; i < n; i++) {
      $LANE x = ($LANE)$MAPI;
      r = $JOIN(x, r);
    }
  } else if (n < LANES) {
$FEWLOOP  } else {
$LANESLOOP  }
  $ACC = $WIDE(r, $ACC);
}
]]

-- The values first, into a buffer: one vector body instead of one for each lane.
local staged = [[
/* *acc = *acc + the sum of n <= BLOCK elements: $WHAT */
static void block_$NAME(const stored *a, int64_t n, real shift, MothParam *acc) {
  real e[TMP];
  for (int64_t at = 0; at < n; at += TMP) {
    int64_t m = n - at < TMP ? n - at : TMP;
    for (int64_t i = 0; i < m; i++)
      e[i] = $MAPT;
    acc->d += (double)lane_sum(e, m);
  }
}
]]

local columns = [[
/* acc[c] = acc[c] joined with `rows` elements of column c. */
static void cols_$NAME(const char *in, int64_t row_stride, int64_t rows, int64_t n, const MothParam *shifts,
                       MothParam *acc) {
  $LANE part[COLS];
$SHIFTS  for (int64_t r = 0; r < rows;) {
    int64_t end = r + FLUSH < rows ? r + FLUSH : rows;
    for (int64_t c = 0; c < n; c++)
      part[c] = $NONE;
    for (; r + 4 <= end; r += 4) {
      const stored *a = (const stored *)(in + r * row_stride);
      const stored *b = (const stored *)((const char *)a + row_stride);
      const stored *d = (const stored *)((const char *)b + row_stride);
      const stored *e = (const stored *)((const char *)d + row_stride);
      MOTH_VECTOR for (int64_t c = 0; c < n; c++) {
$SHIFT        $LANE w = ($LANE)$MAPA, x = ($LANE)$MAPB;
        $LANE y = ($LANE)$MAPD, z = ($LANE)$MAPE;
        $LANE wx = $JOIN(w, x), yz = $JOIN(y, z);
        $LANE all = $JOIN(wx, yz);
        part[c] = $JOIN(all, part[c]);
      }
    }
    for (; r < end; r++) {
      const stored *a = (const stored *)(in + r * row_stride);
      MOTH_VECTOR for (int64_t c = 0; c < n; c++) {
$SHIFT        $LANE x = ($LANE)$MAPA;
        part[c] = $JOIN(x, part[c]);
      }
    }
    MothParam *restrict acc_of = acc;
    for (int64_t k = 0; k < n; k++)
      $ACCK = $WIDE(part[k], $ACCK);
  }
}
]]

local function values_of(r)
  local join = M.joins[r.join]
  local function map(element) return M.expression(r.value, "LOAD(" .. element .. ")") end
  return { NAME = r.name, WHAT = r.what, LANE = join.lane, NONE = join.none, JOIN = join.join, WIDE = join.wide,
    MAPI = map "a[i]", MAPK = map "a[i + k]",
    MAPA = map "a[c]", MAPB = map "b[c]", MAPD = map "d[c]", MAPE = map "e[c]",
    MAPT = map "a[at + i]",
    ACC = join.acc:format("*acc"), ACCK = join.acc:format("acc_of[k]") }
end

--- The loop over a block of neighbouring elements: block_<name>.
function M.block(r)
  local v = values_of(r)
  if r.staged then return fill(staged, v) end
  v.WIDTH = "FEW"
  v.FEWLOOP = fill(lane_loop, v)
  v.WIDTH = "LANES"
  v.LANESLOOP = fill(lane_loop, v)
  return fill(block, v)
end

-- What blocks, pieces and threads have gathered, for all dtypes that gather it in the same type.
local partials = [[
static void none_$SUFFIX(MothParam *acc, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    acc[i].$MEMBER = $NONE;
}
static void join_$SUFFIX(MothParam *restrict acc, const MothParam *restrict part, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    acc[i].$MEMBER = $WIDE(part[i].$MEMBER, acc[i].$MEMBER);
}
]]

--- The joins of partial results for float64 or int64, which stand for all float dtypes and all others: none_<suffix>,
-- which writes those of no elements, and join_<suffix>. Returns their text and the suffix. done: formulas.text.
function M.partials(name, d, formulas, done)
  local join = M.joins[name]
  local none = join.none:match("^(m_%w+)%(%)$")
  local used = { join.wide, none }
  local suffix = name .. "_" .. d.suffix
  return formulas.text(used, d, done) .. "\n" .. fill(partials, { SUFFIX = suffix, MEMBER = d.is_float and "d" or "i",
    NONE = none and formulas.name(none, d) .. "()" or join.none, WIDE = formulas.name(join.wide, d) }), suffix
end

--- The loop across columns: cols_<name>.
function M.columns(r)
  local v = values_of(r)
  if uses_shift(r.value) then
    v.SHIFTS = "  real shift_of[COLS];\n  for (int64_t c = 0; c < n; c++)\n\z
      \32   shift_of[c] = shifts ? PARAM(shifts[c]) : 0;\n"
    v.SHIFT = "        real shift = shift_of[c];\n"
  else
    v.SHIFTS, v.SHIFT = "  (void)shifts;\n", ""
  end
  return fill(columns, v)
end

local scan = [[
/* Each element of a row joined with those before it: $WHAT */
static void scan_rows_$NAME(void *out, const void *in, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; r++) {
    const stored *a = (const stored *)in + r * n;
    $STORED *o = ($STORED *)out + r * n;
    $WIDE acc = $NONE;
    for (int64_t i = 0; i < n && !moth_stopped();) { /* a row may take long */
      int64_t end = n - i < SCAN_BLOCK ? n : i + SCAN_BLOCK;
      for (; i < end; i++) {
        acc = $JOIN(($WIDE)$MAPI, acc);
        o[i] = $PUTROW;
      }
    }
  }
}

/* The same down columns: n elements, `stride` apart. */
static void scan_cols_$NAME(void *out, const void *in, int64_t n, int64_t stride, int64_t cols) {
  for (int64_t from = 0; from < cols; from += SCAN_COLS) {
    int64_t m = cols - from < SCAN_COLS ? cols - from : SCAN_COLS;
    $WIDE acc[SCAN_COLS];
    for (int64_t c = 0; c < m; c++)
      acc[c] = $NONE;
    for (int64_t i = 0; i < n; i++) {
      const stored *a = (const stored *)in + i * stride + from;
      $STORED *o = ($STORED *)out + i * stride + from;
      MOTH_VECTOR for (int64_t c = 0; c < m; c++) {
        acc[c] = $JOIN(($WIDE)$MAPA, acc[c]);
        o[c] = $PUTCOL;
      }
    }
  }
}
]]

--- Running results of a join along rows and down columns: scan_rows_<name>, scan_cols_<name>.
function M.scan(r)
  local v, join = values_of(r), M.joins[r.join]
  v.WIDE, v.STORED = join.scan[1], join.scan[2]
  local put = join.scan[2] == "stored" and "STORE(%s)" or "STORE_WIDE(%s)"
  v.PUTROW, v.PUTCOL = put:format("acc"), put:format("acc[c]")
  return fill(scan, v)
end

local cuda = [[
struct Reduce_$NAME {
  typedef $LANE lane;
  typedef $TOTAL total;
  template <class T> static __device__ __forceinline__ T none() { return $NONE; }
  template <class T> static __device__ __forceinline__ T join(T a, T b) { return $JOIN(a, b); }
  static __device__ __forceinline__ lane of(real x) { return (lane)$MAP; }
  template <int V, int U>
  static __device__ __forceinline__ lane chunk(const real *x, long long, long long) {
    return $GATHER<Reduce_$NAME, V * U>(x);
  }
  static __device__ __forceinline__ total widen(lane a) { return (total)a; }
  static __device__ __forceinline__ void finish(const MothReduceOut &out, long long i, total a) {
    $PUT;
  }
};
]]

--- The operator of a reduction for CUDA: Reduce_<name>.
function M.cuda(r)
  local v, join = values_of(r), M.joins[r.join]
  local map = M.expression(r.value, "x")
  v.LANE, v.TOTAL, v.MAP = join.cuda[1], join.cuda[2], join.truth and "(" .. map .. " != 0)" or map
  v.GATHER = join.tree and "gather_tree" or "gather_line"
  v.PUT = (join.truth and "put_truth" or v.TOTAL == "real" and "put_element" or "put_finished") .. "(out, i, a)"
  return fill(cuda, v)
end

local cuda_scan = [[
struct Scan_$NAME {
  typedef $TOTAL total;
  typedef $STORED element;
  template <class T> static __device__ __forceinline__ T none() { return $NONE; }
  template <class T> static __device__ __forceinline__ T join(T a, T b) { return $JOIN(a, b); }
  static __device__ __forceinline__ total of(real x) { return (total)$MAP; }
  static __device__ __forceinline__ element put(total a) { return $PUT; }
};
]]

--- The same of a scan: Scan_<name>.
function M.cuda_scan(r)
  local v, join = values_of(r), M.joins[r.join]
  v.TOTAL, v.STORED, v.MAP = join.cuda[2], join.scan[2], M.expression(r.value, "x")
  v.PUT = join.scan[2] == "stored" and "STORE(a)" or "STORE_WIDE(a)"
  return fill(cuda_scan, v)
end

return M
