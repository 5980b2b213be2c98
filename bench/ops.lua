-- Every op of the table beside PyTorch's: build/moth bench/ops.lua [--threads=n] [--out=file] [--quick].
--
-- Rows are made of the records: the first sample that PyTorch takes, as it stands and with its sizes multiplied until
-- its largest tensor has a million elements or a call takes 20 ms; forward, and backward where there is a derivative.
-- The two take turns, with one thread by the processor's time, after a call that is not counted; medians of ratios
-- within a turn. Results are freed at once on both sides; bench/collector.lua measures what waiting for the collector
-- costs. Functions that are made of ops in Lua stand below. MOTH_OP=name (a pattern, or several with commas) restricts
-- the run. Sorted by ratio; --out appends the table to a file, --left lists the ops without a row, and why.
local ffi = require "ffi"
local cjson = require "cjson"
local B = require "moth_lua"
local moth = require "moth"
package.path = "./?.lua;" .. package.path
local support = require "spec.ops.support"

ffi.cdef [[struct ops_time { long s, ns; }; int clock_gettime(int clock, struct ops_time *t);]]
local options = moth.cli { { "--threads N", "", 1 }, { "--quick", "fewer turns" },
  { "--out FILE", "where the table is appended" }, { "--left", "lists the ops without a row, and why" } }
local at = ffi.new "struct ops_time"
local function now()
  ffi.C.clock_gettime(options.threads == 1 and 3 or 1, at) -- this thread's time, or the clock's
  return tonumber(at.s) + 1e-9 * tonumber(at.ns)
end
local TURNS, SECONDS, LARGE, LONGEST = options.quick and 3 or 7, 2e-3, 1e6, 0.02

