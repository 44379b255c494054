// Unpacks raw LZMA (lc 3, lp 0, pb 0), which no browser does by itself and is two thirds of what deflate makes of it.
function unlzma(packed, size) {
  const out = new Uint8Array(size);
  const chances = (number) => new Uint16Array(number).fill(1024);
  let range = 2 ** 32 - 1;
  let code = 0;
  let from = 0;
  while (from < 5) code = (code * 256 + packed[from++]) % 2 ** 32;

  function normalize() {
    if (range >= 2 ** 24) return;
    range *= 256;
    code = code * 256 + packed[from++];
  }

  function bit(of, at) {
    const bound = (range >>> 11) * of[at];
    const is = code < bound ? 0 : 1;
    if (is) {
      range -= bound;
      code -= bound;
      of[at] -= of[at] >> 5;
    } else {
      range = bound;
      of[at] += (2048 - of[at]) >> 5;
    }
    normalize();
    return is;
  }

  function plain(bits) {
    let value = 0;
    for (let n = 0; n < bits; n += 1) {
      range = Math.floor(range / 2);
      const is = code < range ? 0 : 1;
      code -= is * range;
      value = value * 2 + is;
      normalize();
    }
    return value;
  }

  function tree(of, bits, first = 0) {
    let node = 1;
    for (let n = 0; n < bits; n += 1) node = node * 2 + bit(of, first + node);
    return node - 2 ** bits;
  }

  function reversed(of, bits, first = 0) {
    let node = 1;
    let value = 0;
    for (let n = 0; n < bits; n += 1) {
      const is = bit(of, first + node);
      node = node * 2 + is;
      value += is * 2 ** n;
    }
    return value;
  }

  const lengths = () => ({ choice: chances(2), low: chances(8), mid: chances(8), high: chances(256) });
  function length({ choice, low, mid, high }) {
    if (!bit(choice, 0)) return 2 + tree(low, 3);
    return bit(choice, 1) ? 18 + tree(high, 8) : 10 + tree(mid, 3);
  }

  const [isMatch, isRepeat, isNotLast, isNotSecond, isNotThird, isLong] = Array.from({ length: 6 }, () => chances(12));
  const [literals, slots, special, align] = [chances(8 * 768), chances(4 * 64), chances(128), chances(16)];
  const [ofMatch, ofRepeat] = [lengths(), lengths()];
  let far = [0, 0, 0, 0]; // the last four distances, each less one
  let state = 0;
  let to = 0;

  function literal() {
    const first = (to ? out[to - 1] >> 5 : 0) * 768;
    let symbol = 1;
    if (state >= 7) {
      let expected = out[to - far[0] - 1];
      while (symbol < 256) {
        const wanted = (expected >> 7) & 1;
        expected <<= 1;
        const is = bit(literals, first + (1 + wanted) * 256 + symbol);
        symbol = symbol * 2 + is;
        if (is !== wanted) break;
      }
    }
    while (symbol < 256) symbol = symbol * 2 + bit(literals, first + symbol);
    out[to++] = symbol % 256;
    if (state < 4) state = 0;
    else state -= state < 10 ? 3 : 6;
  }

  function distance(long) {
    const slot = tree(slots, 6, Math.min(long - 2, 3) * 64);
    if (slot < 4) return slot;
    const bits = (slot >> 1) - 1;
    const base = (2 + (slot % 2)) * 2 ** bits;
    if (slot < 14) return base + reversed(special, bits, base - slot);
    return base + plain(bits - 4) * 16 + reversed(align, 4);
  }

  function repeated() {
    if (!bit(isNotLast, state)) return bit(isLong, state);
    const place = bit(isNotSecond, state) ? 2 + bit(isNotThird, state) : 1;
    far = [far[place], ...far.filter((_, at) => at !== place)];
    return 1;
  }

  while (to < size) {
    if (!bit(isMatch, state)) {
      literal();
      continue;
    }
    let long;
    if (bit(isRepeat, state)) {
      const was = state;
      const isOneByte = !repeated();
      long = isOneByte ? 1 : length(ofRepeat);
      if (was < 7) state = isOneByte ? 9 : 8;
      else state = 11;
    } else {
      long = length(ofMatch);
      state = state < 7 ? 7 : 10;
      far = [distance(long), ...far.slice(0, 3)];
    }
    for (let n = 0; n < long && to < size; n += 1, to += 1) out[to] = out[to - far[0] - 1];
  }
  return out;
}
