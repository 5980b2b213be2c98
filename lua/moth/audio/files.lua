--- The part of moth.audio that reads and writes files, by libsndfile (Debian's libsndfile1): WAV, FLAC, Ogg, AIFF, MP3.
local ffi = require "ffi"
local moth = require "moth"
local check = require "moth.utils.check"
local open_library = require "moth.utils.library"
local signature = require "moth.utils.signature"
local M = {}

ffi.cdef [[
typedef struct { int64_t frames; int samplerate, channels, format, sections, seekable; } moth_sound_info;
void *moth_sf_open(const char *, int, moth_sound_info *) __asm__("sf_open");
int moth_sf_close(void *) __asm__("sf_close");
int64_t moth_sf_seek(void *, int64_t, int) __asm__("sf_seek");
int64_t moth_sf_read(void *, float *, int64_t) __asm__("sf_readf_float");
int64_t moth_sf_write(void *, const float *, int64_t) __asm__("sf_writef_float");
int64_t moth_sf_write_double(void *, const double *, int64_t) __asm__("sf_writef_double");
int moth_sf_command(void *, int, void *, int) __asm__("sf_command");
int moth_sf_check(const moth_sound_info *) __asm__("sf_format_check");
const char *moth_sf_error(void *) __asm__("sf_strerror");
]]

local READ, WRITE, CLIP = 0x10, 0x20, 0x10C0
local kinds = { wav = 0x010000, aiff = 0x020000, au = 0x030000, flac = 0x170000, ogg = 0x200000, mp3 = 0x230000 }
local encodings = { PCM_S8 = 1, PCM_16 = 2, PCM_24 = 3, PCM_32 = 4, PCM_U8 = 5, FLOAT = 6, DOUBLE = 7, ULAW = 0x10,
  ALAW = 0x11, VORBIS = 0x60, OPUS = 0x64, MP3 = 0x82 }
local usual = { wav = "PCM_16", aiff = "PCM_16", au = "PCM_16", flac = "PCM_16", ogg = "VORBIS", mp3 = "MP3" }

local lib
local function library(name)
  lib = lib or open_library("libsndfile.so.1", ("[audio.%s]"):format(name), "libsndfile1")
  return lib
end

--- Whether the library is there.
M.available = signature("audio.available()", function() return open_library "libsndfile.so.1" ~= nil end)

local function named(code, list)
  for name, value in require "moth.each"(list) do if value == code then return name end end
  return "unknown"
end

-- An open file and what it says of itself. It is closed when it is dropped, too.
local function open(name, path)
  local l, about = library(name), ffi.new("moth_sound_info")
  local file = l.moth_sf_open(path, READ, about)
  if file == nil then
    local f, why = io.open(path, "rb")
    if f then f:close() end
    check.fail("[audio.%s] %s: %s", name, path,
      f and ffi.string(l.moth_sf_error(nil)) or why:match("[^:]*$"):sub(2))
  end
  return ffi.gc(file, l.moth_sf_close), about
end
local function close(file)
  ffi.gc(file, nil)
  lib.moth_sf_close(file)
end

--- What a file says of itself: { sample_rate, num_frames, num_channels, format ("wav", …), encoding ("PCM_16", …) }.
M.info = signature("audio.info(path path)", function(path)
  local file, about = open("info", path)
  close(file)
  local encoding = about.format % 0x10000
  return { sample_rate = about.samplerate, num_frames = tonumber(about.frames), num_channels = about.channels,
    format = named(about.format - encoding - (about.format >= 0x10000000 and 0x10000000 or 0), kinds),
    encoding = named(encoding, encodings) }
end)

--- A file's sound: a waveform (channels, frames) of float32 from -1 to 1, and the sample rate. frame_offset,
-- num_frames: a part of it (-1: all that follows).
M.load = signature("audio.load(path path, size frame_offset=0, int num_frames=-1)", function(path, offset, count)
  local file, about = open("load", path)
  local frames, channels = tonumber(about.frames), about.channels
  if offset > frames then
    close(file)
    check.fail("[audio.load] %s: frame_offset is %d, and there are %d frames", path, offset, frames)
  end
  local n = count < 0 and frames - offset or math.min(count, frames - offset)
  local out = moth.empty({ n, channels }, { dtype = moth.float32 })
  if offset > 0 and lib.moth_sf_seek(file, offset, 0) ~= offset then
    close(file)
    check.fail("[audio.load] %s: one cannot begin at frame %d of this file", path, offset)
  end
  local got = n == 0 and 0 or tonumber(lib.moth_sf_read(file, ffi.cast("float *", out:data_ptr()), n))
  close(file)
  if got < n then
    check.fail("[audio.load] %s: is cut off: %d frames were to be read, there are %d", path, n, got)
  end
  return out:t():contiguous(), about.samplerate
end)

--- Writes a waveform (channels, frames) of floats; values outside of -1 to 1 are cut. format: "wav", "flac", "ogg",
-- "aiff", "au", "mp3" (that of the name, if none is given); encoding: "PCM_16" (usual), "PCM_24", "PCM_32", "PCM_U8",
-- "FLOAT", "DOUBLE", "ULAW", "ALAW", "VORBIS", "OPUS".
M.save = signature("audio.save(path path, Tensor waveform, count sample_rate, *, string format?, string encoding?)",
  function(path, waveform, sample_rate, format, encoding)
    local l = library "save"
    format = (format or path:match "%.(%w+)$" or ""):lower()
    if format == "aif" then format = "aiff" end
    if not kinds[format] then
      check.fail("[audio.save] unknown format '%s' of %s; there are wav, flac, ogg, aiff, au, mp3", format, path)
    end
    encoding = encoding or usual[format]
    if not encodings[encoding] then check.fail("[audio.save] unknown encoding '%s'", encoding) end
    if waveform:dim() ~= 2 or not waveform:is_floating_point() or waveform:size(1) == 0 then
      check.fail("[audio.save] expected a floating waveform (channels, frames), got %s %s", tostring(waveform:dtype()),
        tostring(waveform:size()))
    end
    local about = ffi.new("moth_sound_info", { samplerate = sample_rate, channels = waveform:size(1),
      format = kinds[format] + encodings[encoding] })
    if l.moth_sf_check(about) == 0 then
      check.fail("[audio.save] %s does not take %d channels of %s at %d Hz", format, waveform:size(1), encoding,
        sample_rate)
    end
    if encoding ~= "FLOAT" and encoding ~= "DOUBLE" and waveform:isnan():any():item() then
      check.fail("[audio.save] %s: the waveform has nan, which %s cannot say", path, encoding)
    end
    local double = waveform:dtype() == moth.float64
    local rows = waveform:detach():cpu():to(double and moth.float64 or moth.float32):t():contiguous()
    local file = l.moth_sf_open(path, WRITE, about)
    if file == nil then check.fail("[audio.save] %s: %s", path, ffi.string(l.moth_sf_error(nil))) end
    l.moth_sf_command(file, CLIP, nil, 1)
    local n = rows:size(1)
    local done = n == 0 and 0
      or tonumber(double and l.moth_sf_write_double(file, ffi.cast("const double *", rows:data_ptr()), n)
      or l.moth_sf_write(file, ffi.cast("const float *", rows:data_ptr()), n))
    local why = done < n and ffi.string(l.moth_sf_error(file))
    if l.moth_sf_close(file) ~= 0 or why then
      check.fail("[audio.save] %s: %s", path, why or "it could not be written to the end")
    end
  end)
return M
