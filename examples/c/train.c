/* Training from C, without Lua: a network of two layers learns which points of the plane lie within a
 * circle. After `make install PREFIX=$HOME/moth`:
 *
 *     export PKG_CONFIG_PATH=$HOME/moth/lib/pkgconfig
 *     gcc examples/c/train.c $(pkg-config --cflags --libs moth) -o train
 *     ./train
 *
 * Every function returns a status; the caller releases results; positions count from 0. */
#include <moth.h>
#include <moth_ops.h>
#include <stdio.h>
#include <stdlib.h>

enum { POINTS = 512, HIDDEN = 32, STEPS = 200, PARAMS = 4 };

/* A program may exit on an error; a library may not. */
static void check(MothStatus status) {
  if (status != MOTH_OK) {
    fprintf(stderr, "%s\n", moth_last_error());
    exit(1);
  }
}

static void release(MothTensor **tensors, int n) {
  for (int i = 0; i < n; i++)
    moth_tensor_release(tensors[i]);
}

static double item(MothTensor *t) {
  MothValue v;
  check(moth_tensor_item(t, &v));
  return v.tag == MOTH_V_INT ? (double)v.u.i : v.u.d;
}

/* points x (N, 2) and their classes (N): 1 within the circle, 0 outside */
static void make_points(MothTensor **x, MothTensor **classes) {
  const int64_t size[] = {POINTS, 2}, last[] = {1};
  MothTensor *squares, *distance, *inside;
  check(moth_randn(size, 2, moth_v_none(), moth_v_none(), NULL, x));
  check(moth_mul(moth_v_tensor(*x), moth_v_tensor(*x), &squares));
  check(moth_sum(squares, moth_v_ints(last, 1), false, moth_v_none(), &distance));
  check(moth_lt(moth_v_tensor(distance), moth_v_float(1.4), &inside));
  check(moth_to(inside, moth_v_dtype(MOTH_INT64), moth_v_none(), false, false, classes));
  release((MothTensor *[]){squares, distance, inside}, 3);
}

/* A leaf with values of [-bound, bound). */
static MothTensor *parameter(int ndim, const int64_t *size, double bound) {
  MothTensor *p;
  check(moth_zeros(size, ndim, moth_v_none(), moth_v_none(), &p));
  check(moth_uniform_(p, -bound, bound, NULL));
  check(moth_tensor_set_requires_grad(p, true));
  return p;
}

/* x (N, 2) -> logits (N, 2) */
static MothTensor *forward(MothTensor **p, MothTensor *x) {
  MothTensor *hidden, *active, *logits;
  check(moth_linear(x, p[0], p[1], &hidden));
  check(moth_relu(hidden, &active));
  check(moth_linear(active, p[2], p[3], &logits));
  release((MothTensor *[]){hidden, active}, 2); /* the graph keeps what it needs */
  return logits;
}

static double accuracy(MothTensor **p, MothTensor *x, MothTensor *classes) {
  MothTensor *logits, *guess, *right, *count;
  bool was = moth_set_grad_enabled(false);
  logits = forward(p, x);
  check(moth_argmax(logits, moth_v_int(1), false, 0, &guess));
  check(moth_eq(moth_v_tensor(guess), moth_v_tensor(classes), &right));
  check(moth_sum(right, moth_v_none(), false, moth_v_none(), &count));
  double n = item(count);
  moth_set_grad_enabled(was);
  release((MothTensor *[]){logits, guess, right, count}, 4);
  return n / POINTS;
}

int main(void) {
  moth_generator_seed(moth_default_generator(), 0);
  MothTensor *x, *classes, *test_x, *test_classes;
  make_points(&x, &classes);
  make_points(&test_x, &test_classes);

  MothTensor *params[PARAMS] = {
      parameter(2, (int64_t[]){HIDDEN, 2}, 0.7),
      parameter(1, (int64_t[]){HIDDEN}, 0.7),
      parameter(2, (int64_t[]){2, HIDDEN}, 0.17),
      parameter(1, (int64_t[]){2}, 0.17),
  };
  MothTensor *mean[PARAMS], *square[PARAMS], *grads[PARAMS]; /* Adam's state */
  for (int i = 0; i < PARAMS; i++) {
    check(moth_zeros_like(params[i], moth_v_none(), moth_v_none(), &mean[i]));
    check(moth_zeros_like(params[i], moth_v_none(), moth_v_none(), &square[i]));
  }

  for (int step = 1; step <= STEPS; step++) {
    for (int i = 0; i < PARAMS; i++)
      check(moth_tensor_set_grad(params[i], NULL));
    MothTensor *loss, *logits = forward(params, x);
    check(moth_cross_entropy(logits, classes, NULL, "mean", -100, 0, 0, &loss));
    check(moth_backward(&loss, NULL, 1, false, false));
    for (int i = 0; i < PARAMS; i++)
      grads[i] = moth_tensor_grad(params[i]); /* borrowed */
    moth_set_grad_enabled(false);             /* do not record the step */
    check(moth_adam_step(params, PARAMS, grads, PARAMS, mean, PARAMS, square, PARAMS, NULL, 0,
                         moth_v_float(1e-2), 0.9, 0.999, 1e-8, 0, moth_v_int(step), false, false,
                         false, NULL, NULL));
    moth_set_grad_enabled(true);
    if (step == 1 || step % 50 == 0)
      printf("step %3d  loss %.4f\n", step, item(loss));
    release((MothTensor *[]){logits, loss}, 2);
  }
  printf("accuracy %.3f, on new points %.3f\n", accuracy(params, x, classes),
         accuracy(params, test_x, test_classes));

  release(params, PARAMS);
  release(mean, PARAMS);
  release(square, PARAMS);
  release((MothTensor *[]){x, classes, test_x, test_classes}, 4);
  return 0;
}
