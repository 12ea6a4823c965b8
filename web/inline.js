// The text inside a block -> nodes: emphasis, code, links, maths. Pure, linear, see markdown.js.
//
// Nodes: {t: 'text'|'code'|'math', v} {t: 'br'} {t: 'em'|'strong'|'del', kids}
//   {t: 'link', href, image, kids}
//
// One pass from left to right. `out` is the flat list of nodes so far; an opener remembers its
// place in it, and its closer takes everything after that place as children. Openers in between
// are dropped for good, so each is looked at once. No more than MAX_OPEN are open at a time, which
// bounds the nesting of what comes out.

import { meter } from './markdown.js';

const MAX_OPEN = 24;
const MAX_RUN = 3; // "****" and longer are text
const MAX_URL = 2048;
const MAX_PARENS = 4;

const PLAIN = /[^\\`*_~[\]!<$\n&hH]+/y;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;
const SPACE = /\s/;
const ENTITY = /&(amp|lt|gt|quot|apos|nbsp|#39);/y;
const ENTITIES = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', '#39': "'" };
const BREAK = /<br\s{0,8}\/?>/iy;
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2048})>/iy;
const BARE = /https?:\/\/[^\s<>"'`\\]{1,2000}/iy;

export function parseInline(source) {
  return new Inline(source).run();
}

// The address if it is one that a link may have, else null.
export function safeHref(address) {
  return /^(?:https?:\/\/|mailto:)[^\s]+$/i.test(address) && address.length <= MAX_URL ? address : null;
}

class Inline {
  constructor(source) {
    this.s = source;
    this.at = 0;
    this.out = [];
    this.openers = []; // emphasis: {char, size, place}
    this.brackets = []; // {place, image, openers}
    this.ticks = null; // run length -> starts of the runs, made when the first is met
    this.found = {}; // needle -> its next place; a search is never repeated
  }

  run() {
    const { s } = this;
    while (this.at < s.length) {
      PLAIN.lastIndex = this.at;
      const plain = PLAIN.exec(s);
      if (plain) {
        meter.steps += plain[0].length;
        this.text(plain[0]);
        this.at = PLAIN.lastIndex;
        continue;
      }
      meter.steps++;
      if (!HANDLERS[s[this.at]](this)) this.text(s[this.at++]);
    }
    return this.out;
  }

  text(v) {
    const last = this.out[this.out.length - 1];
    if (last && last.t === 'text' && !last.held) last.v += v;
    else this.out.push({ t: 'text', v });
  }

  take(node, end) {
    this.out.push(node);
    this.at = end;
    return true;
  }

  // Where `needle` comes next at or after `from`; -1 when it does not.
  next(needle, from) {
    const known = this.found[needle];
    if (known !== undefined && (known < 0 || known >= from)) return known;
    const place = this.s.indexOf(needle, from);
    meter.steps += (place < 0 ? this.s.length : place) - from;
    return (this.found[needle] = place);
  }

  wrap(place, node) {
    node.kids = this.out.splice(place);
    meter.steps += node.kids.length;
    this.out.push(node);
    while (this.brackets.length && this.brackets[this.brackets.length - 1].place > place) this.brackets.pop();
  }
}

function escape(p) {
  const char = p.s[p.at + 1];
  if (char === '(') return maths(p, '\\)');
  if (char === '[') return maths(p, '\\]');
  if (char === '\n') return p.take({ t: 'br' }, p.at + 2);
  if (char === undefined || !PUNCTUATION.test(char)) return false;
  p.text(char);
  p.at += 2;
  return true;
}

function maths(p, close) {
  const end = p.next(close, p.at + 2);
  if (end < 0) {
    p.text(p.s.slice(p.at, p.at + 2));
    p.at += 2;
    return true;
  }
  return p.take({ t: 'math', v: p.s.slice(p.at, end + 2) }, end + 2);
}

// $x$ when both dollars touch the formula and no digit follows: "$5 and $10" is money.
function dollar(p) {
  const size = p.s[p.at + 1] === '$' ? 2 : 1;
  const from = p.at + size;
  const end = p.next(size === 2 ? '$$' : '$', from);
  if (end <= from) {
    p.text('$'.repeat(size));
    p.at = from;
    return true;
  }
  const touches = size === 2 || (!SPACE.test(p.s[from]) && !SPACE.test(p.s[end - 1]));
  if (!touches || /\d/.test(p.s[end + size] || '')) return false;
  return p.take({ t: 'math', v: p.s.slice(p.at, end + size) }, end + size);
}

function tickRuns(s) {
  const runs = new Map();
  for (let i = s.indexOf('`'); i >= 0; i = s.indexOf('`', i)) {
    const from = i;
    while (s[i] === '`') i++;
    if (!runs.has(i - from)) runs.set(i - from, { places: [], next: 0 });
    runs.get(i - from).places.push(from);
  }
  meter.steps += s.length;
  return runs;
}

function code(p) {
  p.ticks = p.ticks || tickRuns(p.s);
  let from = p.at;
  while (p.s[from] === '`') from++;
  const size = from - p.at;
  meter.steps += size;
  const runs = p.ticks.get(size);
  while (runs && runs.next < runs.places.length && runs.places[runs.next] < from) runs.next++;
  const end = runs && runs.places[runs.next];
  if (end === undefined) {
    p.text(p.s.slice(p.at, from));
    p.at = from;
    return true;
  }
  let v = p.s.slice(from, end).replaceAll('\n', ' ');
  if (v.length > 2 && v.startsWith(' ') && v.endsWith(' ')) v = v.slice(1, -1);
  return p.take({ t: 'code', v }, end + size);
}

