--- SummaryWriter's methods for TensorBoard's plugins: figures, videos, sound, embeddings, precision and recall, meshes,
-- hyperparameters, layouts of charts, tensors. The fields of the messages are those of TensorBoard's .proto files.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local moth = require "moth"
local pb = require "moth.tensorboard.proto"
local signature = require "moth.utils.signature"
local system = require "moth.utils.system"

local function metadata(plugin, content)
  return pb.bytes(9, pb.bytes(1, pb.bytes(1, plugin) .. (content and pb.bytes(2, content) or "")))
end

local function shape_of(shape)
  local dims = {}
  for i, n in ipairs(shape) do dims[i] = pb.bytes(2, pb.int(1, n)) end
  return pb.bytes(2, table.concat(dims))
end

local function floats(t) return t:detach():to { dtype = moth.float32, device = "cpu" }:contiguous() end

-- A TensorProto of floats as field 8 of a Value.
local function float_tensor(t)
  t = floats(t)
  return pb.bytes(8, pb.int(1, 1) .. shape_of(t.shape) .. pb.bytes(5, B.bytes(t)))
end

local function sorted(t)
  local names = {}
  for key in each(t) do names[#names + 1] = key end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  return names
end

local function folder(path)
  if os.execute("mkdir -p " .. system.quoted(path) .. " 2>/dev/null") ~= 0 then
    check.fail("[SummaryWriter] cannot make the folder %s", path)
  end
end
local function write(path, text)
  local f, message = io.open(path, "wb")
  if not f then check.fail("[SummaryWriter] %s", message) end
  f:write(text)
  f:close()
end

-- DT_ of TensorFlow by dtype, and the size of an element of tensor_content.
local dtypes = { float32 = 1, float64 = 2, int32 = 3, uint8 = 4, int16 = 5, int8 = 6, complex64 = 8, int64 = 9,
  bool = 10, bfloat16 = 14, complex128 = 18, float16 = 19, uint16 = 17, uint32 = 22, uint64 = 23 }

return function(Writer)
  --- The folder of the files.
  function Writer:get_logdir() return self.log_dir end

  --- A drawing of moth.plot (or a list of them, one below the other), as an image; needs cairo.
  Writer.add_figure = signature.method("add_figure(string tag, table figure, size global_step=0, bool close=true, \z
    number walltime?)", function(self, tag, figure, step, _, walltime)
    local list = class.is_a(figure, require "moth.plot.canvas") and { figure } or figure
    for i, canvas in ipairs(list) do
      if not class.is_a(canvas, require "moth.plot.canvas") then
        check.fail("[add_figure] expected a canvas of moth.plot, got %s", class.name(canvas))
      end
      local png = canvas:png()
      local function size(at) -- of the header of the PNG
        local a, b, c, d = png:byte(at, at + 3)
        return ((a * 256 + b) * 256 + c) * 256 + d
      end
      self:value(#list > 1 and tag .. "/" .. i or tag, pb.bytes(4, pb.int(1, size(21)) .. pb.int(2, size(17))
        .. pb.int(3, 4) .. pb.bytes(4, png)), step, walltime)
    end
  end)

  --- Films (N, T, C, H, W), of 1 or 3 channels, floats in 0 to 1 or uint8, side by side as one moving GIF.
  Writer.add_video = signature.method("add_video(string tag, Tensor vid_tensor, size global_step=0, number fps=4, \z
    number walltime?)", function(self, tag, video, step, fps, walltime)
    local png = require "moth.plot.png"
    if video:dim() ~= 5 or video:numel() == 0 or video:size(3) ~= 1 and video:size(3) ~= 3 or fps <= 0 then
      check.fail("[add_video] vid_tensor must be (N, T, C, H, W) of 1 or 3 channels, and fps above 0, got [%s] and %g",
        table.concat(video.shape, ", "), fps)
    end
    local n, t, c, h, w = video:size(1), video:size(2), video:size(3), video:size(4), video:size(5)
    local columns = 2 ^ math.ceil(math.log(n, 2) / 2 - 1e-9)
    local rows = math.ceil(n / columns)
    local whole = moth.zeros({ rows * columns, t, c, h, w }, { dtype = moth.uint8 })
    -- as images of one column, so that the rules of images hold for films
    local flat = png.pixels(video:detach():permute(3, 1, 2, 4, 5):reshape(c, n * t * h, w))
    whole:narrow(1, 1, n):copy_(flat:reshape(n, t, h, w, c):permute(1, 2, 5, 3, 4))
    local frames = whole:reshape(rows, columns, t, c, h, w):permute(3, 1, 5, 2, 6, 4)
      :reshape(t, rows * h, columns * w, c)
    if c == 1 then frames = frames:expand(t, rows * h, columns * w, 3) end
    local gif = require("moth.tensorboard.gif").encode(frames:contiguous(), fps)
    self:value(tag, pb.bytes(4, pb.int(1, rows * h) .. pb.int(2, columns * w) .. pb.int(3, c) .. pb.bytes(4, gif)),
      step, walltime)
  end)

  --- Sound: a vector of floats from -1 to 1 (others are clipped), as a WAV file of 16 bits.
  Writer.add_audio = signature.method("add_audio(string tag, Tensor snd_tensor, size global_step=0, \z
    count sample_rate=44100, number walltime?)", function(self, tag, sound, step, rate, walltime)
    local x = floats(sound):squeeze()
    if x:dim() == 0 then x = x:reshape(1) end
    if x:dim() ~= 1 or x:numel() == 0 then
      check.fail("[add_audio] snd_tensor must be a vector with elements, got [%s]", table.concat(sound.shape, ", "))
    end
    local samples = (x:clamp(-1, 1) * 32767):to(moth.int16)
    local bytes, n = B.bytes(samples:contiguous()), samples:numel()
    local function u32(v) return pb.fixed32(v) end
    local function u16(v) return u32(v):sub(1, 2) end
    local wav = "RIFF" .. u32(36 + #bytes) .. "WAVEfmt " .. u32(16) .. u16(1) .. u16(1) .. u32(rate) .. u32(rate * 2)
      .. u16(2) .. u16(16) .. "data" .. u32(#bytes) .. bytes
    self:value(tag, pb.bytes(6, pb.float(1, rate) .. pb.int(2, 1) .. pb.int(3, n) .. pb.bytes(4, wav)
      .. pb.bytes(5, "audio/wav")), step, walltime)
  end)

  --- Points (N, D) for the projector. metadata: a label of each, or with metadata_header a list of values of each;
  -- label_img: an image of each, (N, C, H, W).
  Writer.add_embedding = signature.method("add_embedding(Tensor mat, list metadata?, Tensor label_img?, \z
    size global_step=0, string tag='default', string[] metadata_header?)",
  function(self, mat, labels, images, step, tag, header)
    if mat:dim() ~= 2 then
      check.fail("[add_embedding] mat must be (N, D), got [%s]", table.concat(mat.shape, ", "))
    end
    local n = mat:size(1)
    if labels and #labels ~= n or images and images:size(1) ~= n then
      check.fail("[add_embedding] there are %d points, %d labels", n, labels and #labels or images:size(1))
    end
    local below = ("%05d/%s"):format(step, (tag:gsub("[^%w_.-]", function(c) return ("%%%02x"):format(c:byte()) end)))
    local path = self.log_dir .. "/" .. below
    folder(path)
    local function cell(v) return (tostring(v):gsub("[\t\r\n]", " ")) end
    local lines = {}
    for i, row in ipairs(floats(mat):tolist()) do
      for k, v in ipairs(row) do row[k] = ("%.9g"):format(v) end
      lines[i] = table.concat(row, "\t")
    end
    write(path .. "/tensors.tsv", table.concat(lines, "\n") .. "\n")
    local config = { ("  tensor_name: %q\n  tensor_path: %q\n"):format(("%s:%05d"):format(tag, step),
      below .. "/tensors.tsv") }
    if labels then
      local rows = {}
      local function add(values)
        if type(values) ~= "table" then rows[#rows + 1] = cell(values) return end
        local cells = {}
        for k, v in ipairs(values) do cells[k] = cell(v) end
        if header and #cells ~= #header then
          check.fail("[add_embedding] a label has %d values, metadata_header %d", #cells, #header)
        end
        rows[#rows + 1] = table.concat(cells, "\t")
      end
      if header then add(header) end
      for i = 1, n do add(labels[i]) end
      write(path .. "/metadata.tsv", table.concat(rows, "\n") .. "\n")
      config[#config + 1] = ("  metadata_path: %q\n"):format(below .. "/metadata.tsv")
    end
    if images then
      local side = math.ceil(math.sqrt(n))
      local c, h, w = images:size(2), images:size(3), images:size(4)
      local sheet = images:detach():new_zeros { side * side, c, h, w }
      sheet:narrow(1, 1, n):copy_(images:detach())
      local whole = sheet:reshape(side, side, c, h, w):permute(3, 1, 4, 2, 5):reshape(c, side * h, side * w)
      write(path .. "/sprite.png", (require("moth.plot.png").encode(whole)))
      local dims = ("    single_image_dim: %d\n    single_image_dim: %d\n"):format(w, h)
      config[#config + 1] = ("  sprite {\n    image_path: %q\n%s  }\n"):format(below .. "/sprite.png", dims)
    end
    self.projector = (self.projector or "") .. "embeddings {\n" .. table.concat(config) .. "}\n"
    write(self.log_dir .. "/projector_config.pbtxt", self.projector)
  end)

  local function curve(self, tag, rows, thresholds, step, walltime)
    local content = pb.int(1, 0) .. pb.int(2, thresholds)
    self:value(tag, float_tensor(moth.stack(rows)) .. metadata("pr_curves", content), step, walltime)
  end

  --- Precision over recall of 0-or-1 labels and predictions in 0 to 1, at num_thresholds thresholds (at most 127).
  Writer.add_pr_curve = signature.method("add_pr_curve(string tag, Tensor labels, Tensor predictions, \z
    size global_step=0, count num_thresholds=127, Tensor weights?, number walltime?)",
  function(self, tag, labels, predictions, step, n, weights, walltime)
    if labels:numel() ~= predictions:numel() or labels:numel() == 0 then
      check.fail("[add_pr_curve] expected as many labels as predictions, and at least one, got %d and %d",
        labels:numel(), predictions:numel())
    end
    n = math.min(math.max(n, 2), 127) -- what TensorBoard reads
    local function flat(t) return t:detach():to { dtype = moth.float64, device = "cpu" }:reshape(-1) end
    local y, p = flat(labels), flat(predictions)
    if not y:eq(0):logical_or(y:eq(1)):all():item() then check.fail("[add_pr_curve] labels must be 0 or 1") end
    local w = weights and flat(weights) or moth.ones_like(y)
    local inside = p:ge(0):logical_and(p:le(1))
    local bucket = moth.where(inside, (p * (n - 1)):floor():clamp(0, n - 1), 0):to(moth.int64) + 1
    local zeros = moth.zeros({ n }, { dtype = moth.float64 })
    local function rising(v) -- how many at each threshold or above
      return zeros:scatter_add(1, bucket, moth.where(inside, v, 0)):flip(1):cumsum(1):flip(1)
    end
    local tp, fp = rising(y * w), rising((1 - y) * w)
    local tn, fn = fp[1] - fp, tp[1] - tp
    curve(self, tag, { tp, fp, tn, fn, tp / (tp + fp):clamp(1e-7), tp / (tp + fn):clamp(1e-7) }, n, step, walltime)
  end)

  --- The same from counts at each threshold, precision and recall.
  Writer.add_pr_curve_raw = signature.method("add_pr_curve_raw(string tag, Tensor true_positive_counts, \z
    Tensor false_positive_counts, Tensor true_negative_counts, Tensor false_negative_counts, Tensor precision, \z
    Tensor recall, size global_step=0, count num_thresholds=127, number walltime?)",
  function(self, tag, tp, fp, tn, fn, precision, recall, step, n, walltime)
    local rows = { tp, fp, tn, fn, precision, recall }
    for i, t in ipairs(rows) do rows[i] = floats(t) end
    curve(self, tag, rows, math.min(n, 127), step, walltime)
  end)

  --- A mesh or a cloud of points: vertices (B, N, 3); colors (B, N, 3), integers of 0 to 255 or floats of 0 to 1; faces
  -- (B, F, 3), the positions of their vertices, from 1. config_dict: settings of three.js.
  Writer.add_mesh = signature.method("add_mesh(string tag, Tensor vertices, Tensor colors?, Tensor faces?, \z
    table config_dict?, size global_step=0, number walltime?)",
  function(self, tag, vertices, colors, faces, config, step, walltime)
    local json = config and require("cjson").encode(config) or "{}"
    if colors and colors:is_floating_point() then colors = colors * 255 end
    if faces then faces = faces - 1 end
    if colors and colors:numel() ~= vertices:numel() then
      check.fail("[add_mesh] expected a color for each vertex, [%s], got [%s]", table.concat(vertices.shape, ", "),
        table.concat(colors.shape, ", "))
    end
    local parts = { { vertices, 1, "VERTEX" }, { faces, 2, "FACE" }, { colors, 3, "COLOR" } }
    local mask, values = 2 + (faces and 4 or 0) + (colors and 8 or 0), {}
    for i = 1, 3 do
      local t, kind, name = parts[i][1], parts[i][2], parts[i][3]
      if t then
        if t:dim() ~= 3 or t:size(3) ~= 3 then
          check.fail("[add_mesh] %s must be (B, N, 3), got [%s]", name:lower(), table.concat(t.shape, ", "))
        end
        local shape = {}
        for d, n in ipairs(t.shape) do shape[d] = pb.varint(n) end
        local content = pb.int(1, 0) .. pb.bytes(2, tag) .. pb.int(3, kind) .. pb.bytes(5, json)
          .. pb.bytes(6, table.concat(shape)) .. pb.int(7, mask)
        values[#values + 1] = pb.bytes(1, pb.bytes(1, tag .. "_" .. name) .. float_tensor(t)
          .. metadata("mesh", content))
      end
    end
    self:event(pb.bytes(5, table.concat(values)), step, walltime)
  end)

  -- google.protobuf.Value and the number of hparams' DataType.
  local function hparam(name, v)
    if B.is_tensor(v) then v = v:item() end
    local kind = type(v)
    if kind == "number" then return pb.double(2, v), 3 end
    if kind == "string" then return pb.bytes(3, v), 1 end
    if kind == "boolean" then return pb.int(4, v and 1 or 0), 2 end
    check.fail("[add_hparams] '%s' must be a number, a string or a boolean, got %s", tostring(name), class.name(v))
  end

  --- The hyperparameters of a run and its figures, for comparing runs: written as a run of their own, run_name (the
  -- time), below the folder. hparam_domain_discrete: all values that some of them may have.
  Writer.add_hparams = signature.method("add_hparams(table hparam_dict, table metric_dict, \z
    table hparam_domain_discrete?, string run_name?, size global_step=0)",
  function(self, hparams, figures, domains, run_name, step)
    local infos, values = {}, {}
    for _, name in ipairs(sorted(hparams)) do
      local value, kind = hparam(name, hparams[name])
      values[#values + 1] = pb.bytes(1, pb.bytes(1, tostring(name)) .. pb.bytes(2, value))
      local domain = domains and domains[name]
      local list = {}
      for i, v in ipairs(domain or {}) do list[i] = pb.bytes(1, (hparam(name, v))) end
      infos[#infos + 1] = pb.bytes(4, pb.bytes(1, tostring(name)) .. pb.int(4, kind)
        .. (domain and pb.bytes(5, table.concat(list)) or ""))
    end
    for name in each(domains or {}) do
      if hparams[name] == nil then
        check.fail("[add_hparams] hparam_domain_discrete: there is no hyperparameter '%s'", tostring(name))
      end
    end
    for _, name in ipairs(sorted(figures)) do
      infos[#infos + 1] = pb.bytes(5, pb.bytes(1, pb.bytes(2, tostring(name))))
    end
    local run = require("moth.tensorboard").SummaryWriter(self.log_dir .. "/" .. (run_name or ("%.6f"):format(
      system.time())))
    local function put(tag, field, content)
      run:value("_hparams_/" .. tag, metadata("hparams", pb.int(1, 0) .. pb.bytes(field, content)), step)
    end
    put("experiment", 2, table.concat(infos))
    put("session_start_info", 3, table.concat(values))
    put("session_end_info", 4, pb.int(1, 1)) -- success
    for _, name in ipairs(sorted(figures)) do run:add_scalar(tostring(name), figures[name], step) end
    run:close()
  end)

  local function layout_of(self, layout)
    local categories = {}
    for _, category in ipairs(sorted(layout)) do
      local charts = {}
      for _, title in ipairs(sorted(layout[category])) do
        local kind, tags = unpack(layout[category][title])
        if kind ~= "Multiline" and kind ~= "Margin" or type(tags) ~= "table" or kind == "Margin" and #tags ~= 3 then
          check.fail("[add_custom_scalars] '%s' must be { \"Multiline\", { tags } } or { \"Margin\", { value, lower, \z
            upper } }", tostring(title))
        end
        local content = {}
        for i, tag in ipairs(tags) do content[i] = pb.bytes(kind == "Margin" and i or 1, tag) end
        content = table.concat(content)
        charts[#charts + 1] = pb.bytes(2, pb.bytes(1, tostring(title)) .. (kind == "Margin"
          and pb.bytes(3, pb.bytes(1, content)) or pb.bytes(2, content)))
      end
      categories[#categories + 1] = pb.bytes(2, pb.bytes(1, tostring(category)) .. table.concat(charts))
    end
    self:value("custom_scalars__config__", pb.bytes(8, pb.int(1, 7) .. pb.bytes(2, "")
      .. pb.bytes(8, table.concat(categories))) .. metadata("custom_scalars"))
  end

  --- Which scalars stand in one chart: { category = { title = { "Multiline", { tags } } } }, or { "Margin", { value,
  -- lower, upper } }. Once for each writer.
  Writer.add_custom_scalars = signature.method("add_custom_scalars(table layout)", function(self, layout)
    layout_of(self, layout)
  end)
  --- One chart of several lines.
  Writer.add_custom_scalars_multilinechart = signature.method("add_custom_scalars_multilinechart(string[] tags, \z
    string category='default', string title='untitled')", function(self, tags, category, title)
    layout_of(self, { [category] = { [title] = { "Multiline", tags } } })
  end)
  --- One chart of a value between two others.
  Writer.add_custom_scalars_marginchart = signature.method("add_custom_scalars_marginchart(string[] tags, \z
    string category='default', string title='untitled')", function(self, tags, category, title)
    layout_of(self, { [category] = { [title] = { "Margin", tags } } })
  end)

  --- A tensor of any shape and dtype, as it is.
  Writer.add_tensor = signature.method("add_tensor(string tag, Tensor tensor, size global_step=0, number walltime?)",
  function(self, tag, tensor, step, walltime)
    local t = tensor:detach():to { device = "cpu" }:contiguous()
    local number = dtypes[t:dtype().name]
    if not number then check.fail("[add_tensor] TensorBoard has no %s", t:dtype().name) end
    local bytes = t:numel() > 0 and B.bytes(t) or ""
    local message = pb.int(1, number) .. shape_of(t.shape) .. pb.bytes(4, bytes)
    self:value(tag, pb.bytes(8, message) .. metadata("tensor"), step, walltime)
  end)

  --- A histogram that is counted already: bucket_limits are the upper ends of the buckets.
  Writer.add_histogram_raw = signature.method("add_histogram_raw(string tag, number min, number max, number num, \z
    number sum, number sum_squares, Tensor|number[] bucket_limits, Tensor|number[] bucket_counts, size global_step=0, \z
    number walltime?)", function(self, tag, low, high, n, sum, squares, limits, counts, step, walltime)
    local function list(v) return B.is_tensor(v) and v:double():tolist() or v end
    limits, counts = list(limits), list(counts)
    if #limits ~= #counts then
      check.fail("[add_histogram_raw] expected as many limits as counts, got %d and %d", #limits, #counts)
    end
    self:value(tag, pb.bytes(5, pb.double(1, low) .. pb.double(2, high) .. pb.double(3, n) .. pb.double(4, sum)
      .. pb.double(5, squares) .. pb.doubles(6, limits) .. pb.doubles(7, counts)), step, walltime)
  end)
end
