--- Compiles the floor (floor.c, floor_step.c, floor_products.c) into build/bench and opens it.
local ffi = require "ffi"

ffi.cdef [[
void *floor_buffer(int64_t bytes);
void floor_release(void *p);
void floor_pointwise(int op, float *o, const float *a, const float *b, int64_t n, int threads, int64_t times);
float floor_sum(const float *a, int64_t n, int threads, int64_t times);
void floor_softmax(float *o, const float *a, int64_t rows, int64_t n, int threads, int64_t times);
void floor_tiny(float *o, const float *a, const float *b, int grad, int64_t times);
void floor_chain(float *dx, const float *x, int n, int forward, int64_t times);
int floor_open_blas(const char *path);
void floor_gemm(float *c, const float *a, const float *b, int n, int threads, int64_t times);
int64_t floor_step_size(void);
void floor_step_init(const float *params);
void floor_step_params(float *params);
void floor_products(const int64_t *products, int n_products, const int64_t *passes, int n_passes, int threads,
  int64_t times);
float floor_step(const float *x, const int64_t *label, float p, int threads, int64_t times);
]]

local folder = "build/bench"
local flags = "-std=gnu17 -O3 -march=native -mprefer-vector-width=512 -fno-thread-jumps -fopenmp "
  .. "-ffp-contract=fast -fno-math-errno -fno-trapping-math -fPIC -shared -I. -D_GNU_SOURCE"

local function run(command)
  if os.execute(command) ~= 0 then error("bench: this command failed: " .. command, 0) end
end

run("mkdir -p " .. folder)
run(("gcc %s -o %s/floor.so bench/floor.c bench/floor_step.c bench/floor_products.c -ldl -lm"):format(flags, folder))
local C = ffi.load(folder .. "/floor.so")

-- The same file as kernels/cpu/blas.c opens.
local paths = {
  os.getenv("MOTH_BLAS") or "/usr/lib/x86_64-linux-gnu/openblas-openmp/libopenblas.so.0",
  "/usr/lib/aarch64-linux-gnu/openblas-openmp/libopenblas.so.0", "libopenblas.so.0",
}
local has_blas = false
for _, path in ipairs(paths) do has_blas = has_blas or C.floor_open_blas(path) ~= 0 end

local function numbers(list, columns)
  local c = ffi.new("int64_t[?]", columns * #list + 1)
  for i, p in ipairs(list) do
    for k = 1, columns do c[columns * (i - 1) + k - 1] = p[k] or 0 end
  end
  return c
end

--- A floor of matrix products and passes over memory. products: { { m, n, k, times }, … }; passes: { { floats read,
-- floats written, 1 if in place }, … }
local function products(list, passes, threads)
  local p, m = numbers(list, 4), numbers(passes, 3)
  return function(n) C.floor_products(p, #list, m, #passes, threads, n) end
end

return { C = C, folder = folder, has_blas = has_blas, products = products }
