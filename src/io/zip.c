/* Note [Reading zip strictly]: a zip file states everything twice, and readers that trust different
 * copies see different files. Here the directory at the end decides, the end record must end the file,
 * each local header must agree, and the members must not overlap, which also bounds what a small file
 * can expand to. Sizes in local headers are ignored where bit 3 says that they follow the data (PyTorch
 * writes that). */
#include "io/zip.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "io/crc32.h"
#include "io/json.h"
#include "io/zlib.h"

enum {
  LOCAL = 30,
  CENTRAL = 46,
  END = 22,
  END64_LOCATOR = 20,
  END64 = 56, /* bytes of the records' fixed parts */
  COMMENT_MAX = 65535,
  RAW_WINDOW = -15,  /* deflate without zlib's header */
  DEFLATE_MAX = 1032 /* bytes that one byte of deflated data can stand for */
};

static uint32_t get16(const uint8_t *p) {
  return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}
static uint32_t get32(const uint8_t *p) {
  return get16(p) | get16(p + 2) << 16;
}
static uint64_t get64(const uint8_t *p) {
  return get32(p) | (uint64_t)get32(p + 4) << 32;
}

/* The archive that is being read, and a member's range in it. */
typedef struct Archive {
  const uint8_t *bytes;
  size_t n;
  uint64_t directory, directory_n, count;
} Archive;

typedef struct Range {
  uint64_t begin, end;
} Range;

static MothStatus damaged(const char *what) {
  return moth_fail(MOTH_ERR_VALUE, "zip: %s (damaged or truncated?)", what);
}

bool moth_zip_is(const uint8_t *bytes, size_t n) {
  return n >= 4 && bytes[0] == 'P' && bytes[1] == 'K' &&
         ((bytes[2] == 3 && bytes[3] == 4) || (bytes[2] == 5 && bytes[3] == 6));
}

/* Finds the directory by the record at the end of the file. */
static MothStatus find_directory(Archive *a) {
  const uint8_t *end = NULL;
  for (size_t comment = 0; comment <= COMMENT_MAX && comment + END <= a->n; comment++) {
    const uint8_t *p = a->bytes + (a->n - END - comment);
    if (p[0] == 'P' && get32(p) == 0x06054b50 && get16(p + 20) == comment) {
      end = p;
      break;
    }
  }
  if (!end)
    return damaged("there is no directory at the end of the file");
  a->count = get16(end + 10);
  a->directory_n = get32(end + 12);
  a->directory = get32(end + 16);
  bool large = a->count == 0xffff || a->directory_n == 0xffffffff || a->directory == 0xffffffff;
  uint64_t behind = (uint64_t)(end - a->bytes); /* the directory must end here */
  uint32_t disks = get16(end + 4) | get16(end + 6);
  bool same = get16(end + 8) == a->count;
  if (behind >= END64_LOCATOR && get32(end - END64_LOCATOR) == 0x07064b50) {
    const uint8_t *locator = end - END64_LOCATOR;
    uint64_t at = get64(locator + 8);
    behind -= END64_LOCATOR;
    if (behind < END64 || at > behind - END64 || get32(a->bytes + at) != 0x06064b50 ||
        get64(a->bytes + at + 4) != behind - at - 12)
      return damaged("the zip64 record is not where it should be");
    const uint8_t *end64 = a->bytes + at;
    disks = get32(locator + 4) | (get32(locator + 16) > 1) | get32(end64 + 16) | get32(end64 + 20);
    a->count = get64(end64 + 32);
    a->directory_n = get64(end64 + 40);
    a->directory = get64(end64 + 48);
    same = get64(end64 + 24) == a->count;
    behind = at;
  } else if (large) {
    return damaged("the zip64 record is missing");
  }
  if (disks || !same)
    return moth_fail(MOTH_ERR_VALUE, "zip: an archive of several files is not read");
  if (a->directory > behind || a->directory_n != behind - a->directory)
    return damaged("the directory is not where it should be");
  if (a->count > MOTH_ZIP_MAX_MEMBERS || a->count > a->directory_n / CENTRAL)
    return moth_fail(MOTH_ERR_VALUE,
                     "zip: %" PRIu64 " members in a directory of %" PRIu64 " bytes (limit %d)",
                     a->count, a->directory_n, MOTH_ZIP_MAX_MEMBERS);
  return MOTH_OK;
}

