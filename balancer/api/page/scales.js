// Colours for figures and for names. All of them can be told apart with any kind of colour vision: the ramp by its
// lightness alone, the names by the palette of Okabe and Ito.
export const darkMode = window.matchMedia("(prefers-color-scheme: dark)");
export const lessMotion = window.matchMedia("(prefers-reduced-motion: reduce)");

const DARK = [[36, 52, 98], [64, 86, 168], [126, 78, 178], [206, 84, 138], [246, 144, 86], [255, 226, 132]];
const LIGHT = [[222, 230, 244], [168, 196, 236], [140, 140, 214], [166, 74, 160], [176, 34, 84], [92, 8, 34]];
const NAMES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7f7f7f"];

export function ramp() {
  const stops = darkMode.matches ? DARK : LIGHT;
  return Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    return stops[low].map((value, channel) => Math.round(value + (stops[low + 1][channel] - value) * (place - low)));
  });
}

export const rampText = () => ramp().map((parts) => `rgb(${parts.join(",")})`);
export const nameColour = (number) => NAMES[number % NAMES.length];

export function nameParts(number) {
  const text = nameColour(number);
  return [1, 3, 5].map((from) => parseInt(text.slice(from, from + 2), 16));
}

// Rates differ by powers of ten: a level is the logarithm, as in the heat map's own bytes.
export const level = (value, most) => (most > 0 ? Math.max(0, Math.min(255, Math.round((255 * Math.log1p(value)) / Math.log1p(most)))) : 0);

export function gradient(width = 120) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = 1;
  canvas.className = "gradient";
  const context = canvas.getContext("2d");
  rampText().forEach((colour, at) => {
    context.fillStyle = colour;
    context.fillRect((at * width) / 256, 0, width / 256 + 1, 1);
  });
  return canvas;
}

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
