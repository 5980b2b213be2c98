--- models.Mamba: a language model that keeps a state of one size instead of keys and values (Gu & Dao 2023), with
-- Hugging Face's names.
--
--     local net = moth.models.Mamba.from_pretrained "folder"
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local activations = require "moth.models.activations"
local generate = require "moth.models.generate"
local pretrained = require "moth.models.pretrained"

local PIECE = 64 -- tokens whose factors are in memory at once

-- Between calls: of each layer the last inputs of its convolution (B, I, K - 1), and its state (B, I, N).
local State = class "Mamba.State"
function State:__init() self.n, self.inputs, self.states = 0, {}, {} end

local Mixer = nn.class("Mamba.Mixer")
function Mixer:__init(c)
  local I, bias = c.intermediate_size, { bias = c.use_bias }
  self.rank, self.N, self.kernel = c.time_step_rank, c.state_size, c.conv_kernel
  self.in_proj = nn.Linear(c.hidden_size, 2 * I, bias)
  self.conv1d = nn.Conv1d(I, I, c.conv_kernel, { groups = I, bias = c.use_conv_bias })
  self.x_proj = nn.Linear(I, c.time_step_rank + 2 * c.state_size, { bias = false })
  self.dt_proj = nn.Linear(c.time_step_rank, I)
  local steps = moth.arange(1, c.state_size + 1, { dtype = moth.float32 })
  self.A_log = nn.Parameter(steps:log():unsqueeze(1):expand(I, c.state_size):contiguous())
  self.D = nn.Parameter(moth.ones(I))
  self.out_proj = nn.Linear(I, c.hidden_size, bias)
  self.act = activations.known[c.hidden_act]
end

-- Outputs (B, T, I) of the recurrence h = exp(dt A) h + dt B u, y = C h, and the last h.
local function scanned(h, u, dt, A, B, C)
  local T, out = u:size(2), {}
  for first = 1, T, PIECE do
    local n = math.min(PIECE, T - first + 1)
    local d, v = dt:narrow(2, first, n), u:narrow(2, first, n)
    local keep = (d:unsqueeze(4) * A):exp() -- (B, n, I, N)
    local add = (d * v):unsqueeze(4) * B:narrow(2, first, n):unsqueeze(3)
    local states = {}
    for t = 1, n do
      h = keep:select(2, t) * h + add:select(2, t)
      states[t] = h
    end
    out[#out + 1] = (moth.stack(states, 2) * C:narrow(2, first, n):unsqueeze(3)):sum(4)
  end
  return #out == 1 and out[1] or moth.cat(out, 2), h
end

-- mask (B, T, 1) or nil: 0 where padding is.
function Mixer:forward(x, state, i, mask)
  if mask then x = x * mask end
  local both = self.in_proj(x)
  local I = both:size(3) / 2
  local u, gate = both:narrow(3, 1, I):transpose(2, 3), both:narrow(3, I + 1, I)
  local before = state and state.inputs[i]
    or moth.zeros({ u:size(1), I, self.kernel - 1 }, { dtype = u:dtype(), device = u:device() })
  local all = moth.cat({ before, u }, 3)
  u = self.act(self.conv1d(all)):transpose(2, 3)
  if mask then u = u * mask end
  local made = self.x_proj(u)
  local function part(first, n) return made:narrow(3, first, n):to(moth.float32) end
  local dt = nn.functional.softplus(self.dt_proj(made:narrow(3, 1, self.rank)):to(moth.float32))
  local wide = u:to(moth.float32)
  local h = state and state.states[i]
    or moth.zeros({ u:size(1), I, self.N }, { dtype = moth.float32, device = u:device() })
  local y
  y, h = scanned(h, wide, dt, -self.A_log:to(moth.float32):exp(), part(self.rank + 1, self.N),
    part(self.rank + self.N + 1, self.N))
  if state then
    state.inputs[i], state.states[i] = all:narrow(3, all:size(3) - self.kernel + 2, self.kernel - 1):contiguous(), h
  end
  y = (y + wide * self.D:to(moth.float32)):to(x:dtype())
  return self.out_proj(y * gate:silu()) -- whatever hidden_act is
end

local Block = nn.class("Mamba.Block")
function Block:__init(c)
  self.norm, self.mixer = nn.RMSNorm(c.hidden_size, { eps = c.layer_norm_epsilon }), Mixer(c)
  self.wide = c.residual_in_fp32
end
function Block:forward(x, state, i, mask)
  local y = self.mixer(self.norm(x:to(self.norm.weight:dtype())), state, i, mask)
  return (self.wide and x:to(moth.float32) or x) + y
end

local Trunk = nn.class("Mamba.Model")
function Trunk:__init(c)
  self.embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
  local layers = {}
  for i = 1, c.num_hidden_layers do layers[i] = Block(c) end
  self.layers, self.norm_f = nn.ModuleList(layers), nn.RMSNorm(c.hidden_size, { eps = c.layer_norm_epsilon })
end

local Mamba = nn.class("Mamba")
Mamba.stateful = true -- what is kept of a text cannot be cut back, or begin in its middle

--- The fields of config.json; max_length: the longest text, which the model itself does not bound.
Mamba.__init = signature.init("models.Mamba(*, count vocab_size, count hidden_size=768, count state_size=16, \z
  count num_hidden_layers=32, count intermediate_size?, count conv_kernel=4, count time_step_rank?, \z
  bool use_bias=false, bool use_conv_bias=true, string hidden_act='silu', number layer_norm_epsilon=1e-5, \z
  bool residual_in_fp32=true, bool tie_word_embeddings=true, number initializer_range=0.1, \z
  count max_length=131072)", function(self, c)
  c.intermediate_size = c.intermediate_size or 2 * c.hidden_size
  c.time_step_rank = c.time_step_rank or math.ceil(c.hidden_size / 16)
  activations.of(c.hidden_act, "models.Mamba")
  self.config, self.max_length, self.backbone = c, c.max_length, Trunk(c)
  if not c.tie_word_embeddings then self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, { bias = false }) end
  nn.init.normal_(self.backbone.embeddings.weight, 0, c.initializer_range)
