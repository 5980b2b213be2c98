"""The differences between moth and PyTorch's op database that are meant, each with its reason.

A rule selects differences by the name of the op (all of it), by the dtype ("error": an error input of the database) and
by the text that ops_check.py gives of the difference; all are regular expressions. A reason that selects nothing, and a
difference that no reason selects, end `make parity` with an error."""
import re


class Reason:
    def __init__(self, why, *rules):
        self.why = why
        self.rules = [tuple(re.compile(part) for part in rule) for rule in rules]

    def explains(self, name, dtype, what):
        return any(n.fullmatch(name) and d.fullmatch(dtype) and w.search(what) for n, d, w in self.rules)


INTS = "int64|int32|int16|int8|uint8"
HALVES = "float16|bfloat16"
COMPLEX = "complex128|complex64"
ANY = ".*"
BINARY = (r"__r\w+__|clamp_(min|max)|complex|copysign|eq|ne|ge|gt|le|lt|fmod|ldexp|logaddexp|logical_(and|or|xor)|maximum|"
          r"minimum|(max|min)\.binary|atan2")
BESSEL = r"special\.(bessel_[jy][01]|airy_ai)"

REASONS = [
    # ---- where PyTorch's result is the worse one ----
    Reason("second derivatives that are NaN in PyTorch and finite in moth: of norms, of -inf, of masked elements",
           (r"linalg\.(vector_)?norm(\.\w+)?|sinc|logaddexp2|masked\.logaddexp|special\.log_ndtr|nn\.functional\.\w+", "float64|complex128",
            r"^(second )?gradient \d+: finite where PyTorch's is not")),
    Reason("derivatives of elements that are infinite or NaN: 0 or infinite in moth, NaN in PyTorch, or one for the other",
           (r"special\.log_ndtr|logaddexp2|sinc|clamp", "float64", r"gradient \d+: values off")),
    Reason("the gradient of the tensor into which as_strided_scatter writes: PyTorch's is that of the places that are overwritten",
           ("as_strided_scatter", "float64|complex128", "^(second )?gradient 1: values off")),
    Reason("limits at infinities that PyTorch gives as NaN",
           (r"i0|special\.i1|" + BESSEL, "float64", r"values off.*PyTorch \[[^\]]*nan"),
           (r"special\.zeta", "float64", r"values off.*PyTorch \[[^\]]*nan")),
    Reason("polygamma at its poles: NaN, or infinite, in moth; PyTorch's is garbage (2e13), or infinite on one side",
           (r"(special\.)?polygamma\.\w+", r"int16|int8|uint8|bool", r"values off by .*; got \[(nan|inf|-inf|, )+\]")),
    Reason("bessel functions that PyTorch computes to some 8 digits",
           (r"special\.bessel_[jy][01]", "float64", r"values off by \d\.\d+e-0[78];")),
    Reason("PyTorch's gradient of ctc_loss is that by the logits, as if log_probs were nothing but their log_softmax",
           (r"nn\.functional\.ctc_loss", "float64", "gradient 1: values off")),
    Reason("images of uint8: PyTorch's weights are integers, of 1 / 2^15 or so",
           (r"nn\.functional\.(interpolate\.bi(linear|cubic)|upsample_bilinear)", "uint8", "result 1: values off by 1;")),
    Reason("imaginary parts of sums that are moved by turns, multiples of 2 pi: both are logarithms",
           ("logcumsumexp", COMPLEX, r"result 1: values off by (12\.6|18\.8);")),
    Reason("logit's eps above 0.5: its bounds change places", ("logit", ANY, r"result 1: values off by 0\.81\d;")),
    Reason("searchsorted: NaN is the largest number of a sorted list; PyTorch puts infinities behind it",
           ("searchsorted", "float64", "values off")),
    Reason("cov with weights: PyTorch divides by sums in float32",
           ("cov", "float64|complex128", r"values off by (\d\.\d*e-0\d|0\.138);")),
    Reason("differences of small integers, which PyTorch lets wrap around",
           ("(cumulative_)?trape?zo?i?d?", "int8|uint8", "values off"), (r"nn\.functional\.pairwise_distance", "uint8", "values off")),
    Reason("the database's positions of NaN: PyTorch shares nanmedian's gradient out to all of them", ("nanmedian", "float64", "gradient 1: values off")),
    # ---- dtypes ----
    Reason("any and all give bool; PyTorch gives uint8 for uint8", ("any|all", "uint8", "dtype torch.bool, PyTorch torch.uint8")),
    Reason("positions are int64; PyTorch's masked.argmax gives them in the dtype of the input",
           (r"masked\.arg(max|min)", ANY, r"dtype torch.int64, PyTorch")),
    Reason("variances of complex numbers are real, as those of moth.var; PyTorch's masked ones are complex",
           (r"masked\.(std|var)", COMPLEX, "dtype torch.float(64|32), PyTorch torch.complex")),
    Reason("logsumexp of integers is a float, as that of moth.logsumexp; PyTorch's masked one is cut to an integer",
           (r"masked\.logsumexp", INTS, r"dtype torch.float32, PyTorch|values off by (9\.54e-07|0\.0181);")),
    Reason("activations make floats of integers; PyTorch's hardtanh and relu6 keep them",
           (r"nn\.functional\.(hardtanh|relu6)", INTS, r"dtype torch.float32, PyTorch|values off by 0.5")),
    Reason("sums of integers are int64 in moth, and do not wrap around; PyTorch's einsum keeps small integers",
           ("einsum", "int32|int16|int8|uint8", "dtype torch.int64, PyTorch|values off by (256|512|768)")),
    Reason("sum_to_size keeps the dtype; PyTorch's is int64 for the size ()", ("sum_to_size", "bool|" + INTS, "PyTorch torch.int64")),
    Reason("square of bool is bool, as a product is; PyTorch takes it for a power", ("square", "bool", "dtype torch.bool, PyTorch torch.int64")),
    Reason("bincount sums weights that are integers as integers; PyTorch as float64", ("bincount", INTS, "PyTorch torch.float64")),
    Reason("cov keeps the dtype of its input; PyTorch promotes it with that of the weights", ("cov", HALVES, "PyTorch torch.float32")),
    # ---- refused with an error that says what to do ----
    Reason("numbers that do not fit into uint8 are refused; PyTorch lets them wrap around",
           ("arange|full_like|index_add|scalar_tensor", "uint8", "refused: .*out of the range of uint8")),
    Reason("beta and alpha must be integers for integers; PyTorch cuts 0.6 to 0", (r"add(bmm|mv)|baddbmm", INTS, "refused: .*beta and alpha must be integers")),
    Reason("beta and alpha are real numbers; a complex one is multiplied in", (r"add(bmm|mm|r)|baddbmm", COMPLEX, "refused: .*expected a number, got cdata")),
    Reason("complex numbers do not become real ones by the way: say moth.real(x)",
           (r"(log_)?softmax\.with_dtype|nn\.functional\.softmin\.with_dtype", COMPLEX, "refused: .*not implemented for complex")),
    Reason("linear's weight has two dimensions: x:matmul(w) is the product with a vector", (r"nn\.functional\.linear", "float64|complex128", r"refused: .*2 dimensions")),
    Reason("means of integers are floats: avg_pool needs x:float()", (r"nn\.functional\.avg_pool[123]d", "int64", "refused: .*float dtype")),
    Reason("nextafter is there for float32 and float64", ("nextafter", HALVES, "refused: .*expected two tensors of float32")),
    Reason("grid_sample's bicubic is for images", (r"nn\.functional\.grid_sample", "float64", "refused: .*images of 4 dimensions")),
    Reason("gather's index has as many dimensions as input, without elements, too", ("gather", ANY, "refused: .*as many dimensions")),
    Reason("batch_norm needs a dimension of channels, without elements, too", (r"nn\.functional\.batch_norm", ANY, r"refused: .*at least 2 dimensions")),
    Reason("tensordot's dimensions have equal sizes; PyTorch sums the other one where one is 1", ("tensordot", ANY, "refused: .*has size 1, dimension")),
    Reason("a size beyond 2^53 is no number of Lua", ("unravel_index", "int64", "refused: .*got cdata")),
    # ---- accepted where PyTorch is not ----
    Reason("a number may stand where PyTorch wants a tensor", (BINARY, "error", "no error where PyTorch says: $")),
    Reason("Lua has no integers beside floats: 1.0 is 1", (r"(lin|log)space(\.tensor_overload)?", "error", "int, int, float")),
    Reason("out= of another dtype takes the result converted, as copy_ does",
           ("amax|amin|complex|gather|multinomial", "error", "out|Long tensor")),
    Reason("windows are there in all float dtypes", (r"signal\.windows\.\w+", "error", r"expects float32 or float64 dtypes, got: torch\.b?float16")),
    Reason("weights are not read by cov: their sign is not checked", ("cov", "error", "weights cannot be negative")),
    Reason("tensors without elements give tensors without elements",
           (r"nn\.functional\.(group_norm|max_pool1d)", "error", "greater than 0|optional 0 dim batch size")),
    Reason("-1 keeps a size, as None does in PyTorch", (r"nn\.functional\.adaptive_(avg|max)_pool[123]d", "error", "negative dimension|greater than or equal to 0")),
    Reason("a 0-dim tensor has a dimension 1, as it has in sums", ("roll", "error", "Dimension specified as 0")),
    Reason("masked_fill's value broadcasts", ("masked_fill", "error", "0-dimensional value")),
    Reason("min_val above max_val gives max_val, as clamp does", (r"nn\.functional\.hardtanh", "error", "min_val cannot be greater")),
    # ---- the database ----
    Reason("no samples on a CPU", (r"jiterator\w+", ANY, "not run: PyTorch: Jiterator"),
           (r"torch\..*|.*\.without_cudnn", "none", "not run: not on a CPU")),
    Reason("random samples outside of [0, 1), where the database's are, have no meaning",
           (r"nn\.functional\.fractional_max_pool2d", "float64", "result 1: values off by 14.9")),
    Reason("arguments and results that cannot be written to a file of cases: objects of Python, dtypes that moth has not, lists with None",
           (ANY, ANY, r"not run: (an argument that is a|a list with None|a result of torch\.(uint|complex32)|the layout|can't convert meta)")),
    Reason("sparse tensors, which spec/sparse compares", (r"to_sparse|sparse\.(sampled_addmm|mm\.reduce)", ANY, "not run: ")),
    Reason("samples that PyTorch refuses itself, or that are larger than tensors of moth have dimensions (64)",
           (r"as_strided\.partial_views|kron", ANY, "not run: PyTorch: "), ("aminmax|amax|amin", "error", "not run: number of dimensions")),
]

