/* Hooks through moth.h alone: of gradients, after accumulation, at the end of backward, on saved tensors; memory that is
 * released. Prints "ok" and returns 0, or what was wrong. */
#include <moth.h>
#include <moth_ops.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int line, MothStatus s) {
  if (s == MOTH_OK)
    return;
  fprintf(stderr, "line %d: %s\n", line, moth_last_error());
  exit(1);
}
static void expect(int line, int holds) {
  if (holds)
    return;
  fprintf(stderr, "line %d\n", line);
  exit(1);
}
#define OK(call)          check(__LINE__, call)
#define EXPECT(cond)      expect(__LINE__, cond)
#define FAILS(call, text) EXPECT((call) != MOTH_OK && strstr(moth_last_error(), text) != NULL)

/* What happened, in letters. */
static char story[64];
static int released, packed, dropped;

static void tell(char letter) {
  size_t n = strlen(story);
  story[n] = letter;
  story[n + 1] = 0;
}

static double first(const MothTensor *t) {
  return t ? ((const float *)moth_tensor_data(t))[0] : -1;
}

static MothStatus end(void *ctx, MothStatus status) {
  tell(status == MOTH_OK ? *(const char *)ctx : 'E');
  return MOTH_OK;
}
static void release(void *ctx) {
  (void)ctx;
  released++;
}

static MothStatus twice(void *ctx, MothTensor *grad, MothTensor **out) {
  tell(*(const char *)ctx);
  OK(moth_queue_callback(end, release, "z"));
  return moth_mul(moth_v_tensor(grad), moth_v_int(2), out);
}
static MothStatus after(void *ctx, MothTensor *leaf) {
  (void)ctx;
  EXPECT(moth_tensor_grad(leaf) != NULL);
  tell('a');
  return MOTH_OK;
}
static MothStatus refuse(void *ctx, MothTensor *grad, MothTensor **out) {
  (void)ctx, (void)out;
  /* An error of moth's own: of shapes that do not fit. */
  MothTensor *wrong, *r;
  int64_t size[] = {7};
  OK(moth_ones(size, 1, moth_v_none(), moth_v_none(), &wrong));
  MothStatus s = moth_add(moth_v_tensor(grad), moth_v_tensor(wrong), moth_v_int(1), &r);
  moth_tensor_release(wrong);
  return s;
}

static MothStatus pack(void *ctx, MothTensor *t, void **p) {
  (void)ctx;
  packed++;
  return moth_clone(t, (MothTensor **)p);
}
static MothStatus unpack(void *ctx, void *p, MothTensor **out) {
  (void)ctx;
  moth_tensor_retain(*out = p);
  return MOTH_OK;
}
static void drop(void *ctx, void *p) {
  (void)ctx;
  dropped++;
  moth_tensor_release(p);
}

int main(void) {
  int64_t size[] = {3}, id, other;
  MothTensor *w, *y, *z;
  OK(moth_ones(size, 1, moth_v_none(), moth_v_none(), &w));
  FAILS(moth_tensor_register_hook(w, twice, release, "h", &id), "doesn't require");
  OK(moth_tensor_set_requires_grad(w, true));
  FAILS(moth_tensor_register_hook(w, NULL, NULL, NULL, NULL), "NULL");
  FAILS(moth_queue_callback(end, NULL, "z"), "none runs");
  OK(moth_tensor_register_hook(w, twice, release, "h", &id));
  OK(moth_tensor_register_post_accumulate_grad_hook(w, after, release, NULL, &other));

  const MothSavedTensorsHooks hooks = {pack, unpack, drop, release, NULL};
  released = 0;
  OK(moth_push_saved_tensors_hooks(&hooks));
  FAILS(moth_push_disabled_saved_tensors_hooks("not now"), "not now");
  OK(moth_exp(w, &y));
  moth_pop_saved_tensors_hooks();
  moth_pop_saved_tensors_hooks();
  OK(moth_push_disabled_saved_tensors_hooks("off"));
  FAILS(moth_push_saved_tensors_hooks(&hooks), "off");
  moth_pop_saved_tensors_hooks();
  EXPECT(packed == 1 && dropped == 0);
  OK(moth_tensor_register_hook(y, twice, release, "r", NULL));
  FAILS(moth_tensor_register_post_accumulate_grad_hook(y, after, NULL, NULL, NULL), "only a leaf");
  OK(moth_sum(y, moth_v_none(), false, moth_v_none(), &z));
  OK(moth_backward(&z, NULL, 1, false, false));
  EXPECT(strcmp(story, "rhazz") == 0);
  EXPECT(first(moth_tensor_grad(w)) > 4 * 2.718 && first(moth_tensor_grad(w)) < 4 * 2.719);
  moth_tensor_release(y);
  moth_tensor_release(z);
  EXPECT(dropped == 1 && released == 4); /* two callbacks, the hook of y, the saved-tensor hooks */

  moth_tensor_remove_hook(w, id);
  moth_tensor_remove_hook(w, id);
  EXPECT(released == 5);
  OK(moth_tensor_register_hook(w, twice, NULL, "h", NULL));
  OK(moth_tensor_register_hook(w, refuse, NULL, NULL, NULL));
  story[0] = 0;
  OK(moth_sum(w, moth_v_none(), false, moth_v_none(), &z));
  FAILS(moth_backward(&z, NULL, 1, false, false), "broadcast");
  EXPECT(strcmp(story, "hE") == 0);
  moth_tensor_release(z);
  moth_tensor_release(w);

  /* Memory. */
  int64_t many[] = {100000};
  MothMemStats before, without;
  OK(moth_ones(many, 1, moth_v_none(), moth_v_none(), &w));
  moth_memory_stats(&before);
  OK(moth_storage_resize(w, 0));
  moth_memory_stats(&without);
  EXPECT(before.live - without.live >= 400000 && moth_storage_nbytes(w) == 0);
  FAILS(moth_exp(w, &y), "released");
  FAILS(moth_storage_resize(w, 8), "can be released");
  OK(moth_storage_resize(w, 400000));
  OK(moth_exp(w, &y));
  moth_tensor_release(y);
  moth_tensor_release(w);
  puts("ok");
  return 0;
}