end)

--- The state before a text; of any count of rows.
function Mamba.new_cache(_, _, _, kind)
  if kind then check.fail "[models.Mamba] cache: there are no keys and values, but a state" end
  return State()
end

-- Hidden states of tokens behind those of a state.
local function hidden(self, idx, state, mask)
  local T, past = idx:size(2), state and state.n or 0
  if past + T > self.max_length then
    check.fail("[models.Mamba] %d tokens are more than max_length, %d", past + T, self.max_length)
  end
  local x = self.backbone.embeddings(idx)
  if mask then mask = mask:narrow(2, mask:size(2) - T + 1, T):ne(0):to(x:dtype()):unsqueeze(3) end
  for i = 1, self.config.num_hidden_layers do x = self.backbone.layers[i](x, state, i, mask) end
  if state then state.n = past + T end
  local norm = self.backbone.norm_f
  return norm(x:to(norm.weight:dtype()))
end

local function head(self, x)
  return self.lm_head and self.lm_head(x) or self.backbone.embeddings:as_linear(x)
end

--- Logits of tokens behind those of a state: idx (B, T), ids from 1; cache of new_cache, or nil; mask (B, all tokens),
-- bool: false where padding is; last: of the last token only
function Mamba:decode(idx, cache, mask, last)
  local x = hidden(self, idx, cache, mask)
  if last then x = x:narrow(2, idx:size(2), 1) end
  return head(self, x)
end

--- The last hidden states (B, T, hidden_size) of tokens.
function Mamba:features(idx, mask) return hidden(self, idx, nil, mask) end

--- What llm.PagedCache keeps: next to nothing, as a sequence has its state.
function Mamba:cache_sizes() return { layers = 1, heads = 1, dim = 1 }, self.backbone.norm_f.weight end

--- Logits of some tokens of a step of llm.PagedCache: sequences one after the other, each with its state.
function Mamba:step(pages, rows)
  local at, all = 1, {}
  for i, part in ipairs(pages.parts) do
    local seq = part.seq
    if seq.n == 0 then seq.state = State() end
    all[i] = hidden(self, pages.tokens:narrow(2, at, part.count), seq.state)
    at = at + part.count
  end
  return head(self, generate.rows(#all == 1 and all[1] or moth.cat(all, 2), rows))
end

--- idx (B, T), ids from 1; targets (B, T) likewise, optional.
-- @return logits (B, T, vocab_size); with targets also the mean cross-entropy
function Mamba:forward(idx, targets)
  local logits = self:decode(check.tensor("models.Mamba", "idx", idx))
  if targets == nil then return logits end
  check.tensor("models.Mamba", "targets", targets)
  return logits, nn.functional.cross_entropy(logits:view(-1, self.config.vocab_size), targets:reshape(-1))
end

generate.install(Mamba, "Mamba")

local names = { vocab_size = false, hidden_size = false, state_size = 16, num_hidden_layers = false, conv_kernel = 4,
  use_bias = false, use_conv_bias = true, layer_norm_epsilon = 1e-5, residual_in_fp32 = true,
  tie_word_embeddings = true }
local fields = { honoured = "vocab_size hidden_size state_size num_hidden_layers conv_kernel use_bias use_conv_bias \z
    layer_norm_epsilon residual_in_fp32 tie_word_embeddings intermediate_size expand time_step_rank hidden_act",
  inert = "time_step_scale time_step_min time_step_max time_step_init_scheme time_step_floor rescale_prenorm_residual \z
    use_mambapy use_associative_scan fused_add_norm rms_norm ssm_cfg d_model n_layer d_inner layer_types",
  only = { model_type = function(v) return v == "mamba" end } }

--- The model of a folder that Hugging Face's save_pretrained wrote. o: see Llama.from_pretrained.
function Mamba.from_pretrained(folder, o)
  local where = "models.Mamba.from_pretrained"
  o = check.options(where, o, "mapped ignore_fields")
  local config, sd = pretrained.read(folder, where, o.mapped)
  pretrained.refuse_unknown(config, where, fields, o.ignore_fields)
  local function of(field, default) return pretrained.field(config, where, field, default) end
  local c = { hidden_act = activations.of(of("hidden_act", "silu"), where, "config.json: hidden_act") }
  for name, default in each(names) do
    if default == false and name ~= "use_bias" then c[name] = of(name) else c[name] = of(name, default) end
  end
  c.intermediate_size = math.floor(config.intermediate_size or of("expand", 2) * c.hidden_size)
  local rank = config.time_step_rank
  c.time_step_rank = type(rank) == "number" and rank or nil
  local own = {}
  for name, t in each(sd) do
    name = name:gsub("^embeddings%.", "backbone.embeddings."):gsub("^layers%.", "backbone.layers.")
    own[name:gsub("embedding%.weight$", "embeddings.weight"):gsub("^norm_f%.", "backbone.norm_f.")] = t
  end
  pretrained.one_dtype(own, where)
  local model = o.mapped and moth.fake_mode(Mamba, c) or Mamba(c)
  local spare = { c.tie_word_embeddings and "^lm_head%.weight$" or nil }
  return pretrained.load(model, own, where, spare, o.mapped):eval()
end

return Mamba
