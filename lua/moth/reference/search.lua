--- The page with the search: a list of all entries, and a script that shows those that have the words.
local html = require "moth.reference.html"

local script = [[
const box = document.getElementById("q"), list = document.getElementById("found"), all = document.getElementById("all");
function search(text) {
  const words = text.toLowerCase().replace(/_/g, "").split(/[^a-z0-9.:]+/).filter(w => w);
  const found = [];
  for (const [name, url, doc] of entries) {
    const own = name.toLowerCase().replace(/_/g, ""), last = own.split(/[.:]/).pop();
    const about = doc.toLowerCase().replace(/_/g, "");
    let score = 0;
    for (const w of words) {
      const s = last === w || own === w ? 8 : last.startsWith(w) ? 4 : own.includes(w) ? 2
        : about.includes(w) ? 1 : 0;
      if (!s) { score = 0; break; }
      score += s;
    }
    if (score) found.push([score, name, url, doc]);
  }
  found.sort((a, b) => b[0] - a[0] || a[1].length - b[1].length || (a[1] < b[1] ? -1 : 1));
  list.textContent = "";
  for (const [, name, url, doc] of found.slice(0, 100)) {
    const row = list.appendChild(document.createElement("tr"));
    const link = row.appendChild(document.createElement("td")).appendChild(document.createElement("a"));
    link.href = url;
    link.textContent = name;
    row.appendChild(document.createElement("td")).textContent = doc;
  }
  if (words.length && !found.length) list.textContent = "nothing has these words";
  all.hidden = words.length > 0;
}
box.addEventListener("input", () => search(box.value));
box.value = new URLSearchParams(location.search).get("q") || "";
search(box.value);
]]

local function quoted(text)
  return '"' .. text:gsub('[%c"\\<]', function(c) return ("\\u%04x"):format(c:byte()) end) .. '"'
end

--- The page. entries: { { name, url, doc } }; `listing`: what is shown where nothing is searched for.
return function(title, entries, listing)
  local rows = {}
  for i, e in ipairs(entries) do rows[i] = ("[%s,%s,%s]"):format(quoted(e[1]), quoted(e[2]), quoted(e[3])) end
  return (html.page(title, "", ([[
<h1>%s</h1>
<p><input id="q" size="40" placeholder="an op, a function, a class, a word" autofocus aria-label="search"></p>
<table id="found"></table>
<div id="all">
%s
</div>
<script>
const entries = [
%s
];
%s</script>]]):format(html.escape(title), listing, table.concat(rows, ",\n"), script)):gsub("<form.-</form>", "", 1))
end
