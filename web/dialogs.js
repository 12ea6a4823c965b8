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
  ['Move along tokens', 'Left and right arrow']
];

export function openHelp(props) {
  const dialog = byId('help');
  const control = /Mac|iP(hone|ad)/.test(navigator.platform) ? 'Cmd' : 'Ctrl';
  const keys = text =>
    text
      .replace('Ctrl', control)
      .split(' + ')
      .flatMap((key, i) => [i ? ' + ' : '', el('kbd', key)]);
  const rows = KEYS.map(([what, key]) => el('tr', el('th', { scope: 'row' }, what), el('td', ...keys(key))));
  dialog.replaceChildren(
    el(
      'div.head',
      el('h2', { id: 'help-title' }, 'Keyboard'),
      iconButton('close', 'Close help', () => dialog.close())
    ),
    el('table', el('tbody', ...rows)),
    el('p.note', `Conversations are kept in this browser only. ${props?.build_info || ''}`)
  );
  dialog.showModal();
}

let asking = null;

// Asks for the key, once for all requests that wait for it. Resolves to whether one was given.
export function askForKey(wasWrong) {
  asking = asking || new Promise(resolve => showKeyDialog(wasWrong, resolve)).finally(() => (asking = null));
  return asking;
}

function showKeyDialog(wasWrong, resolve) {
  const dialog = byId('key');
  const input = el('input', {
    type: 'password',
    id: 'key-input',
    autocomplete: 'off',
    'aria-describedby': 'key-note'
  });
  const remember = el('input', { type: 'checkbox' });
  let given = false;
  const accept = () => {
    if (!input.value.trim()) return input.focus();
    setApiKey(input.value.trim(), remember.checked);
    given = true;
    return dialog.close();
  };
  input.addEventListener('keydown', event => event.key === 'Enter' && accept());
  dialog.addEventListener('close', () => resolve(given), { once: true });
  const note = wasWrong
    ? 'The server did not accept the key. Check it and try again.'
    : 'It was set when the server was started (--api-key).';
  dialog.replaceChildren(
    el('div.head', el('h2', { id: 'key-title' }, 'This server wants a key')),
    el(
      'div.field',
      el('label.name', { for: 'key-input' }, 'API key'),
      input,
      el('span', { class: `note${wasWrong ? ' wrong' : ''}`, id: 'key-note' }, note)
    ),
    el(
      'label.check',
      remember,
      el('span', 'Remember it in this browser', el('span.note', 'Otherwise it is gone with this tab.'))
    ),
    el(
      'div.end',
      button('Cancel', () => dialog.close()),
      button('Use this key', accept, '.primary')
    )
  );
  dialog.showModal();
  input.focus();
}

// A line at the bottom that goes away by itself; `action` is {label, call}.
export function toast(text, action) {
  const node = el('div.toast', el('span', text));
  const leave = () => node.remove();
  if (action) {
    const act = () => {
      leave();
      action.call();
    };
    node.append(button(action.label, act));
  } else node.append(iconButton('close', 'Dismiss', leave, '.small'));
  byId('toasts').append(node);
  setTimeout(leave, action ? 10000 : 7000);
}

// The line at the top that stays until what it tells is over. Of a server that is gone it asks after it, ever less
// often, until it is back.
export class Banner {
  constructor(back) {
    this.back = back;
    this.node = byId('banner');
    this.timer = 0;
  }

  tell(text, label, call) {
    this.hide();
    this.node.replaceChildren(el('span', text), button(label, call));
    this.node.hidden = false;
  }

  hide() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.node.hidden = true;
  }

  gone() {
    if (this.timer) return;
    this.tell('The server does not answer. Is it running? It is asked again from time to time.', 'Try now', () =>
      this.check()
    );
    this.wait = 2000;
    this.later();
  }

  later() {
    this.timer = setTimeout(() => this.check(), this.wait);
    this.wait = Math.min(30000, this.wait * 2);
  }

  async check() {
    clearTimeout(this.timer);
    if (!(await isAlive())) return this.later();
    this.hide();
    return this.back();
  }
}