/* Sizes and offset that do not fit 32 bits are in an extra field, only those, in this order. */
static MothStatus read_zip64(const uint8_t *extra, size_t n, uint64_t *const *values,
                             const bool *large) {
  while (n >= 4) {
    uint32_t id = get16(extra), size = get16(extra + 2);
    if (size > n - 4)
      break;
    if (id == 1) {
      const uint8_t *p = extra + 4;
      for (int i = 0; i < 3; i++) {
        if (!large[i])
          continue;
        if ((size_t)(extra + 4 + size - p) < 8)
          return damaged("a zip64 field is too short");
        *values[i] = get64(p);
        p += 8;
      }
      return MOTH_OK;
    }
    extra += 4 + size;
    n -= 4 + size;
  }
  return large[0] || large[1] || large[2] ? damaged("a zip64 field is missing") : MOTH_OK;
}

static MothStatus check_name(const char *name, size_t n) {
  const char *why = NULL;
  if (n == 0 || strlen(name) != n || !moth_utf8_is_valid(name, n))
    why = "is empty or not UTF-8";
  else if (name[0] == '/' || strchr(name, '\\') || (n > 1 && name[1] == ':'))
    why = "is absolute or not portable";
  for (const char *part = name; !why && part;) {
    if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == 0))
      why = "leads out of the archive";
    part = strchr(part, '/');
    part = part ? part + 1 : NULL;
  }
  return why ? moth_fail(MOTH_ERR_VALUE, "zip: the name \"%.200s\" of a member %s", name, why)
             : MOTH_OK;
}

/* Refuses members that are encrypted, compressed in another way, links or devices. */
static MothStatus check_kind(const uint8_t *central, const char *name) {
  uint32_t flags = get16(central + 8), method = get16(central + 10);
  uint32_t mode = get16(central + 40) & 0xf000; /* of Unix: S_IFMT */
  if (flags & 0x2041)
    return moth_fail(MOTH_ERR_VALUE, "zip: \"%.200s\" is encrypted", name);
  if (method != 0 && method != 8)
    return moth_fail(MOTH_ERR_VALUE,
                     "zip: \"%.200s\" is compressed by method %u; moth reads stored and deflated "
                     "members",
                     name, method);
  if (central[5] == 3 && mode != 0 && mode != 0x8000 && mode != 0x4000)
    return moth_fail(MOTH_ERR_VALUE, "zip: \"%.200s\" is a link or a device", name);
  return MOTH_OK;
}

/* Checks a member's local header against the directory; sets data and *range. */
static MothStatus read_local(const Archive *a, const uint8_t *central, uint64_t at,
                             MothZipEntry *entry, Range *range) {
  size_t name_n = strlen(entry->name);
  if (at > a->directory || a->directory - at < LOCAL || get32(a->bytes + at) != 0x04034b50)
    return damaged("a member is not where the directory says");
  const uint8_t *local = a->bytes + at;
  uint64_t begin = at + LOCAL + get16(local + 26) + get16(local + 28);
  if (begin > a->directory || (uint64_t)entry->packed > a->directory - begin)
    return moth_fail(MOTH_ERR_VALUE,
                     "zip: \"%.200s\" has %" PRId64 " bytes, which are not there (truncated?)",
                     entry->name, entry->packed);
  if (get16(local + 26) != name_n || memcmp(local + LOCAL, entry->name, name_n) != 0 ||
      get16(local + 8) != get16(central + 10) || get16(local + 6) != get16(central + 8))
    return moth_fail(MOTH_ERR_VALUE,
                     "zip: what the directory says of \"%.200s\" is not what stands before it",
                     entry->name);
  if (!(get16(local + 6) & 8)) { /* sizes are here, unless a zip64 field has them */
    uint32_t packed = get32(local + 18), size = get32(local + 22);
    if (get32(local + 14) != entry->crc || (packed != 0xffffffff && packed != entry->packed) ||
        (size != 0xffffffff && size != entry->size))
      return moth_fail(MOTH_ERR_VALUE,
                       "zip: what the directory says of \"%.200s\" is not what stands before it",
                       entry->name);
  }
  entry->data = a->bytes + begin;
  *range = (Range){at, begin + (uint64_t)entry->packed};
  return MOTH_OK;
}

