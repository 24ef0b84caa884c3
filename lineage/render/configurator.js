"use strict";
(async () => {
  const { order, packed } = JSON.parse(document.getElementById("data").textContent);
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const { pool, rows } = await new Response(stream).json();
  const form = document.querySelector("form");
  const place = (id) => document.getElementById(id);
  const texts = (numbers, between) => numbers.map((number) => pool[number]).join(between);

  const chosen = () => order.map(([name]) => Number(new FormData(form).get(name)));
  const row = () => order.reduce((sum, [, count], i) => sum * count + chosen()[i], 0);
  const choose = (number) => {
    for (const [name, count] of [...order].reverse()) {
      form.elements[name][number % count].checked = true;
      number = Math.floor(number / count);
    }
    show();
  };

  // Nothing is computed here: a row holds what was said of this combination when the page was made.
  const show = () => {
    const [figures, drawing, python, remarks, spec] = rows[row()];
    place("figures").querySelectorAll("dd").forEach((node, i) => (node.textContent = figures[i]));
    place("drawing").innerHTML = texts(drawing, "");
    place("near").innerHTML = texts(remarks, "");
    place("python").textContent = texts(python, "\n");
    place("json").textContent = JSON.stringify(JSON.parse(texts(spec, "")), null, 1);
    for (const input of form.querySelectorAll("input:checked"))
      input.closest("fieldset").querySelector(".why").textContent = input.dataset.why;
  };

  form.addEventListener("change", () => {
    show();
    history.replaceState(null, "", `#${chosen().join("-")}`); // to be shared
  });
  for (const button of document.querySelectorAll("[data-row]"))
    button.addEventListener("click", () => {
      choose(Number(button.dataset.row));
      form.dispatchEvent(new Event("change"));
    });
  const shared = /^#\d+(-\d+)*$/.test(location.hash) ? location.hash.slice(1).split("-").map(Number) : [];
  const known = shared.length === order.length && shared.every((pick, i) => pick < order[i][1]);
  choose(known ? order.reduce((sum, [, count], i) => sum * count + shared[i], 0) : row());
})();