// ---- emphasis ----

const KINDS = { '*': ['em', 'strong'], _: ['em', 'strong'], '~': [null, 'del'] };

function emphasis(p) {
  const char = p.s[p.at];
  let end = p.at;
  while (p.s[end] === char) end++;
  let size = end - p.at;
  meter.steps += size;
  const before = p.s[p.at - 1] || ' ';
  const after = p.s[end] || ' ';
  p.at = end;
  if (size > MAX_RUN || (char === '~' && size !== 2)) {
    p.text(char.repeat(size));
    return true;
  }
  const inWord = char === '_';
  const closes = !SPACE.test(before) && !(inWord && WORD.test(after));
  const opens = !SPACE.test(after) && !(inWord && WORD.test(before));
  if (closes) size = closeEmphasis(p, char, size);
  if (!size) return true;
  if (!opens) p.text(char.repeat(size));
  else {
    if (p.openers.length >= MAX_OPEN) p.openers.shift();
    p.openers.push({ char, size, place: p.out.length });
    p.out.push({ t: 'text', v: char.repeat(size), held: true });
  }
  return true;
}

// Closes what it can; returns how many characters of the run are left.
function closeEmphasis(p, char, size) {
  while (size) {
    let found = p.openers.length - 1;
    while (found >= 0 && p.openers[found].char !== char) found--;
    meter.steps += p.openers.length - found;
    if (found < 0) return size;
    const opener = p.openers[found];
    const use = size >= 2 && opener.size >= 2 ? 2 : 1;
    const kind = KINDS[char][use - 1];
    if (!kind || opener.place === p.out.length - 1) return size;
    p.openers.length = found + 1;
    p.wrap(opener.place + 1, { t: kind });
    size -= use;
    opener.size -= use;
    p.out[opener.place].v = char.repeat(opener.size);
    if (!opener.size) p.openers.pop();
  }
  return 0;
}

// ---- links ----

function openBracket(p, image) {
  if (p.brackets.length >= MAX_OPEN) p.brackets.shift();
  p.brackets.push({ place: p.out.length, image, openers: p.openers.length });
  p.out.push({ t: 'text', v: image ? '![' : '[', held: true });
  p.at += image ? 2 : 1;
  return true;
}

const bang = p => p.s[p.at + 1] === '[' && openBracket(p, true);

function closeBracket(p) {
  const bracket = p.brackets.pop();
  if (!bracket || p.s[p.at + 1] !== '(') return false;
  const target = targetOf(p, p.at + 2);
  if (!target) return false;
  if (p.openers.length > bracket.openers) p.openers.length = bracket.openers;
  p.wrap(bracket.place + 1, { t: 'link', href: target.href, image: bracket.image });
  p.out[bracket.place].v = '';
  if (!bracket.image) p.brackets.length = 0; // no links inside links
  p.at = target.end;
  return true;
}

// {href, end} of `address "title")` at `from`. Few parentheses may nest, which keeps repeated
// failures from reading the same text again and again.
function targetOf(p, from) {
  const { s } = p;
  let depth = 0;
  let i = from;
  for (; i < s.length && i - from <= MAX_URL; i++) {
    meter.steps++;
    if (SPACE.test(s[i])) break;
    if (s[i] === '(' && ++depth > MAX_PARENS) return null;
    if (s[i] === ')' && --depth < 0) return { href: unwrap(s.slice(from, i)), end: i + 1 };
  }
  const title = /\s{1,8}("[^"\n]{0,200}"|'[^'\n]{0,200}')\s{0,8}\)/y;
  title.lastIndex = i;
  meter.steps += 8;
  return title.test(s) && i > from ? { href: unwrap(s.slice(from, i)), end: title.lastIndex } : null;
}

const unwrap = address => (address.startsWith('<') && address.endsWith('>') ? address.slice(1, -1) : address);

const link = address => ({ t: 'link', href: address, image: false, kids: [{ t: 'text', v: address }] });

function angle(p) {
  BREAK.lastIndex = p.at;
  if (BREAK.test(p.s)) return p.take({ t: 'br' }, BREAK.lastIndex);
  ANGLE.lastIndex = p.at;
  const match = ANGLE.exec(p.s);
  return match ? p.take(link(match[1]), ANGLE.lastIndex) : false;
}

function bare(p) {
  BARE.lastIndex = p.at;
  if (p.brackets.length || WORD.test(p.s[p.at - 1] || ' ')) return false;
  const match = BARE.exec(p.s);
  if (!match) return false;
  let address = match[0].replace(/[*_~]{1,3}$/, '');
  let end = address.length;
  while (end && '.,;:!?)]}'.includes(address[end - 1])) {
    if (address[end - 1] === ')' && address.slice(0, end).includes('(')) break;
    end--;
  }
  address = address.slice(0, end);
  meter.steps += match[0].length;
  return safeHref(address) ? p.take(link(address), p.at + address.length) : false;
}

function entity(p) {
  ENTITY.lastIndex = p.at;
  const match = ENTITY.exec(p.s);
  if (!match) return false;
  p.text(ENTITIES[match[1]]);
  p.at = ENTITY.lastIndex;
  return true;
}

const HANDLERS = {
  '\\': escape,
  '`': code,
  '*': emphasis,
  _: emphasis,
  '~': emphasis,
  '[': p => openBracket(p, false),
  ']': closeBracket,
  '!': bang,
  '<': angle,
  $: dollar,
  '&': entity,
  '\n': p => p.take({ t: 'br' }, p.at + 1),
  h: bare,
  H: bare
};