/* Reads the directory's record at *at; copies its name to *names. */
static MothStatus read_entry(const Archive *a, uint64_t *at, char **names, MothZipEntry *entry,
                             Range *range) {
  const uint8_t *central = a->bytes + *at;
  uint64_t left = a->directory + a->directory_n - *at;
  if (left < CENTRAL || get32(central) != 0x02014b50)
    return damaged("the directory has no further member");
  uint32_t name_n = get16(central + 28), extra_n = get16(central + 30);
  uint64_t record = CENTRAL + (uint64_t)name_n + extra_n + get16(central + 32);
  if (record > left)
    return damaged("a record of the directory is longer than the directory");
  *at += record;

  memcpy(*names, central + CENTRAL, name_n);
  (*names)[name_n] = 0;
  entry->name = *names;
  *names += name_n + 1;
  MOTH_TRY(check_name(entry->name, name_n));
  MOTH_TRY(check_kind(central, entry->name));

  uint64_t size = get32(central + 24), packed = get32(central + 20), local = get32(central + 42);
  MOTH_TRY(read_zip64(central + CENTRAL + name_n, extra_n,
                      (uint64_t *const[]){&size, &packed, &local},
                      (bool[]){size == 0xffffffff, packed == 0xffffffff, local == 0xffffffff}));
  entry->crc = get32(central + 16);
  entry->deflated = get16(central + 10) == 8;
  if (packed > a->n || size > INT64_MAX || (!entry->deflated && packed != size) ||
      (entry->deflated && size / DEFLATE_MAX > packed))
    return moth_fail(MOTH_ERR_VALUE,
                     "zip: \"%.200s\" says that it has %" PRIu64 " bytes in %" PRIu64, entry->name,
                     size, packed);
  entry->size = (int64_t)size;
  entry->packed = (int64_t)packed;
  return read_local(a, central, local, entry, range);
}

