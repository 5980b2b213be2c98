#include "io/image.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/tensor.h"

enum { MAX_PIXELS = 1 << 28 };

MothImageKind moth_image_kind(const uint8_t *bytes, size_t n) {
  static const uint8_t png[] = {0x89, 'P', 'N', 'G', 13, 10, 26, 10};
  if (n >= 3 && bytes[0] == 0xff && bytes[1] == 0xd8 && bytes[2] == 0xff)
    return MOTH_IMAGE_JPEG;
  if (n >= sizeof png && memcmp(bytes, png, sizeof png) == 0)
    return MOTH_IMAGE_PNG;
  if (n >= 12 && memcmp(bytes, "RIFF", 4) == 0 && memcmp(bytes + 8, "WEBP", 4) == 0)
    return MOTH_IMAGE_WEBP;
  return MOTH_IMAGE_NONE;
}

/* The name of a kind of image that is not read; NULL: not known. */
static const char *other_kind(const uint8_t *bytes, size_t n) {
  static const struct {
    const char *magic, *name;
    size_t at, n;
  } kinds[] = {{"GIF8", "GIF", 0, 4},
               {"II*\0", "TIFF", 0, 4},
               {"MM\0*", "TIFF", 0, 4},
               {"II+\0", "TIFF", 0, 4},
               {"MM\0+", "TIFF", 0, 4},
               {"BM", "BMP", 0, 2},
               {"ftypavif", "AVIF", 4, 8},
               {"ftypheic", "HEIC", 4, 8},
               {"ftypmif1", "HEIC", 4, 8},
               {"\0\0\0\x0cjP  ", "JPEG 2000", 0, 8},
               {"\xff\x0a", "JPEG XL", 0, 2},
               {"\0\0\0\x0cJXL ", "JPEG XL", 0, 8},
               {"P4", "PNM", 0, 2},
               {"P5", "PNM", 0, 2},
               {"P6", "PNM", 0, 2}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (n >= kinds[i].at + kinds[i].n &&
        memcmp(bytes + kinds[i].at, kinds[i].magic, kinds[i].n) == 0)
      return kinds[i].name;
  return NULL;
}

/* (height, width, channels) */
static MothStatus new_image(int64_t height, int64_t width, int channels, MothDType dtype,
                            MothTensor **out) {
  if (height < 1 || width < 1 || height > MAX_PIXELS / width)
    return moth_fail(MOTH_ERR_VALUE, "image: %lld x %lld pixels; 1 to 2^28 are allowed",
                     (long long)width, (long long)height);
  int64_t shape[] = {height, width, channels};
  return moth_tensor_new(3, shape, dtype, (MothDevice){MOTH_CPU, 0}, out);
}

/* ITU-R 601, as others do. */
static uint8_t grey_of(const uint8_t *rgb) {
  return (uint8_t)((19595u * rgb[0] + 38470u * rgb[1] + 7471u * rgb[2] + 0x8000u) >> 16);
}

static void *open_symbols(const char *library, const char *const *names, void **symbols, int n) {
  void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  for (int i = 0; i < n && lib; i++) {
    symbols[i] = dlsym(lib, names[i]);
    if (!symbols[i])
      lib = NULL;
  }
  return lib;
}

/* --- JPEG ----------------------------------------------------------------------------------------
 * What is needed of turbojpeg.h, whose interface has been the same since 1.4. */

enum { TJPF_RGB = 0, TJPF_GRAY = 6, TJPF_RGBA = 7, TJPF_CMYK = 11, TJCS_GRAY = 2, TJCS_CMYK = 3 };

static union {
  void *symbols[5];
  struct {
    void *(*init)(void);
    int (*header)(void *, const uint8_t *, unsigned long, int *, int *, int *, int *);
    int (*decode)(void *, const uint8_t *, unsigned long, uint8_t *, int, int, int, int, int);
    char *(*error)(void *);
    int (*destroy)(void *);
  } f;
} turbo;
static bool has_turbo;

static void open_turbo(void) {
  static const char *const names[] = {"tjInitDecompress", "tjDecompressHeader3", "tjDecompress2",
                                      "tjGetErrorStr2", "tjDestroy"};
  has_turbo = open_symbols("libturbojpeg.so.0", names, turbo.symbols, 5) != NULL;
}

/* Handles that no thread uses now: making one costs more than decoding a small image. */
enum { SPARE = 16 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *spare[SPARE];
static int nspare;

static void *take_handle(void) {
  pthread_mutex_lock(&lock);
  void *h = nspare ? spare[--nspare] : NULL;
  pthread_mutex_unlock(&lock);
  return h ? h : turbo.f.init();
}

static void give_handle(void *h) {
  pthread_mutex_lock(&lock);
  bool keep = nspare < SPARE;
  if (keep)
    spare[nspare++] = h;
  pthread_mutex_unlock(&lock);
  if (!keep)
    turbo.f.destroy(h);
}

/* CMYK as Adobe's programs write it, inverted, to RGB. */
static void from_cmyk(const uint8_t *from, uint8_t *to, int64_t pixels, int channels) {
  for (int64_t i = 0; i < pixels; i++, from += 4, to += channels) {
    unsigned rgb[3];
    for (int c = 0; c < 3; c++)
      rgb[c] = (from[c] * from[3] + 127u) / 255u;
    if (channels == 1) {
      to[0] = (uint8_t)((19595 * rgb[0] + 38470 * rgb[1] + 7471 * rgb[2] + 0x8000) >> 16);
      continue;
    }
    for (int c = 0; c < 3; c++)
      to[c] = (uint8_t)rgb[c];
    if (channels == 4)
      to[3] = 255;
  }
}

static MothStatus decode_with(void *h, bool *warned, const uint8_t *bytes, size_t n, int channels,
                              MothTensor **out) {
  int width = 0, height = 0, sampling = 0, space = 0;
  if (turbo.f.header(h, bytes, n, &width, &height, &sampling, &space) != 0)
    return moth_fail(MOTH_ERR_VALUE, "jpeg: %s", turbo.f.error(h));
  if (channels == 0)
    channels = space == TJCS_GRAY ? 1 : 3;
  MOTH_TRY(new_image(height, width, channels, MOTH_UINT8, out));
  int64_t pixels = (int64_t)height * width;
  uint8_t *to = (uint8_t *)(*out)->data, *cmyk = NULL;
  int format = channels == 1 ? TJPF_GRAY : channels == 3 ? TJPF_RGB : TJPF_RGBA;
  if (space >= TJCS_CMYK) {
    format = TJPF_CMYK;
    cmyk = malloc((size_t)pixels * 4);
    if (!cmyk) {
      moth_tensor_release(*out);
      return moth_no_memory((size_t)pixels * 4);
    }
  }
  int failed = turbo.f.decode(h, bytes, n, cmyk ? cmyk : to, width, 0, height, format, 0);
  if (cmyk) {
    from_cmyk(cmyk, to, pixels, channels);
    free(cmyk);
  }
  /* Warnings fail, too: only a file that ends early is damaged. */
  *warned = failed;
  const char *why = failed ? turbo.f.error(h) : "";
  if (failed && (strstr(why, "remature end") || !strstr(why, "xtraneous"))) {
    moth_tensor_release(*out);
    return moth_fail(MOTH_ERR_VALUE, "jpeg: %s", why);
  }
  return MOTH_OK;
}

static MothStatus decode_jpeg(const uint8_t *bytes, size_t n, int channels, MothTensor **out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_turbo);
  if (!has_turbo)
    return moth_fail(MOTH_ERR_IO, "jpeg: libturbojpeg.so.0 is not on this machine; HINT: install "
                                  "libturbojpeg0 (Debian), or run make deps");
  void *h = take_handle();
  if (!h)
    return moth_no_memory(0);
  bool warned = false;
  MothStatus s = decode_with(h, &warned, bytes, n, channels, out);
  if (s || warned) /* its state after an error is not that of a new one */
    turbo.f.destroy(h);
  else
    give_handle(h);
  return s;
}

/* --- PNG -----------------------------------------------------------------------------------------
 * What is needed of spng.h. */

typedef struct PngHeader {
  uint32_t width, height;
  uint8_t bit_depth, color_type, compression, filter, interlace;
} PngHeader;

enum { SPNG_RGBA8 = 1, SPNG_RGBA16 = 2, SPNG_RGB8 = 4, SPNG_G8 = 64, SPNG_TRNS = 1 };
enum { PNG_GREY = 0, PNG_ALPHA = 4 }; /* color types: PNG_ALPHA is a bit */

static union {
  void *symbols[7];
  struct {
    void *(*new)(int flags);
    void (*free)(void *);
    int (*buffer)(void *, const void *, size_t);
    int (*header)(void *, PngHeader *);
    int (*limits)(void *, uint32_t, uint32_t);
    int (*decode)(void *, void *, size_t, int format, int flags);
    const char *(*error)(int);
  } f;
} spng;
static bool has_spng;

static void open_spng(void) {
  static const char *const names[] = {
      "spng_ctx_new",          "spng_ctx_free",     "spng_set_png_buffer", "spng_get_ihdr",
      "spng_set_image_limits", "spng_decode_image", "spng_strerror"};
  has_spng = open_symbols("libspng.so.0", names, spng.symbols, 7) != NULL;
}

/* 16 bits a channel: uint16. The library gives RGBA, from which the channels that are wanted are taken. */
static MothStatus decode_deep(void *ctx, const PngHeader *head, int channels, MothTensor **out) {
  size_t pixels = (size_t)head->height * head->width;
  uint16_t *to = (uint16_t *)(*out)->data;
  uint16_t *rgba = channels == 4 ? to : malloc(4 * pixels * sizeof *rgba);
  if (!rgba) {
    moth_tensor_release(*out);
    return moth_no_memory(0);
  }
  int error = spng.f.decode(ctx, rgba, 4 * pixels * sizeof *rgba, SPNG_RGBA16,
                            channels == 4 ? SPNG_TRNS : 0);
  for (size_t i = 0; i < pixels && channels < 4 && !error; i++) {
    const uint16_t *from = rgba + 4 * i;
    if (channels == 3)
      memcpy(to + 3 * i, from, 3 * sizeof *from);
    else /* ITU-R 601, as others do; grey stays as it is */
      to[i] = (uint16_t)((19595u * from[0] + 38470u * from[1] + 7471u * from[2] + 0x8000u) >> 16);
  }
  if (rgba != to)
    free(rgba);
  if (!error)
    return MOTH_OK;
  moth_tensor_release(*out);
  return moth_fail(MOTH_ERR_VALUE, "png: %s", spng.f.error(error));
}

static MothStatus decode_with_spng(void *ctx, const uint8_t *bytes, size_t n, int channels,
                                   MothTensor **out) {
  PngHeader head;
  spng.f.limits(ctx, MAX_PIXELS, MAX_PIXELS);
  int error = spng.f.buffer(ctx, bytes, n);
  if (!error)
    error = spng.f.header(ctx, &head);
  if (error)
    return moth_fail(MOTH_ERR_VALUE, "png: %s", spng.f.error(error));
  if (channels == 0)
    channels = head.color_type == PNG_GREY ? 1 : head.color_type & PNG_ALPHA ? 4 : 3;
  bool deep = head.bit_depth == 16;
  MOTH_TRY(new_image(head.height, head.width, channels, deep ? MOTH_UINT16 : MOTH_UINT8, out));
  if (deep)
    return decode_deep(ctx, &head, channels, out);
  size_t pixels = (size_t)head.height * head.width;
  uint8_t *to = (uint8_t *)(*out)->data, *rgb = NULL;
  bool convert = channels == 1 && head.color_type != PNG_GREY;
  if (convert && !(rgb = malloc(3 * pixels))) {
    moth_tensor_release(*out);
    return moth_no_memory(3 * pixels);
  }
  int format = convert || channels == 3 ? SPNG_RGB8 : channels == 1 ? SPNG_G8 : SPNG_RGBA8;
  error = spng.f.decode(ctx, convert ? rgb : to, pixels * (size_t)(convert ? 3 : channels), format,
                        channels == 4 ? SPNG_TRNS : 0);
  if (error) {
    free(rgb);
    moth_tensor_release(*out);
    return moth_fail(MOTH_ERR_VALUE, "png: %s", spng.f.error(error));
  }
  for (size_t i = 0; i < pixels && convert; i++)
    to[i] = grey_of(rgb + 3 * i);
  free(rgb);
  return MOTH_OK;
}

static MothStatus decode_png(const uint8_t *bytes, size_t n, int channels, MothTensor **out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_spng);
  if (!has_spng)
    return moth_fail(MOTH_ERR_IO, "png: libspng.so.0 is not on this machine; HINT: install "
                                  "libspng0 (Debian), or run make deps");
  void *ctx = spng.f.new(0);
  if (!ctx)
    return moth_no_memory(0);
  MothStatus s = decode_with_spng(ctx, bytes, n, channels, out);
  spng.f.free(ctx);
  return s;
}

