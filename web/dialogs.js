// Help, the key, toasts and the banner.

import { isAlive, setApiKey } from './api.js';
import { byId, button, el, iconButton } from './dom.js';

const KEYS = [
  ['Send', 'Enter'],
  ['New line', 'Shift + Enter'],
  ['Stop the answer', 'Esc'],
  ['Edit the last question', 'Up arrow, in an empty box'],
  ['Search conversations', 'Ctrl + K'],
  ['New conversation', 'Ctrl + Shift + O'],
  ['This help', 'Ctrl + /'],
  ['Move along tokens', 'Left and right arrow'],
];

export function openHelp(props) {
  const dialog = byId('help');
  const keys = (text) => text.split(' + ').flatMap((key, i) => [i ? ' + ' : '', el('kbd', {}, key)]);
  const rows = KEYS.map(([what, key]) => el('tr', {}, el('th', { scope: 'row' }, what), el('td', {}, ...keys(key))));
  dialog.replaceChildren(
    el('div', { class: 'head' }, el('h2', { id: 'help-title' }, 'Keyboard'), iconButton('close', 'Close help', () => dialog.close())),
    el('table', {}, el('tbody', {}, ...rows)),
    el('p', { class: 'note' }, `Conversations are kept in this browser only.${props && props.build_info ? ` ${props.build_info}` : ''}`),
  );
  dialog.showModal();
}

let asking = null;

// Asks for the key, once for all requests that wait for it. Resolves to whether one was given.
export function askForKey(wasWrong) {
  asking = asking || new Promise((resolve) => showKeyDialog(wasWrong, resolve)).finally(() => (asking = null));
  return asking;
}

function showKeyDialog(wasWrong, resolve) {
  const dialog = byId('key');
  const input = el('input', { type: 'password', id: 'key-input', autocomplete: 'off', 'aria-describedby': 'key-note' });
  const remember = el('input', { type: 'checkbox' });
  let given = false;
  const accept = () => {
    if (!input.value.trim()) return input.focus();
    setApiKey(input.value.trim(), remember.checked);
    given = true;
    return dialog.close();
  };
  input.addEventListener('keydown', (event) => event.key === 'Enter' && accept());
  dialog.addEventListener('close', () => resolve(given), { once: true });
  const note = wasWrong ? 'The server did not accept the key. Check it and try again.' : 'It was set when the server was started (--api-key).';
  dialog.replaceChildren(
    el('div', { class: 'head' }, el('h2', { id: 'key-title' }, 'This server wants a key')),
    el('div', { class: 'field' }, el('label', { class: 'name', for: 'key-input' }, 'API key'), input, el('span', { class: `note${wasWrong ? ' wrong' : ''}`, id: 'key-note' }, note)),
    el('label', { class: 'check' }, remember, el('span', {}, 'Remember it in this browser', el('span', { class: 'note' }, 'Otherwise it is gone with this tab.'))),
    el('div', { class: 'end' }, button('Cancel', () => dialog.close()), button('Use this key', accept, 'primary')),
  );
  dialog.showModal();
  input.focus();
}

// A line at the bottom that goes away by itself; `action` is {label, call}.
export function toast(text, action) {
  const node = el('div', { class: 'toast' }, el('span', {}, text));
  const leave = () => node.remove();
  if (action) {
    node.append(
      button(action.label, () => {
        leave();
        action.call();
      }),
    );
  } else node.append(iconButton('close', 'Dismiss', leave, 'small'));
  byId('toasts').append(node);
  setTimeout(leave, action ? 10000 : 7000);
}

// Tells that the server is gone and asks after it until it is back.
export class GoneBanner {
  constructor(back) {
    this.back = back;
    this.node = byId('banner');
    this.timer = 0;
    this.seconds = 0;
  }

  show() {
    if (!this.node.hidden) return;
    this.wait = 2;
    this.text = el('span');
    this.node.replaceChildren(this.text, button('Try now', () => this.check()));
    this.node.hidden = false;
    this.countDown();
  }

  countDown() {
    this.seconds = this.wait;
    this.wait = Math.min(30, this.wait * 2);
    clearInterval(this.timer);
    this.tell();
    this.timer = setInterval(() => {
      this.seconds--;
      this.tell();
      if (this.seconds <= 0) this.check();
    }, 1000);
  }

  tell() {
    this.text.textContent = `The server does not answer. Is it running? Trying again in ${Math.max(0, this.seconds)} s.`;
  }

  async check() {
    clearInterval(this.timer);
    this.text.textContent = 'Asking the server…';
    if (!(await isAlive())) return this.countDown();
    this.node.hidden = true;
    return this.back();
  }
}
