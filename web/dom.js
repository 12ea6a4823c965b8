// Building DOM nodes. Nothing on this page ever parses HTML at run time: text becomes text nodes.

// el('button.quiet', { on: { click }, 'aria-label': 'Copy' }, icon('copy'), 'Copy')
// The props may be left out. `on` adds listeners, `value` and `checked` are properties, the rest
// are attributes. Whatever is null, undefined or false is left out.
export function el(selector, ...kids) {
  const [tag, ...classes] = selector.split('.');
  const node = document.createElement(tag);
  const props = kids[0]?.constructor === Object ? kids.shift() : {};
  if (tag === 'button') node.type = 'button';
  if (classes.length) node.className = classes.join(' ');
  for (const [name, value] of Object.entries(props)) {
    if (isNone(value)) continue;
    if (name === 'on') for (const [type, call] of Object.entries(value)) node.addEventListener(type, call);
    else if (name === 'value' || name === 'checked') node[name] = value;
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...kids.filter(kid => !isNone(kid)));
  return node;
}

const isNone = value => value === null || value === undefined || value === false;

export const byId = id => document.getElementById(id);

const SVG = 'http://www.w3.org/2000/svg';

// Drawn on a 20 by 20 grid with one stroke.
const ICONS = {
  menu: 'M3 6h14M3 10h14M3 14h9',
  plus: 'M10 4v12M4 10h12',
  search: 'M9 4a5 5 0 1 0 0 10A5 5 0 0 0 9 4ZM13 13l4 4',
  settings: 'M3 6h8M15 6h2M3 14h2M9 14h8M13 4v4M7 12v4',
  send: 'M10 16V4M5 9l5-5 5 5',
  stop: 'M6 6h8v8H6Z',
  image: 'M3 4h14v12H3ZM3 13l4-4 4 4 2-2 4 4M13 7.5h.01',
  copy: 'M7 7h9v9H7ZM4 13V4h9',
  check: 'M4 10.5l4 4 8-9',
  edit: 'M4 16l1-4 8-8 3 3-8 8ZM11 6l3 3',
  again: 'M16 10a6 6 0 1 1-2-4.5M16 3v3.5h-3.5',
  left: 'M12 5l-5 5 5 5',
  right: 'M8 5l5 5-5 5',
  down: 'M10 4v12M5 11l5 5 5-5',
  close: 'M5 5l10 10M15 5L5 15',
  trash: 'M4 6h12M8 6V4h4v2M6 6l1 10h6l1-10',
  help: 'M7.5 7.5a2.5 2.5 0 1 1 3.5 2.3c-.7.4-1 .8-1 1.7M10 14.5h.01M10 2.5a7.5 7.5 0 1 0 0 15 7.5 7.5 0 0 0 0-15Z',
  inbox: 'M10 3v9M6 8.5l4 4 4-4M4 16h12',
  outbox: 'M10 12.5v-9M6 7l4-4 4 4M4 16h12',
  chance: 'M3 16V9M8 16V4M13 16v-6M18 16v-3',
  tool: 'M12.5 3.5a4 4 0 0 0-4.7 5.2L3.5 13a1.5 1.5 0 0 0 0 2l1.5 1.5a1.5 1.5 0 0 0 2 0l4.3-4.3a4 4 0 0 0 5.2-4.7L14 10l-2.5-1.5L10 6Z',
  thought: 'M10 3a5 5 0 0 0-3 9v2h6v-2a5 5 0 0 0-3-9ZM8 17h4'
};

export function icon(name) {
  const svg = document.createElementNS(SVG, 'svg');
  const path = document.createElementNS(SVG, 'path');
  svg.setAttribute('viewBox', '0 0 20 20');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  path.setAttribute('d', ICONS[name]);
  svg.append(path);
  return svg;
}

// A button that is only an icon; its name is read out and shown as a hint.
export function iconButton(name, label, click, extra = '') {
  return el(`button.icon-button${extra}`, { 'aria-label': label, title: label, on: { click } }, icon(name));
}

export function button(label, click, extra = '') {
  return el(`button.button${extra}`, { on: { click } }, label);
}

// Whether a key press in a box for text sends it. Where there is no Shift key, on a phone, Enter makes a line and a
// button sends.
export const sendsOn = event =>
  event.key === 'Enter' && !event.shiftKey && !event.isComposing && !matchMedia('(pointer: coarse)').matches;

// Runs `call` once before the next frame, however often it is asked to. A hidden page has no
// frames, so a timer stands in for them.
export function perFrame(call) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    const run = () => {
      waiting = false;
      call();
    };
    if (document.hidden) setTimeout(run, 250);
    else requestAnimationFrame(run);
  };
}

export async function copyText(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without HTTPS there is no clipboard object: fall back to a selection.
    const area = el('textarea.visually-hidden', { value: text });
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
    from.focus();
  }
  const old = from.firstElementChild;
  if (!old || from.dataset.copied) return;
  from.dataset.copied = 'yes';
  const done = icon('check');
  old.replaceWith(done);
  announce('Copied');
  setTimeout(() => {
    done.replaceWith(old);
    delete from.dataset.copied;
  }, 1500);
}

// Says something to a screen reader.
export function announce(text) {
  const live = byId('live');
  live.textContent = '';
  setTimeout(() => (live.textContent = text), 50);
}

export const formatNumber = n => Number(n).toLocaleString('en-US');
export const formatSpeed = n => `${n < 10 ? n.toFixed(1) : Math.round(n)} tokens/s`;
export const formatSeconds = ms => (ms < 10000 ? (ms / 1000).toFixed(ms < 1000 ? 2 : 1) : Math.round(ms / 1000)) + ' s';
