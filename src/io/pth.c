#include "io/pth.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

enum { NAME_MAX_BYTES = 4096 };

/* The member with the pickle, in the archive's one folder, or NULL. */
static const MothZipEntry *find_pickle(const MothZip *zip) {
  for (int64_t i = 0; i < zip->count; i++) {
    const char *slash = strchr(zip->entries[i].name, '/');
    if (slash && strcmp(slash, "/data.pkl") == 0)
      return &zip->entries[i];
  }
  return NULL;
}

bool moth_pth_is(const MothZip *zip) {
  return find_pickle(zip) != NULL;
}

const char *moth_pth_program(const MothZip *zip) {
  for (int64_t i = 0; i < zip->count; i++) {
    const char *slash = strchr(zip->entries[i].name, '/');
    if ((slash && strcmp(slash, "/archive_format") == 0) ||
        strcmp(zip->entries[i].name, "serialized_exported_program.json") == 0) /* before 2.8 */
      return "this is a program of torch.export; moth reads its tensors alone, and programs of "
             "ONNX. HINT: in Python, program = torch.export.load(path); "
             "torch.save(program.state_dict, …) or "
             "torch.onnx.export(program, …)";
  }
  return NULL;
}

/* The member <folder>/<name>, or NULL. */
static const MothZipEntry *find_member(const MothZip *zip, const MothZipEntry *pickle,
                                       const char *middle, const char *name, uint32_t name_n) {
  char path[NAME_MAX_BYTES];
  int folder_n = (int)(strchr(pickle->name, '/') - pickle->name);
  int n =
      snprintf(path, sizeof path, "%.*s/%s%.*s", folder_n, pickle->name, middle, (int)name_n, name);
  return n > 0 && n < NAME_MAX_BYTES ? moth_zip_find(zip, path) : NULL;
}

static MothStatus check_archive(const MothZip *zip, const MothZipEntry *pickle) {
  if (find_member(zip, pickle, "", "constants.pkl", 13))
    return moth_fail(MOTH_ERR_VALUE,
                     "pth: this is a TorchScript program, with code; moth reads tensors. HINT: in "
                     "Python, torch.save(torch.jit.load(path).state_dict(), …)");
  const MothZipEntry *order = find_member(zip, pickle, "", "byteorder", 9);
  if (!order)
    return MOTH_OK; /* written by PyTorch before 2.1, on little-endian machines only */
  uint8_t text[8];
  if (order->size > (int64_t)sizeof text)
    return moth_fail(MOTH_ERR_VALUE, "pth: the byte order is damaged");
  MOTH_TRY(moth_zip_read(order, text));
  if (order->size == 6 && memcmp(text, "little", 6) == 0)
    return MOTH_OK;
  return moth_fail(MOTH_ERR_VALUE,
                   "pth: the elements are not little-endian (\"%.*s\"); HINT: save the file again "
                   "on a little-endian machine",
                   (int)order->size, (const char *)text);
}

enum { MAX_PICKLE = 64 << 20 };

/* Finds the pickle in the archive's bytes; expands it if it is deflated. */
static MothStatus read_pickle(const MothZipEntry *member, MothPth *pth) {
  if (!member->deflated) {
    MOTH_TRY(moth_zip_verify(member));
    return moth_pickle_parse(member->data, (size_t)member->size, &pth->pickle);
  }
  if (member->size > MAX_PICKLE) /* a pickle contains names and sizes, not elements */
    return moth_fail(MOTH_ERR_VALUE, "pth: a pickle that expands to %" PRId64 " bytes (limit %d)",
                     member->size, MAX_PICKLE);
  pth->text = malloc((size_t)member->size + 1);
  if (!pth->text)
    return moth_fail(MOTH_ERR_MEMORY, "pth: no memory for %" PRId64 " bytes", member->size);
  MOTH_TRY(moth_zip_read(member, pth->text));
  return moth_pickle_parse(pth->text, (size_t)member->size, &pth->pickle);
}

static MothStatus find_members(const MothZip *zip, const MothZipEntry *pickle, MothPth *pth) {
  const MothPickle *p = pth->pickle;
  pth->members = calloc((size_t)p->storage_count + 1, sizeof *pth->members);
  if (!pth->members)
    return moth_fail(MOTH_ERR_MEMORY, "pth: no memory for the storages");
  for (uint32_t i = 0; i < p->storage_count; i++) {
    const MothPickleStorage *s = &p->storages[i];
    const MothZipEntry *member = find_member(zip, pickle, "data/", s->key, s->key_n);
    int64_t size = s->numel * (s->small ? 1 : moth_dtype_size(s->dtype));
    if (!member)
      return moth_fail(MOTH_ERR_VALUE, "pth: the elements of storage %.*s are missing",
                       s->key_n < 40 ? (int)s->key_n : 40, s->key);
    if (member->size != size)
      return moth_fail(MOTH_ERR_VALUE,
                       "pth: storage %.*s has %" PRId64 " bytes, but its elements need %" PRId64,
                       s->key_n < 40 ? (int)s->key_n : 40, s->key, member->size, size);
    pth->members[i] = member;
  }
  return MOTH_OK;
}

MothStatus moth_pth_open(const MothZip *zip, MothPth **out) {
  MothStatus status;
  *out = NULL;
  const MothZipEntry *pickle = find_pickle(zip);
  if (!pickle)
    return moth_fail(MOTH_ERR_VALUE, "pth: there is no data.pkl in the archive");
  MothPth *pth = calloc(1, sizeof *pth);
  if (!pth)
    return moth_fail(MOTH_ERR_MEMORY, "pth: no memory");
  MOTH_GO(check_archive(zip, pickle));
  MOTH_GO(read_pickle(pickle, pth));
  MOTH_GO(find_members(zip, pickle, pth));
  *out = pth;
  return MOTH_OK;
done:
  moth_pth_free(pth);
  return status;
}

MothStatus moth_pth_open_records(const uint8_t *bytes, size_t n, MothPth **out) {
  *out = NULL;
  MothPth *pth = calloc(1, sizeof *pth);
  if (!pth)
    return moth_fail(MOTH_ERR_MEMORY, "pth: no memory");
  MothStatus status = moth_pickle_parse_records(bytes, n, &pth->pickle);
  if (status != MOTH_OK)
    moth_pth_free(pth);
  else
    *out = pth;
  return status;
}

void moth_pth_free(MothPth *pth) {
  if (!pth)
    return;
  moth_pickle_free(pth->pickle);
  free(pth->members);
  free(pth->text);
  free(pth);
}

const char *moth_pth_refusal(const uint8_t *bytes, size_t n) {
  /* The number with which torch.save began its files before version 1.6. */
  static const uint8_t legacy[] = {0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                   0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
  if (n >= 2 + sizeof legacy && bytes[0] == 0x80 && memcmp(bytes + 2, legacy, sizeof legacy) == 0)
    return "this is PyTorch's old format, a row of pickles. HINT: in Python, save it again with "
           "torch.save(torch.load(path, weights_only=True), path), by PyTorch 1.6 or later";
  if (n >= 2 && bytes[0] == 0x80 && bytes[1] >= 1 && bytes[1] <= 5)
    return "this is a Python pickle, which is a program; moth runs none. HINT: in Python, save "
           "tensors with torch.save, or arrays with numpy.save";
  if (n >= 265 && memcmp(bytes + 257, "ustar", 5) == 0)
    return "this is a tar archive; PyTorch wrote such before version 0.2. HINT: unpack it, or save "
           "the tensors again by PyTorch 1.6 or later";
  return NULL;
}
