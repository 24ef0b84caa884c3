"use strict";
(() => {
  const only = document.getElementById("only");
  const hide = () => document.body.classList.toggle("only", only.checked);
  if (only) {
    only.addEventListener("change", hide);
    hide(); // a reload keeps the box as it was
  }

  const differing = () => [...document.querySelectorAll('[data-state][tabindex]:not([data-state="same"])')];
  const go = (step) => {
    const all = differing();
    if (!all.length) return;
    const at = all.indexOf(document.activeElement);
    const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : (at + step + all.length) % all.length];
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "center" });
  };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input:not([type=checkbox], [type=radio]), textarea, select");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "n") go(1);
    if (event.key === "p") go(-1);
  });
  for (const button of document.querySelectorAll("[data-go]"))
    button.addEventListener("click", () => go(Number(button.dataset.go)));

  const select = (node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  };
  for (const button of document.querySelectorAll("[data-copy]"))
    button.addEventListener("click", async () => {
      const node = document.getElementById(button.dataset.copy);
      select(node); // where the clipboard is closed to us, the reader's own copy command does it
      try {
        await navigator.clipboard.writeText(node.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = document.execCommand("copy") ? "Copied" : "Selected: copy it now";
      }
    });
})();
