"use strict";
/* The sliders of a report and the figure that follows them; posterior.js computes what is shown. */

(() => {
  const data = JSON.parse(document.getElementById("explore-data").textContent);
  const { levels, masses, predict, solve } = fromSums(data);
  const dims = data.lower.length;
  const find = (id) => document.getElementById(`explore-${id}`);
  const panel = find("panel");
  // The most features while a slider moves.
  const MOVING = 301;
  // The milliseconds of work between two looks at what the user does.
  const SLICE = 12;
  // The milliseconds without a move after which the features become as many as the page has room for.
  const PAUSE = 160;
  // The nats that the evidence may lose to too few features before more are taken.
  const LOSS = 1e-4;
  // The nats that are not worth a word.
  const NOTHING = 5e-4;
  // The share of the prior variance left out from which on bands are visibly too wide.
  const MUCH = 0.02;
  // Points along a curve.
  const POINTS = 801;
  // Cells along each side of a map.
  const CELLS = 96;
  // The share of a curve's range that is left free above and below it.
  const MARGIN = 0.05;
  // Half the width of a 95 % band, in standard deviations.
  const BAND = 1.96;

  const sliders = [...panel.querySelectorAll("input[type=range]")];
  const kernel = find("kernel");
  const leftOut = find("left-out");
  const stretch = find("stretch");
  const evenly = (low, high, count) =>
    Array.from({ length: count }, (_, i) => low + ((high - low) * i) / (count - 1));

  // ---------------------------------------------------------------- settings

  /** The hyperparameters that the sliders stand for: each step is a fixed factor. */
  function settings() {
    const learned = data.learned;
    const factors = Object.fromEntries(
      sliders.map((own) => [own.dataset.parameter, data.step ** own.valueAsNumber]));
    return {
      kernel: kernel.value,
      lengthscale: learned.lengthscale.map(
        (own, d) => own * (factors[`lengthscale${d}`] ?? factors.lengthscale0)),
      variance: learned.variance * factors.variance,
      noise: learned.noise * factors.noise ** 2,
      left_out: leftOut ? leftOut.selectedIndex : 0,
    };
  }

  const learnedSettings = () => ({ ...data.learned, left_out: settings().left_out });
  const isLearned = () =>
    kernel.value === data.learned.kernel && sliders.every((own) => own.valueAsNumber === 0);

  // ---------------------------------------------------------------- solving

  let current = null;
  // For each part left out and each number of features, the posterior of the learned values.
  const references = new Map();
  let move = 0;

  /** Run a computation to its end. */
  function atOnce(steps) {
    let step = steps.next();
    while (!step.done) step = steps.next();
    return step.value;
  }

  /** Run a computation in slices; undefined if the user has moved on. */
  async function inSlices(steps, own) {
    for (;;) {
      const until = performance.now() + SLICE;
      do {
        const step = steps.next();
        if (step.done) return step.value;
      } while (performance.now() < until);
      await new Promise((resume) => setTimeout(resume));
      if (own !== move) return undefined;
    }
  }

  const referenceName = (most) => `${settings().left_out} ${most}`;

  /** Show the posterior with few features at once, then with as many as are needed. */
  async function refresh() {
    const own = ++move;
    panel.dataset.state = "moving";
    try {
      if (!references.has(referenceName(MOVING))) {
        references.set(referenceName(MOVING), atOnce(solve(learnedSettings(), MOVING)));
      }
      const reference = references.get(referenceName(MOVING));
      current = isLearned() ? reference : atOnce(solve(settings(), MOVING));
      show(current, reference);
      if (current.penalty > LOSS || reference.penalty > LOSS) {
        await new Promise((resume) => setTimeout(resume, PAUSE));
        if (own !== move) return;
        await refine(own);
      }
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      say("The noise is too small, relative to the variance, for double precision: the figure has stayed as it was.");
    }
    if (own === move) panel.dataset.state = "settled";
  }

  async function refine(own) {
    const name = referenceName(data.most_features);
    let reference = references.get(name);
    if (!reference) {
      reference = await inSlices(solve(learnedSettings(), data.most_features), own);
      if (!reference) return;
      references.set(name, reference);
    }
    const finer = isLearned()
      ? reference
      : await inSlices(solve(settings(), data.most_features), own);
    if (!finer) return;
    current = finer;
    show(current, reference);
  }

  // ---------------------------------------------------------------- words

  const signed = (text) => text.replaceAll("-", "−");
  const significant = (value, digits = 4) => {
    const size = Math.abs(value);
    if (value === 0) return "0";
    if (size >= 1e6 || size < 1e-4) return signed(value.toExponential(digits - 1).replace("e+", "e"));
    return signed(value.toLocaleString("en-GB", { maximumSignificantDigits: digits }));
  };
  const nats = (value) =>
    signed(value.toLocaleString("en-GB", { minimumFractionDigits: 3, maximumFractionDigits: 3 }));
  const put = (id, text) => { const node = find(id); if (node) node.textContent = text; };
  const say = (text) => put("remark", text);

  function show(posterior, reference) {
    const { lengthscale, variance, noise } = posterior.settings;
    const values = {
      variance: variance * data.scale ** 2,
      noise: Math.sqrt(noise) * data.scale,
      ...Object.fromEntries(lengthscale.map((own, d) => [`lengthscale${d}`, own])),
    };
    for (const slider of sliders) {
      const text = significant(values[slider.dataset.parameter]);
      slider.setAttribute("aria-valuetext", text);
      slider.parentElement.querySelector("output").textContent = text;
    }
    const difference = posterior.evidence - reference.evidence;
    put("evidence", nats(posterior.evidence));
    put("difference", posterior === reference
      ? "with the learned values"
      : `${nats(Math.abs(difference))} nats ${difference < 0 ? "less" : "more"} than with the learned values`);
    put("features", posterior.features.toLocaleString("en-GB"));
    put("left", posterior.penalty < NOTHING
      ? "leave out nothing that matters"
      : `leave out ${significant(100 * posterior.left, 2)} % of the prior variance, which costs ${significant(posterior.penalty, 3)} nats`);
    const errors = find("held-out-tile");
    if (errors) {
      errors.hidden = !posterior.settings.left_out;
      if (posterior.settings.left_out) {
        put("held-out", significant(posterior.held_out) + data.target_unit);
        put("held-out-learned", `${significant(reference.held_out)}${data.target_unit} with the learned values`);
      }
    }
    find("reset").disabled = isLearned();
    const remarks = [];
    if (!posterior.covered) {
      remarks.push("The lengthscale is too long for the period of the page's sums: the prior is not quite the kernel's.");
    }
    if (posterior.left > MUCH) {
      remarks.push("The function is too rough for the page's features: its bands are too wide, and the evidence is too low.");
    }
    say(remarks.join(" "));
    draw(posterior, reference);
  }

  // ---------------------------------------------------------------- figures

  const look = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  /** Round values between two ends, about as many as asked for. */
  function ticks(low, high, count) {
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((own) => own * power >= rough);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const large = Math.max(Math.abs(low), Math.abs(high)) >= 1e6 || step < 1e-5;
    return found.map((value) => [
      value,
      large ? significant(value, 6) : signed(value.toFixed(Math.min(digits, 10)).replace(/^-(0(\.0*)?)$/, "$1")),
    ]);
  }

  const DAY = 864e5, MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

  /** Ticks along an input, about as many as asked for: dates where it is a time. */
  function inputTicks(d, low, high, count) {
    const time = data.times[d];
    if (!time) return ticks(low, high, count);
    const [first, last] = [low, high].map((own) => time.origin + own * time.unit);
    const rough = (last - first) / count, start = new Date(first), found = [];
    if (rough > 20 * DAY) {
      // Whole months, or years.
      const steps = [1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000, 12000];
      const step = steps.find((own) => own * 30.5 * DAY >= rough) ?? steps.at(-1);
      const from = Math.ceil((12 * start.getUTCFullYear() + start.getUTCMonth()) / step) * step;
      for (let month = from; ; month += step) {
        const at = new Date(0).setUTCFullYear(Math.floor(month / 12), month % 12, 1);
        if (at > last) break;
        if (at >= first) found.push([at, month % 12 ? MONTHS[month % 12] : `${month / 12}`]);
      }
    } else {
      const steps = [1e3, 5e3, 15e3, 6e4, 3e5, 9e5, 36e5, 108e5, 216e5, 432e5, DAY, 2 * DAY, 7 * DAY, 14 * DAY];
      const step = steps.find((own) => own >= rough) ?? 28 * DAY;
      for (let at = Math.ceil(first / step) * step; at <= last; at += step) {
        const text = new Date(at).toISOString();
        found.push([at, at % DAY ? text.slice(11, step < 6e4 ? 19 : 16) : text.slice(0, 10)]);
      }
    }
    return found.map(([at, text]) => [(at - time.origin) / time.unit, text]);
  }

  const draw = dims > 1 ? drawMaps : drawCurve;

  function node(name, attributes, parent, text) {
    const own = document.createElementNS(parent.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) own.setAttribute(key, value);
    if (text !== undefined) own.textContent = text;
    parent.append(own);
    return own;
  }

  /** The whole curve, or its end in a frame of its own. */
  function view(reference) {
    if (!stretch || stretch.selectedIndex === 0) {
      return { first: data.lower[0], last: data.upper[0], range: data.range };
    }
    const [first, last] = data.stretch;
    const { mean, variance } = predict(reference, [evenly(first, last, POINTS), [0]]);
    const reach = variance.map((own) => BAND * Math.sqrt(own + reference.settings.noise * data.scale ** 2));
    const low = Math.min(...mean.map((own, i) => own - reach[i]));
    const high = Math.max(...mean.map((own, i) => own + reach[i]));
    return { first, last, range: [low - MARGIN * (high - low), high + MARGIN * (high - low)] };
  }

  /** The mean with its bands over one input, the learned mean dashed. */
  function drawCurve(posterior, reference) {
    const svg = find("drawing"), whole = find("curve");
    const width = Math.max(whole.clientWidth || 860, 280), height = width < 560 ? 300 : 360;
    const left = 62, right = 10, top = 8, bottom = 46;
    whole.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const { first, last, range: [low, high] } = view(reference);
    const axes = [evenly(first, last, POINTS), [0]];
    const across = (x) => left + ((width - left - right) * (x - first)) / (last - first);
    const up = (y) => {
      const at = top + ((height - top - bottom) * (high - y)) / (high - low);
      // Far outside of the frame, where browsers draw no more.
      return Math.min(Math.max(at, -5000), 5000);
    };
    svg.replaceChildren();
    find("frame").replaceChildren();
    node("rect", { x: left, y: top, width: width - left - right, height: height - top - bottom }, find("frame"));
    for (const [value, text] of ticks(low, high, 6)) {
      node("path", { d: `M${left} ${up(value)}H${width - right}`, class: "grid" }, svg);
      node("text", { x: left - 7, y: up(value) + 4, "text-anchor": "end" }, svg, text);
    }
    for (const [value, text] of inputTicks(0, first, last, width < 560 ? 4 : 8)) {
      node("path", { d: `M${across(value)} ${top}V${height - bottom}`, class: "grid" }, svg);
      node("text", { x: across(value), y: height - bottom + 18, "text-anchor": "middle" }, svg, text);
    }
    node("path", { d: `M${left} ${top}V${height - bottom}H${width - right}`, class: "axis" }, svg);
    node("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, svg, data.inputs[0]);
    const middle = (top + height - bottom) / 2;
    node("text", { x: 13, y: middle, "text-anchor": "middle", transform: `rotate(-90 13 ${middle})` }, svg, data.target);

    const inside = node("g", { "clip-path": "url(#explore-frame)" }, svg);
    const line = (x, y) => x.map((own, i) => `${i ? "L" : "M"}${across(own).toFixed(1)} ${up(y[i]).toFixed(1)}`).join("");
    const x = axes[0], { mean, variance } = predict(posterior, axes);
    const band = (extra, name) => {
      const reach = Array.from(variance, (own) => BAND * Math.sqrt(own + extra));
      const edge = line(x, reach.map((own, i) => mean[i] + own));
      const back = line([...x].reverse(), reach.map((own, i) => mean[i] - own).reverse());
      node("path", { d: `${edge}L${back.slice(1)}Z`, class: name }, inside);
    };
    band(posterior.settings.noise * data.scale ** 2, "outer band");
    band(0, "band");
    const rows = data.rows;
    if (rows) {
      node("path", {
        d: rows.x.map((own, i) => `M${across(own).toFixed(1)} ${up(rows.low[i]).toFixed(1)}V${up(rows.high[i]).toFixed(1)}`).join(""),
        class: "rows",
      }, inside);
    }
    if (posterior !== reference) {
      node("path", { d: line(x, predict(reference, axes).mean), class: "learned" }, inside);
    }
    node("path", { d: line(x, mean), class: "mean" }, inside);
  }

  /** Maps of mean and standard deviation over two inputs. */
  function drawMaps(posterior) {
    const axes = [0, 1].map((d) => evenly(data.lower[d], data.upper[d], CELLS));
    const { mean, variance } = predict(posterior, axes);
    const deviation = variance.map(Math.sqrt);
    const most = deviation.reduce((a, b) => Math.max(a, b), 0);
    drawMap(find("mean-map"), mean, data.range, data.colours.mean);
    drawMap(find("sd-map"), deviation, [0, Math.max(most, data.largest_sd)], data.colours.sd);
  }

  const palettes = new Map();
  function palette(text) {
    if (!palettes.has(text)) {
      palettes.set(text, Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)));
    }
    return palettes.get(text);
  }

  function colourInto(image, values, [low, high], colours, at) {
    const last = colours.length / 3 - 1;
    for (let i = 0; i < image.width * image.height; i++) {
      const share = Math.min(Math.max((values[at(i)] - low) / (high - low || 1), 0), 1);
      const from = 3 * Math.round(share * last);
      image.data.set([colours[from], colours[from + 1], colours[from + 2], 255], 4 * i);
    }
  }

  function drawMap(canvas, values, limits, colours) {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(canvas.clientWidth || 420, 240), height = Math.round(0.8 * width);
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const left = 56, right = 74, top = 6, bottom = 42;
    const w = width - left - right, h = height - top - bottom;
    const cells = new OffscreenCanvas(CELLS, CELLS);
    const image = new ImageData(CELLS, CELLS);
    // Rows of an image run downwards, and the second input upwards.
    colourInto(image, values, limits, palette(colours),
      (i) => (i % CELLS) * CELLS + (CELLS - 1 - Math.floor(i / CELLS)));
    cells.getContext("2d").putImageData(image, 0, 0);
    pen.drawImage(cells, left, top, w, h);
    const bar = new OffscreenCanvas(1, 256);
    const shades = new ImageData(1, 256);
    colourInto(shades, evenly(1, 0, 256), [0, 1], palette(colours), (i) => i);
    bar.getContext("2d").putImageData(shades, 0, 0);
    pen.drawImage(bar, left + w + 10, top, 12, h);
    pen.fillStyle = pen.strokeStyle = look("ink");
    pen.font = `12px ${look("sans")}`;
    pen.lineWidth = 0.7;
    pen.strokeRect(left, top, w, h);
    const share = (value, d) => (value - data.lower[d]) / (data.upper[d] - data.lower[d]);
    pen.textAlign = "center";
    for (const [value, text] of inputTicks(0, data.lower[0], data.upper[0], width < 360 ? 3 : 5)) {
      pen.fillText(text, left + w * share(value, 0), top + h + 16);
    }
    pen.fillText(data.inputs[0], left + w / 2, height - 6);
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const [value, text] of inputTicks(1, data.lower[1], data.upper[1], 5)) {
      pen.fillText(text, left - 6, top + h * (1 - share(value, 1)));
    }
    pen.textAlign = "left";
    for (const [value, text] of ticks(limits[0], limits[1], 5)) {
      pen.fillText(text, left + w + 27, top + (h * (limits[1] - value)) / (limits[1] - limits[0] || 1));
    }
    pen.save();
    pen.translate(11, top + h / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText(data.inputs[1], 0, 0);
    pen.restore();
  }

  // ---------------------------------------------------------------- the user

  let asked = false;
  /** At most one posterior for each frame that is drawn. */
  function ask() {
    panel.dataset.state = "moving";
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; refresh(); });
  }

  for (const control of [...sliders, kernel, ...(leftOut ? [leftOut] : [])]) {
    control.addEventListener("input", ask);
  }
  find("reset").addEventListener("click", () => {
    for (const slider of sliders) slider.value = 0;
    kernel.value = data.learned.kernel;
    ask();
  });
  const redraw = () => {
    const most = current.features > MOVING ? data.most_features : MOVING;
    draw(current, references.get(referenceName(most)) ?? current);
  };
  const redrawn = () => { if (current) redraw(); };
  window.addEventListener("resize", redrawn);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawn);
  if (stretch) stretch.addEventListener("input", redrawn);

  panel.hidden = false;
  refresh();

  /* For the browser's console: what is shown, and predictions anywhere. */
  window.orthogp = {
    data, levels, masses, solve, atOnce,
    get posterior() { return current; },
    predict: (points, posterior = current) => points.map((x) => {
      const { mean, variance } = predict(posterior, [[x[0]], [x[1] ?? 0]]);
      return [mean[0], variance[0]];
    }),
  };
})();