/* --- WebP ----------------------------------------------------------------------------------------
 * What is needed of webp/decode.h. */

typedef struct WebPFeatures {
  int width, height, has_alpha, has_animation, format;
  uint32_t pad[5];
} WebPFeatures;

enum { WEBP_ABI = 0x0200 };

static union {
  void *symbols[3];
  struct {
    int (*features)(const uint8_t *, size_t, WebPFeatures *, int abi);
    uint8_t *(*rgb)(const uint8_t *, size_t, uint8_t *, size_t, int stride);
    uint8_t *(*rgba)(const uint8_t *, size_t, uint8_t *, size_t, int stride);
  } f;
} webp;
static bool has_webp;

static void open_webp(void) {
  static const char *const names[] = {"WebPGetFeaturesInternal", "WebPDecodeRGBInto",
                                      "WebPDecodeRGBAInto"};
  has_webp = open_symbols("libwebp.so.7", names, webp.symbols, 3) != NULL;
}

static MothStatus decode_webp(const uint8_t *bytes, size_t n, int channels, MothTensor **out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_webp);
  if (!has_webp)
    return moth_fail(MOTH_ERR_IO, "webp: libwebp.so.7 is not on this machine; HINT: install "
                                  "libwebp7 (Debian), or run make deps");
  WebPFeatures head;
  if (webp.f.features(bytes, n, &head, WEBP_ABI) != 0)
    return moth_fail(MOTH_ERR_VALUE, "webp: the header of the file is damaged");
  if (head.has_animation)
    return moth_fail(MOTH_ERR_VALUE, "webp: an animation, of which no single image is read");
  if (channels == 0)
    channels = head.has_alpha ? 4 : 3;
  MOTH_TRY(new_image(head.height, head.width, channels, MOTH_UINT8, out));
  size_t pixels = (size_t)head.height * (size_t)head.width;
  uint8_t *to = (uint8_t *)(*out)->data, *rgb = channels == 1 ? malloc(3 * pixels) : to;
  if (!rgb) {
    moth_tensor_release(*out);
    return moth_no_memory(3 * pixels);
  }
  int step = channels == 4 ? 4 : 3;
  bool ok = (channels == 4 ? webp.f.rgba : webp.f.rgb)(bytes, n, rgb, pixels * (size_t)step,
                                                       head.width * step) != NULL;
  if (channels == 1) {
    for (size_t i = 0; i < pixels && ok; i++)
      to[i] = grey_of(rgb + 3 * i);
    free(rgb);
  }
  if (ok)
    return MOTH_OK;
  moth_tensor_release(*out);
  return moth_fail(MOTH_ERR_VALUE, "webp: the file is damaged, or ends early");
}

MothStatus moth_image_decode(const uint8_t *bytes, size_t n, int channels, MothTensor **out) {
  if (channels < 0 || channels == 2 || channels > 4)
    return moth_fail(MOTH_ERR_VALUE, "image: channels are 1, 3, 4, or 0: as in the file; got %d",
                     channels);
  switch (moth_image_kind(bytes, n)) {
  case MOTH_IMAGE_JPEG:
    return decode_jpeg(bytes, n, channels, out);
  case MOTH_IMAGE_PNG:
    return decode_png(bytes, n, channels, out);
  case MOTH_IMAGE_WEBP:
    return decode_webp(bytes, n, channels, out);
  case MOTH_IMAGE_NONE:
    break;
  }
  const char *other = other_kind(bytes, n);
  if (other)
    return moth_fail(MOTH_ERR_VALUE,
                     "image: this is %s, which moth does not read; HINT: convert it "
                     "to PNG, JPEG or WebP",
                     other);
  return moth_fail(MOTH_ERR_VALUE, "image: neither JPEG, PNG nor WebP (%zu bytes)", n);
}
