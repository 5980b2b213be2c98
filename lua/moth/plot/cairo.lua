--- Writes a drawing as PNG by cairo (libcairo.so.2), which is opened when first needed.
local ffi = require "ffi"
local check = require "moth.utils.check"
local open = require "moth.utils.library"
local B = require "moth_lua"
local M = {}

ffi.cdef [[
typedef struct moth_cairo_surface moth_cairo_surface;
typedef struct moth_cairo moth_cairo;
typedef struct { double x_bearing, y_bearing, width, height, x_advance, y_advance; } moth_cairo_extents;
moth_cairo_surface *cairo_image_surface_create(int format, int width, int height);
moth_cairo_surface *cairo_image_surface_create_for_data(uint8_t *, int format, int width, int height, int stride);
int cairo_format_stride_for_width(int format, int width);
uint8_t *cairo_image_surface_get_data(moth_cairo_surface *);
int cairo_image_surface_get_stride(moth_cairo_surface *);
int cairo_surface_status(moth_cairo_surface *);
void cairo_surface_flush(moth_cairo_surface *);
void cairo_surface_destroy(moth_cairo_surface *);
moth_cairo *cairo_create(moth_cairo_surface *);
void cairo_destroy(moth_cairo *);
void cairo_scale(moth_cairo *, double, double);
void cairo_translate(moth_cairo *, double, double);
void cairo_rotate(moth_cairo *, double);
void cairo_save(moth_cairo *);
void cairo_restore(moth_cairo *);
void cairo_set_source_rgb(moth_cairo *, double, double, double);
void cairo_set_source_surface(moth_cairo *, moth_cairo_surface *, double, double);
void *cairo_get_source(moth_cairo *);
void cairo_pattern_set_filter(void *, int);
void cairo_paint(moth_cairo *);
void cairo_move_to(moth_cairo *, double, double);
void cairo_line_to(moth_cairo *, double, double);
void cairo_rectangle(moth_cairo *, double, double, double, double);
void cairo_arc(moth_cairo *, double, double, double, double, double);
void cairo_set_line_width(moth_cairo *, double);
void cairo_set_line_join(moth_cairo *, int);
void cairo_stroke(moth_cairo *);
void cairo_fill(moth_cairo *);
void cairo_select_font_face(moth_cairo *, const char *, int, int);
void cairo_set_font_size(moth_cairo *, double);
void cairo_text_extents(moth_cairo *, const char *, moth_cairo_extents *);
void cairo_show_text(moth_cairo *, const char *);
]]

local RGB24, NEAREST, ROUND = 1, 3, 1

local cairo
local function library()
  cairo = cairo or open("libcairo.so.2", "plot: PNG", "libcairo2, or save as .svg")
  return cairo
end

local function set_colour(c, text)
  local r, g, b = text:match("^#(%x%x)(%x%x)(%x%x)$")
  library().cairo_set_source_rgb(c, tonumber(r, 16) / 255, tonumber(g, 16) / 255, tonumber(b, 16) / 255)
end

local shapes = {}

function shapes.line(c, points, colour, width)
  local lib = library()
  set_colour(c, colour)
  lib.cairo_set_line_width(c, width)
  lib.cairo_set_line_join(c, ROUND)
  for i = 1, #points, 2 do lib[i == 1 and "cairo_move_to" or "cairo_line_to"](c, points[i], points[i + 1]) end
  lib.cairo_stroke(c)
end
function shapes.rect(c, x, y, w, h, fill, stroke)
  local lib = library()
  for _, way in ipairs { { fill, "cairo_fill" }, { stroke, "cairo_stroke" } } do
    if way[1] then
      set_colour(c, way[1])
      lib.cairo_set_line_width(c, 1)
      lib.cairo_rectangle(c, x, y, w, h)
      lib[way[2]](c)
    end
  end
end
function shapes.circle(c, x, y, r, fill)
  set_colour(c, fill)
  library().cairo_arc(c, x, y, r, 0, 2 * math.pi)
  library().cairo_fill(c)
end
function shapes.text(c, x, y, text, size, anchor, turned, colour)
  local lib, e = library(), ffi.new("moth_cairo_extents")
  set_colour(c, colour)
  lib.cairo_select_font_face(c, "DejaVu Sans", 0, 0)
  lib.cairo_set_font_size(c, size)
  lib.cairo_text_extents(c, text, e)
  local shift = anchor == "middle" and -e.x_advance / 2 or anchor == "end" and -e.x_advance or 0
  lib.cairo_save(c)
  lib.cairo_translate(c, x, y)
  if turned then lib.cairo_rotate(c, -math.pi / 2) end
  lib.cairo_move_to(c, shift, 0)
  lib.cairo_show_text(c, text)
  lib.cairo_restore(c)
end
function shapes.image(c, x, y, w, h, tensor)
  local lib, t = library(), require("moth.plot.png").pixels(tensor)
  local rows, columns, channels = B.size(t, 1), B.size(t, 2), B.size(t, 3)
  local stride = lib.cairo_format_stride_for_width(RGB24, columns)
  local data = ffi.new("uint8_t[?]", stride * rows)
  local from = ffi.cast("const uint8_t *", B.pointer(t))
  for r = 0, rows - 1 do
    for k = 0, columns - 1 do
      local p = from + (r * columns + k) * channels
      local to = data + r * stride + 4 * k -- 32 bits: blue is the lowest byte
      to[0], to[1], to[2] = p[channels > 1 and 2 or 0], p[channels > 1 and 1 or 0], p[0]
    end
  end
  local s = lib.cairo_image_surface_create_for_data(data, RGB24, columns, rows, stride)
  lib.cairo_save(c)
  lib.cairo_translate(c, x, y)
  lib.cairo_scale(c, w / columns, h / rows)
  lib.cairo_set_source_surface(c, s, 0, 0)
  lib.cairo_pattern_set_filter(lib.cairo_get_source(c), NEAREST)
  lib.cairo_rectangle(c, 0, 0, columns, rows)
  lib.cairo_fill(c)
  lib.cairo_restore(c)
  lib.cairo_surface_destroy(s)
end

function M.write(canvas, scale)
  local lib = library()
  local width, height = math.ceil(canvas.width * scale), math.ceil(canvas.height * scale)
  local surface = lib.cairo_image_surface_create(RGB24, width, height)
  if lib.cairo_surface_status(surface) ~= 0 then
    lib.cairo_surface_destroy(surface)
    check.fail("plot: cairo cannot make a picture of %d x %d pixels", width, height)
  end
  local c = lib.cairo_create(surface)
  lib.cairo_scale(c, scale, scale)
  set_colour(c, "#ffffff")
  lib.cairo_paint(c)
  for _, s in ipairs(canvas.shapes) do shapes[s[1]](c, unpack(s, 2, 9)) end
  lib.cairo_surface_flush(surface)
  local data, stride = lib.cairo_image_surface_get_data(surface), lib.cairo_image_surface_get_stride(surface)
  local rgb = ffi.new("uint8_t[?]", width * height * 3)
  local at = 0
  for r = 0, height - 1 do
    for k = 0, width - 1 do
      local p = data + r * stride + 4 * k
      rgb[at], rgb[at + 1], rgb[at + 2] = p[2], p[1], p[0]
      at = at + 3
    end
  end
  lib.cairo_destroy(c)
  lib.cairo_surface_destroy(surface)
  return require("moth.plot.png").from_bytes(ffi.string(rgb, width * height * 3), width, height, 3)
end

return M