static int compare_ranges(const void *a, const void *b) {
  const Range *x = a, *y = b;
  return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static int compare_names(const void *a, const void *b) {
  const MothZipEntry *x = a, *y = b;
  return strcmp(x->name, y->name);
}

static MothStatus read_directory(const Archive *a, int64_t cap, MothZip *zip, Range *ranges) {
  uint64_t at = a->directory;
  char *names = zip->names;
  int64_t expanded = 0;
  for (uint64_t i = 0; i < a->count; i++) {
    MothZipEntry *entry = &zip->entries[i];
    MOTH_TRY(read_entry(a, &at, &names, entry, &ranges[i]));
    if (entry->deflated && (entry->size > cap || (expanded += entry->size) > cap))
      return moth_fail(MOTH_ERR_VALUE,
                       "zip: the members expand to more than the allowed %" PRId64 " bytes", cap);
  }
  if (at != a->directory + a->directory_n)
    return damaged("the directory has a rest");
  zip->count = (int64_t)a->count;
  if (zip->count < 2)
    return MOTH_OK;
  qsort(ranges, (size_t)zip->count, sizeof *ranges, compare_ranges);
  for (int64_t i = 1; i < zip->count; i++)
    if (ranges[i].begin < ranges[i - 1].end)
      return moth_fail(MOTH_ERR_VALUE, "zip: two members overlap");
  qsort(zip->entries, (size_t)zip->count, sizeof *zip->entries, compare_names);
  for (int64_t i = 1; i < zip->count; i++)
    if (strcmp(zip->entries[i].name, zip->entries[i - 1].name) == 0)
      return moth_fail(MOTH_ERR_VALUE, "zip: the member \"%.200s\" occurs twice",
                       zip->entries[i].name);
  return MOTH_OK;
}

MothStatus moth_zip_parse(const uint8_t *bytes, size_t n, int64_t cap, MothZip **out) {
  Archive a = {.bytes = bytes, .n = n};
  *out = NULL;
  if (!moth_zip_is(bytes, n) || n > PTRDIFF_MAX)
    return moth_fail(MOTH_ERR_VALUE, "zip: not a zip archive");
  MOTH_TRY(find_directory(&a));

  MothStatus status;
  Range *ranges = malloc(((size_t)a.count + 1) * sizeof *ranges);
  MothZip *zip = calloc(1, sizeof *zip);
  if (zip) {
    zip->entries = calloc((size_t)a.count + 1, sizeof *zip->entries);
    zip->names = malloc((size_t)a.directory_n + 1); /* a record is longer than its name and a NUL */
  }
  if (!zip || !ranges || !zip->entries || !zip->names)
    status = moth_fail(MOTH_ERR_MEMORY, "zip: no memory for the directory");
  else
    status = read_directory(&a, cap, zip, ranges);
  free(ranges);
  if (status != MOTH_OK) {
    moth_zip_free(zip);
    return status;
  }
  *out = zip;
  return MOTH_OK;
}

void moth_zip_free(MothZip *zip) {
  if (!zip)
    return;
  free(zip->entries);
  free(zip->names);
  free(zip);
}

const MothZipEntry *moth_zip_find(const MothZip *zip, const char *name) {
  MothZipEntry key = {.name = name};
  if (zip->count == 0)
    return NULL;
  return bsearch(&key, zip->entries, (size_t)zip->count, sizeof *zip->entries, compare_names);
}

/* ---- members ----------------------------------------------------------------------------------
 */

static MothStatus check_crc(const MothZipEntry *entry, const uint8_t *bytes) {
  uint32_t crc = 0;
  for (int64_t at = 0; at < entry->size; at += MOTH_Z_CHUNK) {
    MOTH_TRY(moth_z_look());
    int64_t left = entry->size - at;
    crc = moth_crc32(crc, bytes + at, (size_t)(left < MOTH_Z_CHUNK ? left : MOTH_Z_CHUNK));
  }
  if (crc == entry->crc)
    return MOTH_OK;
  return moth_fail(MOTH_ERR_VALUE, "zip: \"%.200s\" does not have its checksum, it is damaged",
                   entry->name);
}

static MothStatus inflate_member(const MothZlib *zlib, MothZStream *z, const MothZipEntry *entry,
                                 uint8_t *out) {
  const uint8_t *in_end = entry->data + entry->packed;
  uint8_t none, *out_end = out + entry->size;
  z->next_in = entry->data;
  z->next_out = entry->size > 0 ? out : &none; /* zlib takes no NULL */
  for (;;) {
    MOTH_TRY(moth_z_look());
    int64_t space = entry->size > 0 ? out_end - z->next_out : 0, rest = in_end - z->next_in;
    z->avail_out = (unsigned)(space < MOTH_Z_CHUNK ? space : MOTH_Z_CHUNK);
    z->avail_in = (unsigned)(rest < MOTH_Z_CHUNK ? rest : MOTH_Z_CHUNK);
    int64_t before = space + rest;
    int result = zlib->inflate(z, 0);
    space = entry->size > 0 ? out_end - z->next_out : 0;
    rest = in_end - z->next_in;
    if (result == Z_MEM_ERROR)
      return moth_fail(MOTH_ERR_MEMORY, "zip: no memory to expand");
    if (result == Z_STREAM_END && space == 0 && rest == 0)
      return MOTH_OK;
    if ((result != Z_OK && result != Z_BUF_ERROR) || before == space + rest)
      return moth_fail(MOTH_ERR_VALUE, "zip: \"%.200s\" does not expand to its %" PRId64 " bytes",
                       entry->name, entry->size);
  }
}

MothStatus moth_zip_verify(const MothZipEntry *entry) {
  return check_crc(entry, entry->data);
}

MothStatus moth_zip_head(const MothZipEntry *entry, uint8_t *out, int64_t want, int64_t *got) {
  const MothZlib *zlib = moth_zlib();
  *got = want < entry->size ? want : entry->size;
  if (!entry->deflated) {
    if (*got > 0)
      memcpy(out, entry->data, (size_t)*got);
    return MOTH_OK;
  }
  MothZStream z = {.next_in = entry->data, .next_out = out, .avail_out = (unsigned)*got};
  z.avail_in = (unsigned)(entry->packed < MOTH_Z_CHUNK ? entry->packed : MOTH_Z_CHUNK);
  if (!zlib)
    return moth_fail(MOTH_ERR_STATE, "zip: " MOTH_Z_MISSING);
  if (*got == 0)
    return MOTH_OK;
  if (zlib->init(&z, RAW_WINDOW, MOTH_Z_VERSION, (int)sizeof z) != Z_OK)
    return moth_fail(MOTH_ERR_MEMORY, "zip: zlib cannot start");
  int result = zlib->inflate(&z, 0);
  *got = z.next_out - out;
  zlib->end(&z);
  return result == Z_MEM_ERROR ? moth_fail(MOTH_ERR_MEMORY, "zip: no memory to expand") : MOTH_OK;
}

MothStatus moth_zip_read(const MothZipEntry *entry, uint8_t *out) {
  MothZStream z = {0};
  if (!entry->deflated) {
    if (entry->size > 0)
      memcpy(out, entry->data, (size_t)entry->size);
    return check_crc(entry, out);
  }
  const MothZlib *zlib = moth_zlib();
  if (!zlib)
    return moth_fail(MOTH_ERR_STATE, "zip: " MOTH_Z_MISSING);
  if (zlib->init(&z, RAW_WINDOW, MOTH_Z_VERSION, (int)sizeof z) != Z_OK)
    return moth_fail(MOTH_ERR_MEMORY, "zip: zlib cannot start");
  MothStatus status = inflate_member(zlib, &z, entry, out);
  zlib->end(&z);
  return status ? status : check_crc(entry, out);
}
