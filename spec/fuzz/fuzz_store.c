/* libFuzzer: what a process sends to the store. The first byte says where the input is cut in two, as it may arrive.
 * Sources: src/comm/store_token.c src/comm/store_wire.c src/comm/wire.c src/comm/thread.c
 */
#include "comm/store_server.c"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  if (n < 1)
    return 0;
  MothStoreServer *s = calloc(1, sizeof *s);
  Client *c = calloc(1, sizeof *c);
  s->listener = s->bell[0] = c->fd = -1;
  s->token = strdup("");
  s->clients = c;
  c->known = bytes[0] & 1; /* beyond the hello */
  size_t first = bytes[0] < n - 1 ? bytes[0] : n - 1;
  moth_buffer_add(&c->in, bytes + 1, first);
  handle_input(s, c);
  moth_buffer_add(&c->in, bytes + 1 + first, n - 1 - first);
  handle_input(s, c);
  if (s->count < 0 || c->in.n > n)
    abort();
  (void)look_at_waiting(s);
  free_server(s);
  return 0;
}
