// The messages of the open conversation, and where the page is scrolled to.

import { pathOf } from './chat.js';
import { button, byId, el, icon } from './dom.js';
import { messageView } from './message.js';
import { hideChances } from './probs.js';

const NEAR = 96; // pixels from the end that count as being there
const MAX_SHOWN = 200; // messages, until more are asked for

const EXAMPLES = [
  ['Explain', 'Why is the sky blue? Explain it in three sentences.'],
  ['Write', 'Write a short, friendly note that moves a meeting to Friday.'],
  ['Compare', 'Compare train, car and plane in a table: speed, cost, comfort.'],
  ['Code', 'Write a Python function that finds the duplicates in a list.']
];

export class Thread {
  constructor(app) {
    this.app = app;
    this.node = byId('thread');
    this.toEnd = byId('to-end');
    this.views = new Map();
    this.follows = true; // stay at the end while an answer grows
    this.toEnd.append(icon('down'));
    this.toEnd.addEventListener('click', () => this.goToEnd());
    this.node.addEventListener('scroll', () => this.scrolled(), { passive: true });
  }

  // Shows the conversation and goes to its end.
  show(chat, turn, all = false) {
    hideChances();
    this.views.clear();
    const path = pathOf(chat);
    const column = el('div.column');
    const hidden = all ? 0 : Math.max(0, path.length - MAX_SHOWN);
    if (hidden) column.append(button(`Show ${hidden} earlier messages`, () => this.show(chat, turn, true), '.earlier'));
    for (const node of path.slice(hidden)) {
      if (node.id === chat.from) column.append(this.cut());
      const view = messageView(this.app, chat, node);
      view.update(turn && turn.node === node ? turn : null);
      this.views.set(node.id, view);
      column.append(view.root);
    }
    if (!path.length) column.append(this.welcome());
    column.classList.toggle('empty', !path.length);
    this.node.replaceChildren(column);
    if (path.length && !all) this.goToEnd();
    else this.scrolled();
  }

  // The answer on its way has grown.
  grow(turn, finished) {
    const view = this.views.get(turn.node.id);
    if (!view) return;
    view.update(finished ? null : turn);
    if (this.follows) this.node.scrollTop = this.node.scrollHeight;
    this.scrolled();
  }

  welcome() {
    const { app } = this;
    const items = EXAMPLES.map(([title, text]) =>
      el('li', el('button', { on: { click: () => app.composer.set(text) } }, el('strong', title), el('span', text)))
    );
    const model = app.model ? `${app.model.id} answers here. ` : '';
    return el(
      'div.welcome',
      el('img', { src: 'page/logo.svg', alt: '' }),
      el('h2', 'What would you like to ask?'),
      el('p', `${model}Conversations stay in this browser.`),
      el('ul.examples', { 'aria-label': 'Examples' }, ...items)
    );
  }

  cut() {
    const again = el('button.link', { on: { click: () => this.app.sendAll() } }, 'Send it again');
    return el('div.cut', 'What is above is not sent any more', again);
  }

  scrolled() {
    const { node } = this;
    const left = node.scrollHeight - node.scrollTop - node.clientHeight;
    this.follows = left < NEAR;
    this.toEnd.hidden = this.follows;
  }

  goToEnd() {
    this.node.scrollTop = this.node.scrollHeight;
    this.scrolled();
  }

  // The last question, for the arrow key.
  editLast() {
    const views = [...this.views.values()].filter(view => view.edit);
    if (views.length) views[views.length - 1].edit();
    return views.length > 0;
  }
}