COPY = "a view's copy, made for the compiler: x:%s(…):clone()"
INTERNAL = "an entry inside of PyTorch: %s is the function"
MISSING = {
    **{name + "_copy": COPY % name for name in (
        "alias", "as_strided", "diagonal", "expand", "narrow", "permute", "split_with_sizes", "squeeze", "t", "transpose",
        "unbind", "unfold", "unsqueeze", "view")},
    "_batch_norm_with_update": INTERNAL % "batch_norm", "_native_batch_norm_legit": INTERNAL % "batch_norm",
    "native_batch_norm": INTERNAL % "batch_norm", "native_layer_norm": INTERNAL % "layer_norm",
    "native_group_norm": INTERNAL % "group_norm", "native_dropout_backward": INTERNAL % "dropout",
    "max_pool2d_with_indices_backward": INTERNAL % "max_pool2d", "_softmax_backward_data": INTERNAL % "softmax",
    "_segment_reduce": INTERNAL % "scatter_reduce", "_chunk_cat": INTERNAL % "cat",
    "_unsafe_masked_index": INTERNAL % "x[{ … }]", "_unsafe_masked_index_put_accumulate": INTERNAL % "index_put",
    "_upsample_bilinear2d_aa": INTERNAL % "F.interpolate with antialias",
    "torch.ops.aten._safe_softmax.default": INTERNAL % "softmax",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": INTERNAL % "scaled_dot_product_attention",
    "resize_": "memory does not grow under a tensor: x:new_empty(size)", "resize_as_": "memory does not grow under a tensor: x:new_empty(size)",
    "jiterator_unary": "CUDA C in strings: moth.kernel and moth.library make such ops", "jiterator_binary": "see jiterator_unary",
    "jiterator_4inputs_with_extra_args": "see jiterator_unary", "jiterator_binary_return_by_ref": "see jiterator_unary",
    "jiterator_2inputs_2outputs": "see jiterator_unary",
    "to_sparse": "its results are no dense tensors; spec/sparse compares them", "sparse.sampled_addmm": "see to_sparse",
    "sparse.mm.reduce": "see to_sparse", "hash_tensor": "its result is uint64, which moth has not",
    "chalf": "complex32, which moth has not",
    "torch._scaled_mm": "float8 on GPUs", "torch._scaled_mm_v2": "float8 on GPUs",
    "torch.ops.aten._efficient_attention_forward": INTERNAL % "scaled_dot_product_attention, on GPUs",
    "torch.ops.aten._flash_attention_forward": INTERNAL % "scaled_dot_product_attention, on GPUs", "sparse.mm": "see to_sparse",
}


def of(entry, what):
    """Why a difference is meant, or None."""
    if what.startswith("moth has no "):
        return "names that moth has not: listed below" if entry["op"] in MISSING else None
    dtype = str(entry["dtype"]).replace("torch.", "")
    for reason in REASONS:
        if reason.explains(entry["name"], dtype, what):
            return reason.why
    return None
