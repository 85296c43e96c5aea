"use strict";
// Shows the value of the cell under the pointer below each heat map.

function cellsOf(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Int16Array(bytes.buffer);
}

function words(data, row, column, value) {
  const names = data.names ? JSON.parse(data.names) : null;
  const down = names ? names[row] : `${data.down} ${row + Number(data.firstRow)}`;
  const across = `${data.across} ${column + Number(data.firstColumn)}`;
  const offset = row + Number(data.firstRow) - column - Number(data.firstColumn);
  const place = names ? `${down}, ${across}` : `${down}, ${across} (offset ${offset})`;
  return `${place}: ${!names && offset < 0 ? "not visible" : value.toFixed(4)}`;
}

for (const map of document.querySelectorAll("img[data-cells]")) {
  const data = map.dataset, cells = cellsOf(data.cells);
  const rows = Number(data.rows), columns = Number(data.columns);
  map.addEventListener("pointermove", (event) => {
    const box = map.getBoundingClientRect();
    const column = Math.min(columns - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * columns)));
    const row = Math.min(rows - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * rows)));
    const value = cells[row * columns + column] / 32767 * Number(data.most);
    map.closest("figure").querySelector(".tip").textContent = words(data, row, column, value);
  });
}