-- Functions without a record: name, arguments by name in order, both texts, which of the arguments have a gradient.
local functions = {
  { "cosine_similarity", "x=randn(2000,256); y=randn(2000,256)",
    "F.cosine_similarity(x, y, 2)",
    "F.cosine_similarity(x, y, 1)", 2 },
  { "norm_rows", "x=randn(2000,500)", "x:norm(2, 2)", "x.norm(2, 1)", 1 },
  { "glu", "x=randn(1000,1000)", "F.glu(x)", "F.glu(x)", 1 },
  { "smooth_l1_loss", "x=randn(1000,1000); y=randn(1000,1000)",
    "F.smooth_l1_loss(x, y)",
    "F.smooth_l1_loss(x, y)", 1 },
  { "huber_loss", "x=randn(1000,1000); y=randn(1000,1000)", "F.huber_loss(x, y)", "F.huber_loss(x, y)", 1 },
  { "cdist", "x=randn(1000,128); y=randn(1000,128)", "moth.cdist(x, y)", "torch.cdist(x, y)", 2 },
  { "cdist_1", "x=randn(500,64); y=randn(500,64)", "moth.cdist(x, y, 1)", "torch.cdist(x, y, 1.0)", 2 },
  { "pdist", "x=randn(500,64)", "F.pdist(x)", "F.pdist(x)", 1 },
  { "repeat_interleave", "x=randn(1000,100)", "x:repeat_interleave(4, 1)", "x.repeat_interleave(4, 0)", 1 },
  { "grid_bilinear", "x=randn(4,32,64,64); y=rand(4,64,64,2)",
    "F.grid_sample(x, y)",
    "F.grid_sample(x, y, align_corners=False)", 2 },
  { "grid_bicubic", "x=randn(4,8,64,64); y=rand(4,64,64,2)",
    "F.grid_sample(x, y, 'bicubic')",
    "F.grid_sample(x, y, 'bicubic', align_corners=False)", 2 },
  { "bag_sum", "w=randn(10000,64); x=randint(1,10000,{8192}); o=starts(8192,16)",
    "F.embedding_bag(x, w, o, { mode = 'sum' })",
    "F.embedding_bag(x, w, o, mode='sum')", 1 },
  { "bag_mean", "w=randn(10000,64); x=randint(1,10000,{8192}); o=starts(8192,16)",
    "F.embedding_bag(x, w, o)",
    "F.embedding_bag(x, w, o)", 1 },
  { "bag_max", "w=randn(10000,64); x=randint(1,10000,{8192}); o=starts(8192,16)",
    "F.embedding_bag(x, w, o, { mode = 'max' })",
    "F.embedding_bag(x, w, o, mode='max')", 1 },
  { "multinomial_replaced", "x=rand(100000)", "x:multinomial(10000, true)", "x.multinomial(10000, True)", 0 },
  { "multinomial_once", "x=rand(4000)", "x:multinomial(4000)", "x.multinomial(4000)", 0 },
  { "mm_int64", "x=ints(256,256); y=ints(256,256)", "x:mm(y)", "x.mm(y)", 0 },
  { "product_bmm_8", "x=randn(1000,8,8); y=randn(1000,8,8)", "x:bmm(y)", "x.bmm(y)", 2 },
  { "product_bmm_16", "x=randn(1000,16,16); y=randn(1000,16,16)", "x:bmm(y)", "x.bmm(y)", 2 },
  { "product_bmm_33", "x=randn(200,33,33); y=randn(200,33,33)", "x:bmm(y)", "x.bmm(y)", 2 },
  { "product_bmm_64", "x=randn(100,64,64); y=randn(100,64,64)", "x:bmm(y)", "x.bmm(y)", 2 },
  { "product_bmm_16_double", "x=randn(1000,16,16):double(); y=randn(1000,16,16):double()", "x:bmm(y)", "x.bmm(y)", 2 },
  { "product_bmm_turned", "x=randn(500,16,32); y=randn(500,16,32)", "x:bmm(y.mT)", "x.bmm(y.mT)", 2 },
  { "product_bmm_heads", "x=randn(64,128,32); y=randn(64,128,32)", "x:bmm(y.mT)", "x.bmm(y.mT)", 2 },
  { "product_bmm_column", "x=randn(500,32,32); y=randn(500,32,1)", "x:bmm(y)", "x.bmm(y)", 2 },
  { "product_bmm_complex", "x=pairs_of(500,16,16); y=pairs_of(500,16,16)", "x:bmm(y)", "x.bmm(y)", 0 },
  { "product_baddbmm", "z=randn(500,16,16); x=randn(500,16,16); y=randn(500,16,16)",
    "z:baddbmm(x, y, 0.5, 2)",
    "torch.baddbmm(z, x, y, beta=0.5, alpha=2)", 3 },
  { "product_mm_16", "x=randn(16,16); y=randn(16,16)", "x:mm(y)", "x.mm(y)", 2 },
  { "product_mm_64", "x=randn(64,64); y=randn(64,64)", "x:mm(y)", "x.mm(y)", 2 },
  { "product_mm_96", "x=randn(96,96); y=randn(96,96)", "x:mm(y)", "x.mm(y)", 2 },
  { "product_mm_128", "x=randn(128,128); y=randn(128,128)", "x:mm(y)", "x.mm(y)", 2 },
  { "product_thin_m", "x=randn(32,512); y=randn(512,512)", "x:mm(y)", "x.mm(y)", 2 },
  { "product_thin_n", "x=randn(4096,256); y=randn(256,16)", "x:mm(y)", "x.mm(y)", 2 },
  { "product_thin_n_3", "x=randn(4096,64); y=randn(64,3)", "x:mm(y)", "x.mm(y)", 2 },
  { "product_thin_k", "x=randn(512,8); y=randn(8,512)", "x:mm(y)", "x.mm(y)", 2 },
  { "product_thin_k_2", "x=randn(1000,2); y=randn(2,300)", "x:mm(y)", "x.mm(y)", 2 },
  { "product_gram", "x=randn(10000,16)", "x.T:mm(x)", "x.T.mm(x)", 1 },
  { "product_mv", "x=randn(1024,1024); y=randn(1024)", "x:mv(y)", "x.mv(y)", 2 },
  { "product_mv_turned", "x=randn(1024,1024); y=randn(1024)", "x.T:mv(y)", "x.T.mv(y)", 2 },
  { "product_mv_small", "x=randn(64,64); y=randn(64)", "x:mv(y)", "x.mv(y)", 2 },
  { "product_mv_double", "x=randn(1024,1024):double(); y=randn(1024):double()", "x:mv(y)", "x.mv(y)", 2 },
  { "product_matmul_vector", "x=randn(2000,2000); y=randn(2000)", "x:matmul(y)", "x.matmul(y)", 2 },
  { "product_addmv", "z=randn(1024); x=randn(1024,1024); y=randn(1024)", "z:addmv(x, y)", "z.addmv(x, y)", 3 },
  { "product_outer", "x=randn(1000); y=randn(1000)", "x:outer(y)", "torch.outer(x, y)", 2 },
  { "product_dot", "x=randn(10000); y=randn(10000)", "x:dot(y)", "x.dot(y)", 2 },
  { "product_bilinear", "x=randn(64,20); y=randn(64,30); w=randn(40,20,30)",
    "F.bilinear(x, y, w)",
    "F.bilinear(x, y, w)", 3 },
  { "product_tensordot", "x=randn(20,30,40); y=randn(30,40,10)",
    "moth.tensordot(x, y, 2)",
    "torch.tensordot(x, y, 2)", 2 },
  { "product_kron", "x=randn(32,32); y=randn(32,32)", "moth.kron(x, y)", "torch.kron(x, y)", 2 },
  { "product_cross", "x=randn(100000,3); y=randn(100000,3)", "x:cross(y, 2)", "torch.cross(x, y, 1)", 2 },
  { "product_einsum_heads", "x=randn(8,32,4,16); y=randn(8,32,4,16)",
    "moth.einsum('bqhd,bkhd->bhqk', x, y)",
    "torch.einsum('bqhd,bkhd->bhqk', x, y)", 2 },
  { "product_einsum_mm", "x=randn(64,64); y=randn(64,64)",
    "moth.einsum('ij,jk->ik', x, y)",
    "torch.einsum('ij,jk->ik', x, y)", 2 },
  { "product_einsum_outer", "x=randn(300); y=randn(300)",
    "moth.einsum('i,j->ij', x, y)",
    "torch.einsum('i,j->ij', x, y)", 2 },
  { "product_einsum_rows", "x=randn(1000,64); y=randn(1000,64)",
    "moth.einsum('bi,bi->b', x, y)",
    "torch.einsum('bi,bi->b', x, y)", 2 },
  { "product_einsum_bilinear", "x=randn(64,20); y=randn(64,30); w=randn(40,20,30)",
    "moth.einsum('bi,kij,bj->bk', x, w, y)",
    "torch.einsum('bi,kij,bj->bk', x, w, y)", 3 },
  { "product_einsum_trace", "x=randn(100,32,32)", "moth.einsum('bii->b', x)", "torch.einsum('bii->b', x)", 1 },
  { "product_einsum_batch", "x=randn(100,16,16); y=randn(100,16,16)",
    "moth.einsum('bij,bjk->bik', x, y)",
    "torch.einsum('bij,bjk->bik', x, y)", 2 },
  { "product_einsum_flip", "x=randn(100,16,16); y=randn(100,16,16)",
    "moth.einsum('bij,bkj->kbi', x, y)",
    "torch.einsum('bij,bkj->kbi', x, y)", 2 },
  { "product_bfloat16_512", "x=randn(512,512):bfloat16(); y=randn(512,512):bfloat16()",
    "x:mm(y)",
    "x.mm(y)", 0 },
  { "product_bfloat16_64", "x=randn(64,64):bfloat16(); y=randn(64,64):bfloat16()",
    "x:mm(y)",
    "x.mm(y)", 0 },
  { "product_bfloat16_turned", "x=randn(512,512):bfloat16(); y=randn(512,512):bfloat16()",
    "x:mm(y.T)",
    "x.mm(y.T)", 0 },
  { "product_float16_512", "x=randn(512,512):half(); y=randn(512,512):half()",
    "x:mm(y)",
    "x.mm(y)", 0 },
  { "product_float16_bmm", "x=randn(200,32,32):half(); y=randn(200,32,32):half()",
    "x:bmm(y)",
    "x.bmm(y)", 0 },
  { "product_bfloat16_bmm", "x=randn(200,32,32):bfloat16(); y=randn(200,32,32):bfloat16()",
    "x:bmm(y)",
    "x.bmm(y)", 0 },
  { "product_solve", "x=randn(500,8,8); y=randn(500,8,2)", "moth.linalg.solve(x, y)", "torch.linalg.solve(x, y)", 0 },
  { "product_inv", "x=randn(500,8,8)", "moth.linalg.inv(x)", "torch.linalg.inv(x)", 0 },
  { "product_det", "x=randn(500,8,8)", "moth.linalg.det(x)", "torch.linalg.det(x)", 0 },
  { "product_cholesky", "x=rows_of(500,8)", "moth.linalg.cholesky(x)", "torch.linalg.cholesky(x)", 0 },
  { "matrix_exp", "x=randn(100,100)", "moth.linalg.matrix_exp(x * 0.1)", "torch.matrix_exp(x * 0.1)", 0 },
  { "floor_divide_int64", "x=ints(1000,1000)", "x:floor_divide(7)", "x.floor_divide(7)", 0 },
  { "remainder_int64", "x=ints(1000,1000)", "x:remainder(7)", "x.remainder(7)", 0 },
  { "fft2", "x=randn(32,128,128)", "moth.fft.fft2(x)", "torch.fft.fft2(x)", 0 },
  { "rfft_400", "x=randn(1000,400)", "moth.fft.rfft(x)", "torch.fft.rfft(x)", 0 },
  { "rfft_prime", "x=randn(200,509)", "moth.fft.rfft(x)", "torch.fft.rfft(x)", 0 },
  { "bincount", "x=randint(1,1000,{1000000})", "moth.bincount(x)", "torch.bincount(x)[1:]", 0 },
  { "bilinear", "x=randn(4,32,64,64)", "F.interpolate(x, {scale_factor = 2, mode = 'bilinear'})",
    "F.interpolate(x, scale_factor=2, mode='bilinear')", 1 },
  { "bicubic", "x=randn(4,16,64,64)", "F.interpolate(x, {scale_factor = 2, mode = 'bicubic'})",
    "F.interpolate(x, scale_factor=2, mode='bicubic')", 1 },
  { "conv3d_3", "x=randn(2,16,16,32,32); w=randn(32,16,3,3,3)", "F.conv3d(x, w, nil, 1, 1)",
    "F.conv3d(x, w, None, 1, 1)", 2 },
  { "depthwise_7", "x=randn(4,64,56,56); w=randn(64,1,7,7)", "F.conv2d(x, w, nil, 1, 3, 1, 64)",
    "F.conv2d(x, w, None, 1, 3, 1, 64)", 2 },
  { "patches_16", "x=randn(4,3,224,224); w=randn(384,3,16,16)", "F.conv2d(x, w, nil, 16)",
    "F.conv2d(x, w, None, 16)", 2 },
  { "sum_first", "x=randn(1000,1000)", "x:sum(1)", "x.sum(0)", 0 },
  { "sum_middle", "x=randn(100,100,100)", "x:sum(2)", "x.sum(1)", 0 },
  { "sum_int64", "x=ints(1000,1000)", "x:sum()", "x.sum()", 0 },
  { "amax_first", "x=randn(1000,1000)", "x:amax(1)", "x.amax(0)", 0 },
  { "max_last", "x=randn(1000,1000)", "(x:max(2))", "x.max(1)", 0 },
  { "softmax_channels", "x=randn(16,64,32,32)", "F.softmax(x, 2)", "F.softmax(x, 1)", 1 },
  { "searchsorted_1000", "x=ints(1000):float():sort(); y=randn(100000)", "moth.searchsorted(x, y)",
    "torch.searchsorted(x, y)", 0 },
  { "add_uint8", "x=bytes(1000,1000); y=bytes(1000,1000)", "x + y", "x + y", 0 },
  { "mul_uint8", "x=bytes(1000,1000); y=bytes(1000,1000)", "x * y", "x * y", 0 },
  { "mul_int32", "x=ints(1000,1000):int()", "x * x", "x * x", 0 },
  { "abs_complex64", "x=pairs_of(1000,1000)", "x:abs()", "x.abs()", 1 },
  { "sin_double", "x=randn(1000,1000):double()", "x:sin()", "x.sin()", 1 },
  { "exp_double", "x=randn(1000,1000):double()", "x:exp()", "x.exp()", 1 },
  { "log_double", "x=rand(1000,1000):double()", "x:log()", "x.log()", 1 },
  { "remainder_double", "x=randn(1000,1000):double()", "x:remainder(0.7)", "x.remainder(0.7)", 1 },
  { "copies_pad_constant", "x=randn(8,32,56,56)", "F.pad(x, {1,1,1,1})", "F.pad(x, (1,1,1,1))", 1 },
  { "copies_pad_reflect", "x=randn(8,32,56,56)", "F.pad(x, {1,1,1,1}, 'reflect')",
    "F.pad(x, (1,1,1,1), 'reflect')", 1 },
  { "copies_pad_replicate", "x=randn(8,32,56,56)", "F.pad(x, {1,1,1,1}, 'replicate')",
    "F.pad(x, (1,1,1,1), 'replicate')", 1 },
  { "copies_pad_circular", "x=randn(8,32,56,56)", "F.pad(x, {1,1,1,1}, 'circular')",
    "F.pad(x, (1,1,1,1), 'circular')", 1 },
  { "copies_pad_signal", "x=randn(1,2,400000)", "F.pad(x, {200,200}, 'reflect')", "F.pad(x, (200,200), 'reflect')", 1 },
  { "copies_repeat", "x=randn(200,250)", "x:repeat_(4, 5)", "x.repeat(4, 5)", 1 },
  { "copies_repeat_narrow", "x=randn(2000,5)", "x:repeat_(1, 50)", "x.repeat(1, 50)", 1 },
  { "copies_tile", "x=randn(1000)", "x:tile(1000, 1)", "x.tile((1000, 1))", 1 },
  { "copies_gather_last", "x=randn(1000,1000); i=randint(1,1000,{1000,500})", "x:gather(2, i)", "x.gather(1, i)", 1 },
  { "copies_gather_first", "x=randn(1000,1000); i=randint(1,1000,{500,1000})", "x:gather(1, i)", "x.gather(0, i)", 1 },
  { "copies_gather_one", "x=randn(10000,100); i=randint(1,100,{10000,1})", "x:gather(2, i)", "x.gather(1, i)", 1 },
  { "copies_gather_wide", "x=randn(1000,512); i=randint(1,1000,{500,1}):expand(500,512)", "x:gather(1, i)",
    "x.gather(0, i)", 1 },
  { "copies_scatter_last", "x=randn(1000,1000); y=randn(1000,500); i=randint(1,1000,{1000,500})",
    "x:scatter(2, i, y)", "x.scatter(1, i, y)", 2 },
  { "copies_scatter_add", "x=randn(1000,1000); y=randn(1000,500); i=randint(1,1000,{1000,500})",
    "x:scatter_add(2, i, y)", "x.scatter_add(1, i, y)", 2 },
  { "copies_take_along_dim", "x=randn(1000,1000); i=randint(1,1000,{1000,500})", "x:take_along_dim(i, 2)",
    "x.take_along_dim(i, 1)", 1 },
  { "copies_select_rows", "x=randn(10000,16); i=randint(1,10000,{20000})", "x:index_select(1, i)",
    "x.index_select(0, i)", 1 },
  { "copies_select_columns", "x=randn(1000,1000); i=randint(1,1000,{500})", "x:index_select(2, i)",
    "x.index_select(1, i)", 1 },
  { "search_small", "x=ints(100):float():sort(); y=randn(100)", "moth.searchsorted(x, y)",
    "torch.searchsorted(x, y)", 0 },
  { "search_bucketize_small", "x=ints(100):float():sort(); y=randn(100)", "moth.bucketize(y, x)",
    "torch.bucketize(y, x)", 0 },
  { "search_bucketize", "x=ints(100):float():sort(); y=randn(100000)", "moth.bucketize(y, x)",
    "torch.bucketize(y, x)", 0 },
  { "search_rows", "x=randn(1000,100):sort(2); y=randn(1000,100)", "moth.searchsorted(x, y)",
    "torch.searchsorted(x, y)", 0 },
  { "search_long", "x=randn(1000000):sort(); y=randn(100000)", "moth.searchsorted(x, y)",
    "torch.searchsorted(x, y)", 0 },
  { "bincount_few", "x=randint(1,10,{1000000})", "moth.bincount(x)", "torch.bincount(x)[1:]", 0 },
  { "bincount_weights", "x=randint(1,1000,{1000000}); y=randn(1000000)", "moth.bincount(x, y)",
    "torch.bincount(x, y)[1:]", 0 },
  { "bincount_many", "x=randint(1,1000000,{1000000})", "moth.bincount(x)", "torch.bincount(x)[1:]", 0 },
  { "bincount_small", "x=randint(1,10,{100})", "moth.bincount(x)", "torch.bincount(x)[1:]", 0 },
  { "quantile_rows", "x=randn(1000,1000)", "x:quantile(0.3, 2)", "x.quantile(0.3, 1)", 1 },
  { "quantile_all", "x=randn(1000,100)", "x:quantile(0.3)", "x.quantile(0.3)", 1 },
  { "cast_half_float", "x=randn(1000,1000):half()", "x:float()", "x.float()", 1 },
  { "cast_float_half", "x=randn(1000,1000)", "x:half()", "x.half()", 1 },
  { "cast_bfloat16_float", "x=randn(1000,1000):bfloat16()", "x:float()", "x.float()", 1 },
  { "cast_float_bfloat16", "x=randn(1000,1000)", "x:bfloat16()", "x.bfloat16()", 1 },
  { "cast_int64_float", "x=ints(1000,1000)", "x:float()", "x.float()", 0 },
  { "cast_float_int64", "x=randn(1000,1000)", "x:long()", "x.long()", 0 },
  { "erfinv_double", "x=rand(1000,100):double()", "x:erfinv()", "x.erfinv()", 1 },
}
local makers = setmetatable({
  randn = function(...) return moth.randn({ ... }) end, rand = function(...) return moth.rand({ ... }) end,
  randint = moth.randint, ints = function(...) return moth.randint(-50, 50, { ... }) end,
  bytes = function(...) return moth.randint(0, 200, { ... }):to(moth.uint8) end,
  rows_of = function(n, m)
    local x = moth.randn(n, m, m)
    return x:matmul(x.mT) + moth.eye(m)
  end,
  starts = function(n, each) return moth.arange(1, n + 1, each) end,
  pairs_of = function(...) return moth.complex(moth.randn({ ... }), moth.randn({ ... })) end,
}, { __index = _G })

