"use strict";
/* The part of a report that moves: from the sums of the rows to a posterior, in the browser.
 *
 * As in the library, with a_m the prior variance of the coefficient of a cosine or sine,
 *
 *     B = I + D G D/σ²,   D = diag(√a),   G = Σ w c cᵀ   (c: the cosines, sines and slopes of a row)
 *     elbo = −N/2 log 2πσ² − ½ log|B| − (yy − |L⁻¹ D b|²/σ²)/(2σ²) − Σ w r/(2σ²),   B = L Lᵀ
 *
 * where G and b are read off the sums and r is the prior variance that the features leave out. The
 * mean is a Fourier series, and so is the variance, with twice the frequencies. One input column is
 * treated as two, of which the second has the frequency zero only.
 *
 * docs/report.md says what `data` hold; live.py writes them, and explore.js shows the results.
 */

/** What can be computed from the sums of a report. */
function fromSums(data) {
  const dims = data.lower.length;
  // Pivots of a matrix with eigenvalues ≥ 1 that fall below this show rounding (bounds.py).
  const SMALLEST_PIVOT = 0.9;
  // Modes of a smaller share of the prior variance add nothing in double precision.
  const NEGLIGIBLE = 1e-17;
  // ---------------------------------------------------------------- sums

  /** Numbers from base64 of little-endian doubles. */
  function doubles(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    return Float64Array.from({ length: bytes.length / 8 }, (_, i) => view.getFloat64(8 * i, true));
  }

  /** Complex sums at all indices, from those of the second half: at −t they are conjugate. */
  function mirrored(text) {
    const half = doubles(text);
    const size = half.length - 1, middle = (size - 1) / 2;
    const re = new Float64Array(size), im = new Float64Array(size);
    for (let i = 0; i <= middle; i++) {
      re[middle + i] = re[middle - i] = half[2 * i];
      im[middle + i] = half[2 * i + 1];
      im[middle - i] = -half[2 * i + 1];
    }
    im[middle] = 0;
    return { re, im };
  }

  /** The sums of all rows, or of one part of them, on one lattice. */
  function readSums(own) {
    return {
      ...own,
      points: mirrored(own.points),
      targets: mirrored(own.targets),
      covariates: own.covariates.map(mirrored),
    };
  }

  /** The sums of the rows that are left when a part is taken out. */
  function without(all, part) {
    const less = (a, b) => a.map((value, i) => value - b[i]);
    const lessWaves = (a, b) => ({ re: less(a.re, b.re), im: less(a.im, b.im) });
    return {
      count: all.count - part.count,
      factors: all.factors - part.factors,
      log_weights: all.log_weights - part.log_weights,
      yy: all.yy - part.yy,
      points: lessWaves(all.points, part.points),
      targets: lessWaves(all.targets, part.targets),
      covariates: all.covariates.map((own, j) => lessWaves(own, part.covariates[j])),
      covariate_gram: all.covariate_gram.map((row, j) => less(row, part.covariate_gram[j])),
      covariate_targets: less(all.covariate_targets, part.covariate_targets),
    };
  }

  const levels = data.levels.map((level) => {
    const extent = [level.extent[0], dims > 1 ? level.extent[1] : 0];
    const [all, ...parts] = level.sums.map(readSums);
    const indices = [];
    for (let s = 0; s <= extent[0]; s++) {
      for (let t = s ? -extent[1] : 0; t <= extent[1]; t++) indices.push([s, t]);
    }
    return {
      ...level,
      extent,
      indices,
      parts,
      sums: [all, ...parts.map((part) => without(all, part))],
    };
  });

  // ---------------------------------------------------------------- kernels

  // ν, the polynomial of k(z)/v = p(z) e^{−z}, and Γ(ν + D/2)/Γ(ν) for one and two columns.
  const MATERN = {
    matern12: { nu: 0.5, profile: [1], gamma: [1 / Math.sqrt(Math.PI), 0.5] },
    matern32: { nu: 1.5, profile: [1, 1], gamma: [2 / Math.sqrt(Math.PI), 1.5] },
    matern52: { nu: 2.5, profile: [1, 1, 1 / 3], gamma: [8 / (3 * Math.sqrt(Math.PI)), 2.5] },
  };
  // The images on each side that are summed to make the wrapped variance k(0).
  const IMAGES = [16, 8];
  // The ratio of lengthscale to period below which images, and above which the series, is summed.
  const FEW_IMAGES = 0.4;

  /** The variance of mode zero of a unit Gaussian kernel, for ratio = lengthscale/period. */
  function zeroMode(ratio) {
    const scale = Math.sqrt(2 * Math.PI) * ratio;
    let sum = 0;
    for (let j = 1; j <= 4; j++) {
      sum += ratio < FEW_IMAGES
        ? Math.exp(-0.5 * (j / ratio) ** 2)
        : Math.exp(-2 * (Math.PI * ratio * j) ** 2);
    }
    return ratio < FEW_IMAGES ? scale - 2 * sum : 1 - 2 * scale * sum;
  }

  /** The prior variances of the modes at indices, for a kernel of unit variance. */
  function masses(kernel, lengthscale, level) {
    const h = level.spacing;
    if (kernel === "rbf") {
      const axes = lengthscale.map((own, d) => {
        const ratio = (own * h[d]) / (2 * Math.PI);
        return Float64Array.from({ length: level.extent[d] + 1 }, (_, t) =>
          t === 0
            ? zeroMode(ratio)
            : Math.sqrt(2 * Math.PI) * ratio * Math.exp(-0.5 * (own * h[d] * t) ** 2));
      });
      return level.indices.map(([s, t]) => axes[0][s] * (dims > 1 ? axes[1][Math.abs(t)] : 1));
    }
    const { nu, profile, gamma } = MATERN[kernel];
    const covariance = (square) => {
      const z = Math.sqrt(2 * nu * square);
      return profile.reduceRight((sum, c) => sum * z + c, 0) * Math.exp(-z);
    };
    const period = h.map((own) => (2 * Math.PI) / own);
    const most = IMAGES[dims - 1];
    let wrapped = 0;
    for (let i = -most; i <= most; i++) {
      for (let j = dims > 1 ? -most : 0; j <= (dims > 1 ? most : 0); j++) {
        let square = ((i * period[0]) / lengthscale[0]) ** 2;
        if (dims > 1) square += ((j * period[1]) / lengthscale[1]) ** 2;
        wrapped += covariance(square);
      }
    }
    let constant = (gamma[dims - 1] * (2 * nu) ** nu) / (Math.PI ** (dims / 2) * wrapped);
    for (let d = 0; d < dims; d++) constant *= lengthscale[d] * h[d];
    return level.indices.map(([s, t]) => {
      let square = 2 * nu + (lengthscale[0] * h[0] * s) ** 2;
      if (dims > 1) square += (lengthscale[1] * h[1] * t) ** 2;
      return constant * square ** -(nu + dims / 2);
    });
  }

  // ---------------------------------------------------------------- matrices

  /* Symmetric matrices by tiles of four rows and columns, whose order is a multiple of four. All
   * three steps are sums of products of rows, which lie together in memory. */
  const tile = new Float64Array(16);

  /** Σ_k x_ik y_jk for four rows of X and four of Y, from ≤ k < to, into `tile`. */
  function products(X, i, Y, j, n, from, to) {
    let a = i * n + from, b = a + n, c = b + n, d = c + n;
    let p = j * n + from, q = p + n, r = q + n, s = r + n;
    let t00 = 0, t01 = 0, t02 = 0, t03 = 0, t10 = 0, t11 = 0, t12 = 0, t13 = 0;
    let t20 = 0, t21 = 0, t22 = 0, t23 = 0, t30 = 0, t31 = 0, t32 = 0, t33 = 0;
    for (let k = from; k < to; k++) {
      const x0 = X[a++], x1 = X[b++], x2 = X[c++], x3 = X[d++];
      const y0 = Y[p++], y1 = Y[q++], y2 = Y[r++], y3 = Y[s++];
      t00 += x0 * y0; t01 += x0 * y1; t02 += x0 * y2; t03 += x0 * y3;
      t10 += x1 * y0; t11 += x1 * y1; t12 += x1 * y2; t13 += x1 * y3;
      t20 += x2 * y0; t21 += x2 * y1; t22 += x2 * y2; t23 += x2 * y3;
      t30 += x3 * y0; t31 += x3 * y1; t32 += x3 * y2; t33 += x3 * y3;
    }
    tile[0] = t00; tile[1] = t01; tile[2] = t02; tile[3] = t03;
    tile[4] = t10; tile[5] = t11; tile[6] = t12; tile[7] = t13;
    tile[8] = t20; tile[9] = t21; tile[10] = t22; tile[11] = t23;
    tile[12] = t30; tile[13] = t31; tile[14] = t32; tile[15] = t33;
  }

  /** Columns j to j + 3 of the lower Cholesky factor, over those of the matrix. */
  function factoriseColumns(A, n, j) {
    for (let i = j; i < n; i += 4) {
      products(A, i, A, j, n, 0, j);
      for (let r = i; r < i + 4; r++) {
        for (let c = j; c < j + 4 && c <= r; c++) {
          let value = A[r * n + c] - tile[4 * (r - i) + c - j];
          for (let k = j; k < c; k++) value -= A[r * n + k] * A[c * n + k];
          if (r > c) A[r * n + c] = value / A[c * n + c];
          else if (value >= SMALLEST_PIVOT) A[r * n + c] = Math.sqrt(value);
          else throw new RangeError("The noise is too small for double precision.");
        }
      }
    }
  }

  /** Columns i to i + 3 of U = L⁻ᵀ, which is upper triangular. */
  function invertColumns(L, U, n, i) {
    for (let j = 0; j <= i; j += 4) {
      products(U, j, L, i, n, j, i);
      for (let c = i; c < i + 4; c++) {
        for (let r = j; r < j + 4 && r <= c; r++) {
          let value = (r === c ? 1 : 0) - tile[4 * (r - j) + c - i];
          for (let k = i; k < c; k++) value -= U[r * n + k] * L[c * n + k];
          U[r * n + c] = value / L[c * n + c];
        }
      }
    }
  }

  /** Rows i to i + 3 of U Uᵀ = (L Lᵀ)⁻¹ up to the diagonal. */
  function squareRows(U, C, n, i) {
    for (let j = 0; j <= i; j += 4) {
      products(U, i, U, j, n, i, n);
      for (let r = 0; r < 4; r++) {
        for (let c = 0; c < 4; c++) C[(i + r) * n + j + c] = tile[4 * r + c];
      }
    }
  }

  // ---------------------------------------------------------------- the posterior

  /** The lattice on which a prior of these lengthscales is right over the data. */
  function chooseLevel(settings) {
    const fits = (level) =>
      settings.lengthscale.every((own, d) => own <= level.limits[settings.kernel][d]);
    const found = levels.findIndex(fits);
    return found < 0 ? levels.length - 1 : found;
  }

  /** The modes of the largest masses, mode zero first, and what they leave out of one. */
  function chooseModes(level, mass, most) {
    const order = mass.map((_, i) => i).slice(1).filter((i) => mass[i] > NEGLIGIBLE);
    order.sort((a, b) => mass[b] - mass[a] || a - b);
    const chosen = [0, ...order.slice(0, (most - 1) >> 1).sort((a, b) => a - b)];
    const seen = chosen.slice(1).reduce((sum, i) => sum + 2 * mass[i], mass[0]);
    return { chosen, left: Math.max(1 - seen, 0) };
  }

  /** Σ w c cᵀ (to the diagonal, in rows of n) and Σ w c y of cosines, sines and slopes. */
  function realSums(level, sums, chosen, n) {
    const [K, M] = level.extent;
    const wide = 4 * M + 1, narrow = 2 * M + 1;
    const middle = 2 * K * wide + 2 * M, centre = K * narrow + M;
    const s = chosen.length, q = sums.covariates.length;
    const at = Int32Array.from(chosen, (i) => level.indices[i][0] * wide + level.indices[i][1]);
    const { re, im } = sums.points;
    const gram = new Float64Array(n * n), projection = new Float64Array(n);
    for (let a = 0; a < s; a++) {
      for (let b = 0; b <= a; b++) {
        const minus = middle + at[a] - at[b], plus = middle + at[a] + at[b];
        gram[a * n + b] = (re[minus] + re[plus]) / 2;
        if (a === 0) continue;
        // sin_a cos_b, and sin_b cos_a.
        gram[(s + a - 1) * n + b] = (im[plus] + im[minus]) / 2;
        if (b === 0) continue;
        gram[(s + b - 1) * n + a] = (im[plus] - im[minus]) / 2;
        gram[(s + a - 1) * n + s + b - 1] = (re[minus] - re[plus]) / 2;
      }
      const [i, j] = level.indices[chosen[a]];
      const t = centre + i * narrow + j;
      projection[a] = sums.targets.re[t];
      if (a > 0) projection[s + a - 1] = sums.targets.im[t];
      for (let k = 0; k < q; k++) {
        const row = (2 * s - 1 + k) * n;
        gram[row + a] = sums.covariates[k].re[t];
        if (a > 0) gram[row + s + a - 1] = sums.covariates[k].im[t];
      }
    }
    for (let k = 0; k < q; k++) {
      const row = 2 * s - 1 + k;
      for (let j = 0; j <= k; j++) gram[row * n + 2 * s - 1 + j] = sums.covariate_gram[k][j];
      projection[row] = sums.covariate_targets[k];
    }
    return { gram, projection };
  }

  /** The posterior for some settings, with at most `most` modes; yields now and then. */
  function* solve(settings, most) {
    const level = levels[chooseLevel(settings)];
    const sums = level.sums[settings.left_out];
    const { variance, noise } = settings;
    const mass = masses(settings.kernel, settings.lengthscale, level);
    const { chosen, left } = chooseModes(level, mass, most);
    const s = chosen.length, q = sums.covariates.length, m = 2 * s - 1 + q;
    const n = (m + 3) & ~3;
    const { gram, projection } = realSums(level, sums, chosen, n);
    const amplitude = new Float64Array(n);
    for (let a = 0; a < s; a++) {
      const own = variance * mass[chosen[a]];
      amplitude[a] = Math.sqrt(a ? 2 * own : own + data.mean.offset_variance);
      if (a) amplitude[s + a - 1] = amplitude[a];
    }
    amplitude.fill(Math.sqrt(data.mean.slope_variance), 2 * s - 1, m);

    const B = new Float64Array(n * n), b = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      b[i] = amplitude[i] * projection[i];
      const scale = amplitude[i] / noise;
      for (let j = 0; j <= i; j++) B[i * n + j] = scale * gram[i * n + j] * amplitude[j];
      B[i * n + i] += 1;
    }
    for (let j = 0; j < n; j += 4) { factoriseColumns(B, n, j); yield; }
    let logDeterminant = 0, explained = 0;
    for (let i = 0; i < n; i++) {
      for (let k = 0; k < i; k++) b[i] -= B[i * n + k] * b[k];
      b[i] /= B[i * n + i];
      explained += b[i] * b[i];
      logDeterminant += 2 * Math.log(B[i * n + i]);
    }
    const residual = variance * left;
    const normaliser = sums.factors * Math.log(2 * Math.PI * noise) - sums.log_weights;
    const penalty = (sums.count * residual) / (2 * noise);
    const evidence = -(sums.yy - explained / noise) / (2 * noise)
      - (normaliser + logDeterminant) / 2 - penalty - sums.factors * Math.log(data.scale);

    const z = new Float64Array(n);
    for (let i = n - 1; i >= 0; i--) {
      z[i] = b[i] / B[i * n + i];
      for (let k = 0; k < i; k++) b[k] -= B[i * n + k] * z[i];
    }
    for (let i = 0; i < n; i++) z[i] *= amplitude[i] / noise;

    const U = new Float64Array(n * n);
    for (let i = 0; i < n; i += 4) { invertColumns(B, U, n, i); yield; }
    // The factor is no longer needed: its memory holds the covariance.
    for (let i = 0; i < n; i += 4) { squareRows(U, B, n, i); yield; }
    for (let i = 0; i < n; i++) {
      for (let j = 0; j <= i; j++) B[i * n + j] *= amplitude[i] * amplitude[j];
    }
    const posterior = {
      settings, level, evidence, residual, penalty, left, features: m,
      indices: chosen.map((i) => level.indices[i]), masses: chosen.map((i) => variance * mass[i]),
      covered: settings.lengthscale.every((own, d) => own <= level.limits[settings.kernel][d]),
      ...asSeries(level, chosen, z, B, n, q),
    };
    if (settings.left_out) {
      posterior.held_out = heldOutError(level, settings.left_out - 1, chosen, z, n);
    }
    return posterior;
  }

  /** The root mean squared error of the mean at the rows that were taken out, from their sums. */
  function heldOutError(level, part, chosen, z, n) {
    const sums = level.parts[part];
    const { gram, projection } = realSums(level, sums, chosen, n);
    let square = sums.yy;
    for (let i = 0; i < n; i++) {
      square -= 2 * z[i] * projection[i];
      for (let j = 0; j < i; j++) square += 2 * z[i] * gram[i * n + j] * z[j];
      square += z[i] * gram[i * n + i] * z[i];
    }
    return data.scale * Math.sqrt(Math.max(square, 0) / sums.count);
  }

  // ---------------------------------------------------------------- series

  /** An empty series over |t_d| ≤ reach_d: Σ_t re_t cos ω_t·x + im_t sin ω_t·x. */
  function emptySeries(reach) {
    const size = (2 * reach[0] + 1) * (2 * reach[1] + 1);
    return { reach, re: new Float64Array(size), im: new Float64Array(size) };
  }

  /** Mean, variance and the slopes' covariance with f as series, from coefficients z ~ (z, C). */
  function asSeries(level, chosen, z, C, n, q) {
    const s = chosen.length;
    const index = chosen.map((i) => level.indices[i]);
    const reach = [0, 1].map((d) => index.reduce((most, t) => Math.max(most, Math.abs(t[d])), 0));
    const twice = reach.map((own) => 2 * own);
    const width = 2 * reach[1] + 1, wide = 4 * reach[1] + 1;
    const middle = reach[0] * width + reach[1], centre = twice[0] * wide + twice[1];
    const single = index.map((t) => t[0] * width + t[1]);
    const double = Int32Array.from(index, (t) => t[0] * wide + t[1]);
    const waves = (cosine, sine) => {
      const series = emptySeries(reach);
      for (let a = 0; a < s; a++) {
        series.re[middle + single[a]] = cosine(a);
        if (a > 0) series.im[middle + single[a]] = sine(s + a - 1);
      }
      return series;
    };
    const variance = emptySeries(twice);
    const { re, im } = variance;
    for (let a = 0; a < s; a++) {
      for (let b = 0; b <= a; b++) {
        // Off the diagonal each pair counts twice.
        const pair = a === b ? 0.5 : 1;
        const cosines = pair * C[a * n + b];
        const sines = b > 0 ? pair * C[(s + a - 1) * n + s + b - 1] : 0;
        const plus = centre + double[a] + double[b], minus = centre + double[a] - double[b];
        re[plus] += cosines - sines;
        re[minus] += cosines + sines;
        if (a === 0) continue;
        // sin_a cos_b, then cos_a sin_b.
        const first = C[(s + a - 1) * n + b];
        im[plus] += first;
        im[minus] += first;
        if (b === 0 || a === b) continue;
        const second = C[(s + b - 1) * n + a];
        im[plus] += second;
        im[minus] -= second;
      }
    }
    const rows = Array.from({ length: q }, (_, k) => 2 * s - 1 + k);
    return {
      mean: waves((i) => z[i], (i) => z[i]),
      variance,
      slopes: rows.map((row) => z[row]),
      slopeWaves: rows.map((row) => waves((i) => C[row * n + i], (i) => C[row * n + i])),
      slopeGram: rows.map((row, k) => rows.slice(0, k + 1).map((other) => C[row * n + other])),
    };
  }

  /** cos tθ_j and sin tθ_j for |t| ≤ reach, one row for each j. */
  function waveTable(angles, reach) {
    const width = 2 * reach + 1;
    const re = new Float64Array(angles.length * width), im = new Float64Array(re.length);
    angles.forEach((angle, j) => {
      const c = Math.cos(angle), s = Math.sin(angle), middle = j * width + reach;
      let x = 1, y = 0;
      for (let t = 0; t <= reach; t++) {
        re[middle + t] = re[middle - t] = x;
        im[middle + t] = y;
        im[middle - t] = -y;
        [x, y] = [x * c - y * s, x * s + y * c];
      }
    });
    return { re, im, width };
  }

  /** A series on the grid of some values of the first column and of the second, first by first. */
  function onGrid(series, level, axes) {
    const angles = (d) => axes[d].map((x) => (d < dims ? level.spacing[d] * (x - level.centre[d]) : 0));
    const first = waveTable(angles(0), series.reach[0]);
    const second = waveTable(angles(1), series.reach[1]);
    const rows = axes[0].length, columns = axes[1].length;
    const values = new Float64Array(rows * columns);
    const re = new Float64Array(first.width), im = new Float64Array(first.width);
    for (let j = 0; j < columns; j++) {
      for (let s = 0; s < first.width; s++) {
        let x = 0, y = 0;
        for (let t = 0; t < second.width; t++) {
          const a = series.re[s * second.width + t], b = series.im[s * second.width + t];
          const c = second.re[j * second.width + t], d = second.im[j * second.width + t];
          // (a − ib)(c + id)
          x += a * c + b * d;
          y += a * d - b * c;
        }
        re[s] = x;
        im[s] = y;
      }
      for (let i = 0; i < rows; i++) {
        let value = 0;
        for (let s = 0, at = i * first.width; s < first.width; s++, at++) {
          value += re[s] * first.re[at] - im[s] * first.im[at];
        }
        values[i * columns + j] = value;
      }
    }
    return values;
  }

  /** Mean and variance of f, in the units of y, on a grid; the first column changes slowest. */
  function predict(posterior, axes) {
    const { level } = posterior;
    const mean = onGrid(posterior.mean, level, axes);
    const variance = onGrid(posterior.variance, level, axes);
    const slopeWaves = posterior.slopeWaves.map((own) => onGrid(own, level, axes));
    const columns = axes[1].length;
    for (let i = 0; i < mean.length; i++) {
      const x = [axes[0][Math.floor(i / columns)], axes[1][i % columns]];
      const c = posterior.slopes.map((_, d) => (x[d] - data.mean.origin[d]) / data.mean.width[d]);
      c.forEach((own, d) => {
        mean[i] += own * posterior.slopes[d];
        variance[i] += 2 * own * slopeWaves[d][i];
        c.slice(0, d + 1).forEach((other, e) => {
          variance[i] += (d === e ? 1 : 2) * own * other * posterior.slopeGram[d][e];
        });
      });
      mean[i] = data.offset + data.scale * mean[i];
      variance[i] = data.scale ** 2 * (posterior.residual + Math.max(variance[i], 0));
    }
    return { mean, variance };
  }

  return { levels, masses, predict, solve };
}
