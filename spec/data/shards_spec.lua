-- Archives of data.WebDataset that are streams: URLs, s3 and commands. A script stands for curl: it reads the
-- configuration that moth writes, keeps it, and gives the file that the URL ends with.
local moth = require "moth"
local ffi = require "ffi"

local CURL = [[#!/bin/sh
cat > "$FAKE/config"
name=$(sed -n 's/^url = ".*\/\([^/?"]*\).*"$/\1/p' "$FAKE/config")
[ -e "$FAKE/$name" ] || {
  echo x >> "$FAKE/asked"
  echo "curl: (22) The requested URL returned error: 404" >&2
  exit 22
}
case $(wc -l < "$FAKE/turns" 2>/dev/null) in
  2) cat "$FAKE/$name";;
  *) echo x >> "$FAKE/turns"; head -c 2000 "$FAKE/$name"; echo "curl: (18) transfer closed" >&2; exit 18;;
esac
]]

describe("WebDataset's streams #M236 #noasan", function()
  if not pcall(ffi.load, "libarchive.so.13") then
    pending("needs libarchive.so.13")
    return
  end
  local dir, before

  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
    assert(os.execute(("mkdir -p %s/bin %s/in; cd %s/in; for i in 1 2 3 4 5; do echo $i > $i.cls; echo t$i > "
      .. "$i.txt; done; tar cf ../a.tar *; tar czf ../b.tar.gz *"):format(dir, dir, dir, dir)) == 0)
    before = { PATH = os.getenv "PATH", FAKE = "" }
    moth.setenv("PATH", dir .. "/bin:" .. before.PATH)
    moth.setenv("FAKE", dir)
    local f = assert(io.open(dir .. "/bin/curl", "w"))
    f:write(CURL)
    f:close()
    assert(os.execute("chmod +x " .. dir .. "/bin/curl") == 0)
  end)
  after_each(function()
    for name, value in pairs(before) do moth.setenv(name, value) end
    os.execute("rm -r " .. dir)
  end)

  local function content(name)
    local f = io.open(dir .. "/" .. name)
    local text = f and f:read "*a"
    if f then f:close() end
    return text
  end

  local function read(url, options)
    local out, next_sample = {}, moth.data.WebDataset(url, options):decode():iter()
    for sample in next_sample do out[#out + 1] = sample.cls - 1 .. sample.txt:gsub("\n", "") end
    return table.concat(out, " ")
  end
  local ALL = "1t1 2t2 3t3 4t4 5t5"

  it("are what a command writes", function()
    assert.equal(ALL, read("pipe:cat " .. dir .. "/a.tar"))
    assert.equal(ALL .. " " .. ALL, read { "file:" .. dir .. "/a.tar", "pipe:gunzip < " .. dir .. "/b.tar.gz # all" })
    local again = moth.data.DataLoader(moth.data.WebDataset("pipe:cat " .. dir .. "/{a.tar,b.tar.gz}"):decode()
      :to_tuple "cls", { batch_size = 10, num_workers = 2 })
    local n = 0
    for x in again:iter() do n = n + x:sum():item() end
    assert.equal(40, n)
  end)

  it("say what a command said, and that it failed though all members came", function()
    assert.error_matches(function() read("pipe:echo no such bucket >&2; exit 7", { retries = 0 }) end,
      "archive: pipe:.*: its command ended with exit status 7: no such bucket")
    assert.error_matches(function() read("pipe:cat " .. dir .. "/a.tar; kill -9 $$", { retries = 0 }) end,
      "signal 9")
    assert.error_matches(function() read("pipe:cat /nowhere | cat", { retries = 0 }) end,
      "exit status 1: cat: /nowhere")
    assert.error_matches(function() read "pipe:yes" end, "cannot open pipe:yes: Unrecognized archive format")
    assert.error_matches(function() read("pipe:head -c 5000 " .. dir .. "/a.tar", { retries = 0 }) end,
      "cannot read pipe:.*runcated")
    assert.error_matches(function() read "pipe:nosuch" end, "exit status 127.*nosuch")
  end)

  it("are begun again where they break, and no sample is lost or repeated", function()
    assert.equal(ALL, read("http://host/x/a.tar"))
    os.remove(dir .. "/turns")
    assert.error_matches(function() read("http://host/a.tar", { retries = 1 }) end, "exit status 18: curl: %(18%)")
    assert.error_matches(function() -- another file the second time
      read((("pipe:if [ -e D/f ]; then cat D/b.tar.gz; else touch D/f; tar cC D/in 2.cls 2.txt 3.cls; exit 1; fi")
        :gsub("D", dir)))
    end, "other members than when it was read before")
  end)

  it("are kept where there is a folder for them", function()
    local options = { cache_dir = dir .. "/not/there/kept" }
    assert.equal(ALL, read("https://host/a.tar?sign=1", options))
    os.execute("rm " .. dir .. "/bin/curl; cat " .. dir .. "/not/there/kept/* | cmp - " .. dir .. "/a.tar")
    assert.equal(ALL, read("https://host/a.tar?sign=1", options))
    local function first()
      return moth.data.WebDataset("pipe:cat " .. dir .. "/a.tar; sleep 100", options):iter()().cls
    end
    local cls = first()
    assert.equal("1\n", cls)
    collectgarbage()
    collectgarbage()
    local list = io.popen("ls " .. dir .. "/not/there/kept")
    local names = list:read "*a"
    list:close()
    assert.matches("^%x+%-a.tar\n$", names) -- no part of the other
  end)

  it("tell curl what is secret by its input, and errors leave it out", function()
    assert.error_matches(function() read "https://me:word@host/none.tar?sign=1" end,
      "archive: https://host/none.tar: its command ended with exit status 22: .*404")
    assert.equal("x\n", content "asked") -- what is not there is not asked for again
    assert.equal('url = "https://me:word@host/none.tar?sign=1"\n', content "config")
    local names = { "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION",
      "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3" }
    for _, name in ipairs(names) do
      before[name] = os.getenv(name) or ""
      moth.setenv(name, "")
    end
    assert.equal(ALL, read "s3://bucket/some dir/a.tar")
    assert.equal('url = "https://bucket.s3.us-east-1.amazonaws.com/some%20dir/a.tar"\n', content "config")
    for name, value in pairs { AWS_ACCESS_KEY_ID = "id", AWS_SECRET_ACCESS_KEY = 'k"y\\', AWS_SESSION_TOKEN = "t",
      AWS_REGION = "eu-x", AWS_ENDPOINT_URL = "http://minio:9000/" } do
      moth.setenv(name, value)
    end
    assert.equal(ALL, read "s3://bucket/a.tar")
    assert.equal('url = "http://minio:9000/bucket/a.tar"\nuser = "id:k\\"y\\\\"\naws-sigv4 = "aws:amz:eu-x:s3"\n'
      .. 'header = "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"\n'
      .. 'header = "x-amz-security-token: t"\n', content "config")
  end)

  it("of other schemes are refused by name", function()
    assert.error_matches(function() moth.data.WebDataset "gs://b/a.tar" end,
      "'gs:' cannot be read; expected a file, http")
    assert.error_matches(function() read "s3://bucket" end, "expected s3://bucket/key")
  end)
end)