-- ---- PyTorch ---------------------------------------------------------------------------------------

local folder = os.tmpname()
os.remove(folder)
os.execute("mkdir -p " .. folder)
local python = os.getenv "PYTHON" or "python3"
os.execute(("mkfifo %s/answers"):format(folder))
local to = io.popen(("exec env GOMP_SPINCOUNT=10000 %s -W ignore bench/ops_server.py > %s/answers 2> %s/errors"):format(
  python,
  folder, folder), "w")
local from = io.open(folder .. "/answers", "r")
local version = from:read "*l"
if not version then
  print "bench/ops.lua: python3 has no torch (PYTHON= names another)"
  return
end
version = cjson.decode(version).version
local function ask(q)
  to:write(cjson.encode(q), "\n")
  to:flush()
  local line = from:read "*l"
  return line and cjson.decode(line) or error("bench/ops_server.py ended: " .. folder .. "/errors", 0)
end
ask { threads = options.threads }
moth.set_num_threads(options.threads)

local files = 0
local function send(t, is_position)
  if is_position then t = t - 1 end
  t = t:contiguous()
  files = files + 1
  local path, n = ("%s/%d"):format(folder, files % 16), B.numel(t) * t:element_size()
  local f = io.open(path, "wb")
  f:write(n > 0 and ffi.string(ffi.cast("char *", B.pointer(t)), n) or "")
  f:close()
  local shape = {}
  for i, s in ipairs(B.size(t)) do shape[i] = s end
  return { file = path, dtype = B.tensor_dtype(t).name, shape = shape }
