--- Where the archives of data.WebDataset come from: files, URLs (http, https and s3, by curl), and what commands write
-- (pipe:). data.webdataset reads their members by M.members.
--
-- A stream that breaks is begun again, and what was given of it is passed over: no member is lost or repeated.
local B = require "moth_lua"
local check = require "moth.utils.check"
local system = require "moth.utils.system"

local M = {}

local CURL = "curl -fsSL --connect-timeout 10 --speed-limit 1 --speed-time 60 -K -"

-- A line of curl's own configuration, which it reads from its input: a URL or a key is on no command line.
local function setting(name, value) return ('%s = "%s"\n'):format(name, (value:gsub('[\\"]', "\\%0"))) end

local variable = system.getenv

-- s3://bucket/key, as the AWS tools read their variables; not signed where these have no key.
local function s3(url)
  local bucket, key = url:match "^s3://([^/]+)/(.+)$"
  if not bucket then check.fail("[data.WebDataset] %s: expected s3://bucket/key", url) end
  key = key:gsub("[^%w%-%._~/]", function(c) return ("%%%02X"):format(c:byte()) end)
  local region = variable "AWS_REGION" or variable "AWS_DEFAULT_REGION" or "us-east-1"
  local endpoint = variable "AWS_ENDPOINT_URL_S3" or variable "AWS_ENDPOINT_URL"
  local out = setting("url", endpoint and ("%s/%s/%s"):format(endpoint:gsub("/+$", ""), bucket, key)
    or ("https://%s.s3.%s.amazonaws.com/%s"):format(bucket, region, key))
  local id, secret, token = variable "AWS_ACCESS_KEY_ID", variable "AWS_SECRET_ACCESS_KEY", variable "AWS_SESSION_TOKEN"
  if not (id and secret) then return out end
  out = out .. setting("user", id .. ":" .. secret) .. setting("aws-sigv4", "aws:amz:" .. region .. ":s3")
    .. setting("header", "x-amz-content-sha256: " .. B.sha256 "") -- S3 wants it, which curl 7.88 leaves out
  return token and out .. setting("header", "x-amz-security-token: " .. token) or out
end

-- What makes a stream of a name: a command, and what it reads.
local schemes = {
  pipe = function(url) return url:sub(6), "" end,
  http = function(url) return CURL, setting("url", url) end,
  s3 = function(url) return CURL, s3(url) end,
}
schemes.https = schemes.http

--- Of a name: what opens it (nil: a file), and the name without a password or a signature, for errors.
function M.parse(name)
  local scheme = name:match "^(%a[%w+.-]*):"
  if not scheme then return nil, name end
  if scheme == "file" then return nil, (name:gsub("^file:", ""):gsub("^//", "")) end
  if not schemes[scheme] then
    check.fail("[data.WebDataset] %s: '%s:' cannot be read; expected a file, http://, https://, s3://, or pipe:command",
      name, scheme)
  end
  return schemes[scheme], scheme == "pipe" and name or (name:gsub("%?.*$", ""):gsub("//[^/@]*@", "//"))
end

-- Whether it makes sense to begin again.
local function is_passing(message)
  local code = tonumber(message:match "returned error: (%d%d%d)")
  if code then return code >= 500 or code == 408 or code == 429 end
  return message:find "ended with" and not message:find "exit status 12[67]" and not message:find "curl: %([123]%)"
    or message:find "archive: cannot read" and true
end

local function cached(name, folder)
  return ("%s/%s-%s"):format(folder, B.sha256(name):sub(1, 16), name:gsub("%?.*$", ""):gsub("^.*/", ""):sub(-100))
end

-- Keeps a copy of the stream in $1, which is there when it is whole, and only then.
local KEEP = [[
mkdir -p "${1%%/*}" && part=$(mktemp "$1.part-XXXXXX") || exit
trap 'rm -f "$part"' EXIT
trap 'exit 1' TERM
{ %s
} | tee "$part" && mv "$part" "$1"]]

local function open(name, folder)
  local make, shown = M.parse(name)
  if not make then return B.media.open_archive(shown) end
  local path = folder and cached(name, folder)
  if path and system.exists(path) then return B.media.open_archive(path) end
  local command, input = make(name)
  local text = path and KEEP:format(command) or command
  return B.media.open_command(shown, { "bash", "-o", "pipefail", "-c", text, "shard", path or nil }, input)
end

--- A function that gives the members (name, bytes) of the archive `name`, then nil. retries: how often a stream that
-- breaks is begun again, the first time after half a second. folder: keeps a copy of each stream.
function M.members(name, retries, folder)
  local given, failures, skip = {}, 0, 0
  local archive

  local function step()
    archive = archive or open(name, folder)
    while true do
      local member, bytes = B.media.next_member(archive)
      if not member then
        if skip > 0 then check.fail("archive: %s has fewer members than when it was read before", name) end
        B.media.close_archive(archive)
        return nil
      elseif skip == 0 then
        return member, bytes
      elseif given[#given - skip + 1] ~= member then
        check.fail("archive: %s has other members than when it was read before", name)
      end
      skip = skip - 1
    end
  end

  local is_stream = M.parse(name) ~= nil
  return function()
    while true do
      local ok, member, bytes = pcall(step)
      if ok then
        if is_stream and member then given[#given + 1] = member end
        return member, bytes
      end
      local message = tostring(member)
      if archive then B.media.close_archive(archive) end
      archive = nil
      if not is_stream or failures >= retries or not is_passing(message) then error(member, 0) end
      system.sleep(0.5 * 2 ^ failures)
      failures, skip = failures + 1, #given
    end
  end
end

return M
