"use strict";
// Heat maps: two bytes a cell, drawn on a canvas, with the value under the pointer in words below it.
const LOW = [255, 255, 255], HIGH = [8, 48, 107], AGAINST = [103, 0, 31];

function cellsOf(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Int16Array(bytes.buffer);
}

function colour(share, changes) {
  const end = share < 0 ? AGAINST : HIGH;
  // By the square root for amounts: an average over many positions is small everywhere and would not be seen.
  const strength = changes ? Math.abs(share) : Math.sqrt(share);
  return LOW.map((low, channel) => low + (end[channel] - low) * Math.min(1, strength));
}

function words(data, row, column, value) {
  const names = data.names ? JSON.parse(data.names) : null;
  const down = names ? names[row] : `${data.down} ${row + Number(data.firstRow)}`;
  const across = `${data.across} ${column + Number(data.firstColumn)}`;
  const offset = row + Number(data.firstRow) - column - Number(data.firstColumn);
  const place = names ? `${down}, ${across}` : `${down}, ${across} (offset ${offset})`;
  return `${place}: ${!names && offset < 0 ? "not visible" : value.toFixed(4)}`;
}

for (const canvas of document.querySelectorAll("canvas[data-cells]")) {
  const data = canvas.dataset, cells = cellsOf(data.cells);
  const rows = Number(data.rows), columns = Number(data.columns), most = Number(data.most);
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  cells.forEach((cell, index) => image.data.set([...colour(cell / 32767, data.changes === "yes"), 255], 4 * index));
  canvas.getContext("2d").putImageData(image, 0, 0);
  data.drawn = "yes";
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.min(columns - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * columns)));
    const row = Math.min(rows - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * rows)));
    const value = cells[row * columns + column] / 32767 * most;
    canvas.closest("figure").querySelector(".tip").textContent = words(data, row, column, value);
  });
}