end

local function for_python(record, i, v)
  local a = record.args[i]
  if B.is_tensor(v) then return send(v, record.schema:find("IndexTensor%??!? " .. a.name .. "[,)= ]")) end
  if type(v) == "number" then
    if (a.type == "DIM" or a.type == "INDEX") and v > 0 then return v - 1 end
    if v ~= v or v == math.huge or v == -math.huge then return { number = tostring(v) } end
    return v
  end
  if type(v) == "table" then
    local list = {}
    for k, x in ipairs(v) do
      if B.is_tensor(x) then list[k] = send(x) else list[k] = a.type == "DIMS" and x > 0 and x - 1 or x end
    end
    return list
  end
  return v
end

-- ---- measuring -------------------------------------------------------------------------------------

-- Frees results, lists of results too.
local function release(y, ...)
  if B.is_tensor(y) then
    y:free()
  elseif type(y) == "table" then
    release(unpack(y))
  end
  if select("#", ...) > 0 then release(...) end
end
local function fresh(f)
  local x, y = f(), f()
  return not rawequal(x, y) -- an op may return its argument
end
local function seconds(f, n, after)
  local start = now()
  for _ = 1, n do after(f()) end
  return now() - start
end
local function median(list)
  table.sort(list)
  return list[math.ceil(#list / 2)]
end
local rows, left = {}, {}
-- One row: f of moth, and the question that prepares PyTorch's side.
local function measure(name, kind, f, question)
  question.seconds = SECONDS
  local answer = ask(question)
  if answer.error then return nil, answer.error end
  local y = f()
  if not question.grad[1] then
    y = type(y) == "table" and y[1] or y
    local shape = B.is_tensor(y) and table.concat(B.size(y), " ") or ""
    if shape ~= table.concat(answer.shape, " ") then return nil, "other results" end
  end
  local n, after = 1, fresh(f) and release or function() end
  seconds(f, 2, after) -- the first calls touch fresh memory
  while true do
    local took = seconds(f, n, after)
    if took >= SECONDS / 2 or n > 2 ^ 20 then break end
    n = math.max(n + 1, math.floor(n * math.min(10, SECONDS / math.max(took, 1e-9))))
  end
  local ratios, mine, theirs = {}, {}, {}
  for turn = 1, TURNS do
    local torch = ask({ run = true }).seconds
    seconds(f, 1, after) -- what the other side put into the caches
    mine[turn], theirs[turn] = seconds(f, n, after) / n, torch
    ratios[turn] = mine[turn] / torch
  end
  rows[#rows + 1] = { name = name, kind = kind, ratio = median(ratios), mine = median(mine), theirs = median(theirs) }
  return true
end

local function gradient(y, inputs)
  local g = moth.randn_like(y)
  return function() return moth.autograd.grad(y, inputs, g, { retain_graph = true, allow_unused = true }) end
end

-- The arguments of a sample, sizes multiplied by k; the elements of the largest tensor.
local function arguments(sample, k)
  local args = support.evaluate(sample, { dtype = "float32", seed = 1,
    scale = function(n) return n > 1 and n * k or n end })
  local largest = 0
  for i = 1, args.n or #args do
    local v = args[i]
    for _, t in ipairs(B.is_tensor(v) and { v } or type(v) == "table" and v or {}) do
      if B.is_tensor(t) then largest = math.max(largest, B.numel(t)) end
    end
  end
  return args, largest
end

local function op_rows(record)
  local fn = B.ops[record.name]
  local function rows_of(sample, k, size)
    local args = arguments(sample, k)
    local n = args.n or #args
    local list, grad, inputs = {}, {}, {}
    for i = 1, n do list[i] = for_python(record, i, args[i]) end
    local function call() return fn(unpack(args, 1, n)) end
    local ok, why = measure(record.name, size .. " forward", call, { op = record.name, args = list, grad = {} })
    if not ok or type(record.grad) == "string" and record.grad ~= "composite" then return ok, why end
    for i = 1, n do
      local v = args[i]
      if B.is_tensor(v) and B.tensor_dtype(v).is_floating_point and not record.args[i].mutated then
        v:requires_grad_(true)
        grad[#grad + 1], inputs[#inputs + 1] = i - 1, v
      end
    end
    local y = #grad > 0 and (call())
    if y and B.is_tensor(y) and B.requires_grad(y) then
      measure(record.name, size .. " backward", gradient(y, inputs),
        { op = record.name, args = list, grad = grad })
    end
    return true
  end
  local why
  for _, sample in ipairs(record.samples) do
    local done, ok, message = pcall(rows_of, sample, 1, "small")
    if done and ok then
      local k = 1
      pcall(function()
        while true do
          local _, largest = arguments(sample, k * 2)
          local args = arguments(sample, k * 2)
          if largest > LARGE then return end
          local function once() return fn(unpack(args, 1, args.n or #args)) end
          local took = seconds(once, 1, fresh(once) and release or function() end)
          if took > LONGEST or largest == select(2, arguments(sample, k)) then return end
          k = k * 2
        end
      end)
      if k > 1 then pcall(rows_of, sample, k, "large") end
      return
    end
    why = tostring(message or ok)
  end
  left[#left + 1] = ("%s (%s)"):format(record.name, (why or "no samples"):gsub("\n.*", ""))
end

local function asked(name)
  local only = os.getenv "MOTH_OP"
  for pattern in ((only or ".*") .. ","):gmatch "(.-)," do
    if name:find("^" .. pattern .. "$") then return true end
  end
end
for _, record in ipairs(support.records) do
  if asked(record.name) and record.kind ~= "effect" and record.kind ~= "random" and not record.returns_self then
    op_rows(record)
    collectgarbage()
  end
end
for _, f in ipairs(functions) do
  local name, given, code, python_code, ngrad = unpack(f)
  if asked(name) then
    local env = setmetatable({ F = moth.nn.functional, moth = moth }, { __index = makers })
    local names, grads, inputs, order = {}, {}, {}, {}
    for key, text in given:gmatch "(%w+)=([^;]+)" do
      env[key] = setfenv(assert(loadstring("return " .. text)), makers)()
      order[#order + 1] = key
    end
    for i, key in ipairs(order) do
      names[i] = { key, send(env[key], key == "i" or key == "o" or key == "x" and name:find "^bag") }
    end
    local call = setfenv(assert(loadstring("return " .. code), code), env)
    local function row(kind, f1, grad)
      local ok, why = measure(name, kind, f1, { code = python_code, names = names, grad = grad })
      if not ok then left[#left + 1] = ("%s (%s)"):format(name, why) end
    end
    row("function forward", call, {})
    if ngrad > 0 then
      for i = 1, ngrad do
        env[order[i]]:requires_grad_(true)
        grads[i], inputs[i] = i - 1, env[order[i]]
      end
      row("function backward", gradient((call()), inputs), grads)
    end
  end
end
to:close()
from:close()
os.execute("rm -rf " .. folder)

-- ---- the table -------------------------------------------------------------------------------------

table.sort(rows, function(a, b) return a.ratio > b.ratio end)
local function time(s) return s < 1e-3 and ("%.1f us"):format(s * 1e6) or ("%.2f ms"):format(s * 1e3) end
local logs, over, far = {}, 0, 0
local out = { "| op | row | moth | PyTorch | ratio |", "|---|---|---|---|---|" }
for _, r in ipairs(rows) do
  local kind = r.kind:match "^%w+"
  logs[kind] = logs[kind] or { 0, 0 }
  logs[kind][1], logs[kind][2] = logs[kind][1] + math.log(r.ratio), logs[kind][2] + 1
  over, far = over + (r.ratio > 1 and 1 or 0), far + (r.ratio > 1.1 and 1 or 0)
  out[#out + 1] = ("| %s | %s | %s | %s | %.2f |"):format(r.name, r.kind, time(r.mine), time(r.theirs), r.ratio)
end
out[#out + 1] = ""
local means = {}
for _, kind in ipairs { "small", "large", "function" } do
  local l = logs[kind]
  if l then means[#means + 1] = ("%s %.2f (%d)"):format(kind, math.exp(l[1] / l[2]), l[2]) end
end
out[#out + 1] = ("%d rows beside PyTorch %s, %d thread%s: %d above 1, %d above 1.1; geometric means: %s. \z
  Without a row: %d ops."):format(
  #rows, version, options.threads, options.threads == 1 and "" or "s", over, far, table.concat(means, ", "), #left)
local text = table.concat(out, "\n")
print(text)
if options.left then print(table.concat(left, "\n")) end
if options.out then
  local f = assert(io.open(options.out, "a"))
  f:write("\n", text, "\n")
  f:close()
end
