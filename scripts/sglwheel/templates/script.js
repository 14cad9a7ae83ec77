"use strict";
(function () {
  var up = document.documentElement.dataset.up, base = new URL(up, document.baseURI);
  function quote(text) {
    return /^[\w@%+=:,.\/-]+$/.test(text) ? text : "'" + text.replace(/'/g, "'\"'\"'") + "'";
  }
  function place() {
    var text = base.protocol === "file:" ? decodeURIComponent(base.pathname) : base.href;
    return text.replace(/\/+$/, "");
  }
  // A bucket knows no index for a directory.
  function page(rest) { return base.protocol === "file:" ? rest : rest.replace(/\/$/, "/index.html"); }
  var fills = {
    shell: function (text) {
      return text.replace(/"\$WHEELHOUSE([^"]*)"/g, function (_, rest) { return quote(place() + page(rest)); });
    },
    toml: function (text) {
      return text.replace(/"\$WHEELHOUSE([^"]*)"/g, function (_, rest) { return JSON.stringify(place() + page(rest)); });
    },
    url: function (text) {
      return text.replace(/\$\{WHEELHOUSE\}(\S*)/g, function (_, rest) {
        return base.href.replace(/\/+$/, "") + page(rest);
      });
    }
  };
  // Whole words go to the next line: a version that is broken at its hyphen reads like two.
  function lay(part, text) {
    part.textContent = "";
    text.split(/(\s+)/).forEach(function (word) {
      if (!word.trim()) { part.append(word); return; }
      var span = document.createElement("span");
      span.className = "word";
      span.textContent = word;
      part.append(span);
    });
  }
  document.querySelectorAll("[data-fill]").forEach(function (part) {
    lay(part, fills[part.dataset.fill](part.textContent));
  });
  function line(button) {
    var row = button.closest(".row");
    var only = '--no-index --no-cache --find-links "$WHEELHOUSE/builds/' + row.id + '/" ';
    if (row.dataset.alone) {
      return fills.shell("uv pip install --no-deps " + only + quote(row.dataset.pin));
    }
    return fills.shell("uv pip list --format=freeze | grep '^torch==' > node-torch.txt; uv pip install " + only +
      "--constraint node-torch.txt " + quote(row.dataset.pin));
  }
  function copied(button, well) {
    var label = button.textContent;
    button.textContent = well ? "Copied" : "Press Ctrl+C";
    setTimeout(function () { button.textContent = label; }, 1600);
  }
  // What is copied can be read, and taken by hand where the clipboard is closed.
  function shown(button) {
    var old = document.getElementById("said"), said = document.createElement("pre");
    if (old) { old.remove(); }
    said.id = "said";
    said.setAttribute("role", "status");
    button.closest(".row").append(said);
    lay(said, line(button));
    return said;
  }
  function copy(part, button) {
    var text = part.textContent;
    function give(event) { event.clipboardData.setData("text/plain", text); event.preventDefault(); }
    function byHand() {
      var well = false;
      window.getSelection().selectAllChildren(part);
      document.addEventListener("copy", give);
      try { well = document.execCommand("copy"); } catch (error) { well = false; }
      document.removeEventListener("copy", give);
      copied(button, well);
    }
    if (navigator.clipboard && window.isSecureContext) {
      navigator.clipboard.writeText(text).then(function () { copied(button, true); }, byHand);
    } else { byHand(); }
  }
  document.addEventListener("click", function (event) {
    var button = event.target.closest("button[data-copy]");
    if (!button) { return; }
    copy(button.dataset.copy ? document.getElementById(button.dataset.copy) : shown(button), button);
  });
  document.querySelectorAll("button[data-copy]").forEach(function (button) { button.hidden = false; });
  var input = document.getElementById("filter");
  if (!input) { return; }
  var rows = Array.prototype.map.call(document.querySelectorAll(".row"), function (row) {
    return { row: row, text: (row.textContent + " " + row.id + " " + row.dataset.more).toLowerCase() };
  });
  var count = document.getElementById("count"), waiting = 0;
  function sift() {
    var words = input.value.toLowerCase().split(/\s+/).filter(Boolean), shown = 0;
    rows.forEach(function (item) {
      var hit = words.every(function (word) { return item.text.indexOf(word) >= 0; });
      if (item.row.hidden === hit) { item.row.hidden = !hit; }
      shown += hit ? 1 : 0;
    });
    count.textContent = shown === rows.length ? rows.length + (rows.length === 1 ? " release" : " releases")
      : shown + " of " + rows.length;
  }
  input.addEventListener("input", function () { clearTimeout(waiting); waiting = setTimeout(sift, rows.length > 2000 ? 120 : 0); });
  document.addEventListener("keydown", function (event) {
    if (event.key === "/" && document.activeElement !== input && !event.ctrlKey && !event.metaKey) {
      event.preventDefault(); input.focus(); input.select();
    } else if (event.key === "Escape" && document.activeElement === input) { input.value = ""; sift(); }
  });
  input.closest(".find").hidden = false;
  sift();
})();
