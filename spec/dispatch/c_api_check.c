/* Calls ops from C on the bytes of a file and writes what they give to another, for spec/dispatch/c_api_spec.lua. */
#include <moth.h>
#include <moth_ops.h>
#include <stdio.h>
#include <stdlib.h>

static void check(MothStatus status) {
  if (status == MOTH_OK)
    return;
  fprintf(stderr, "%s\n", moth_last_error());
  exit(1);
}

static FILE *out;

/* Writes the bytes of t, and lets it go. */
static void put(MothTensor *t) {
  MothTensor *whole;
  check(moth_contiguous(t, &whole));
  size_t size = (size_t)(moth_tensor_numel(whole) * moth_dtype_size(moth_tensor_dtype(whole)));
  fwrite(moth_tensor_data(whole), 1, size, out);
  moth_tensor_release(whole);
  moth_tensor_release(t);
}

int main(int argc, char **argv) {
  enum { ROWS = 37, COLUMNS = 53, N = ROWS * COLUMNS };
  static float a[N], b[N];
  const int64_t size[] = {ROWS, COLUMNS};
  FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL;
  if (!in || fread(a, sizeof *a, N, in) != N || fread(b, sizeof *b, N, in) != N)
    return 2;
  fclose(in);
  out = fopen(argv[2], "wb");
  MothTensor *x, *y, *t, *r;
  check(moth_tensor_from_ptr(a, 2, size, MOTH_FLOAT32, NULL, NULL, &x));
  check(moth_tensor_from_ptr(b, 2, size, MOTH_FLOAT32, NULL, NULL, &y));
  check(moth_add(moth_v_tensor(x), moth_v_tensor(y), moth_v_int(1), &r)), put(r);
  check(moth_exp(x, &r)), put(r);
  check(moth_tanh(x, &r)), put(r);
  check(moth_pow(moth_v_tensor(x), moth_v_float(1.5), &r)), put(r);
  check(moth_sum(x, moth_v_none(), false, moth_v_none(), &r)), put(r);
  check(moth_softmax(x, 1, moth_v_none(), &r)), put(r);
  check(moth_transpose(y, 0, 1, &t));
  check(moth_matmul(x, t, &r)), put(r);
  moth_tensor_release(t);
  check(moth_argmax(x, moth_v_int(1), false, 0, &r)), put(r);
  moth_tensor_release(x);
  moth_tensor_release(y);
  return fclose(out) != 0;
}
