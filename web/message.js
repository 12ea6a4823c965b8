// One message on the page. `update(turn)` brings it up to date with its node; `turn` is the answer
// on its way, or null when the message is complete.

import { canLeaveOut, pathOf, versionsOf } from './chat.js';
import {
  announce,
  button,
  copyText,
  el,
  formatNumber,
  formatSeconds,
  formatSpeed,
  icon,
  iconButton,
  sendsOn
} from './dom.js';
import { ProbsView } from './probs.js';
import { StreamView, codeNode } from './render.js';

export function messageView(app, chat, node) {
  return new VIEWS[node.role](app, chat, node);
}

function versions(app, chat, node) {
  const { index, count, ids } = versionsOf(chat, node);
  if (count < 2) return null;
  const prev = iconButton('left', 'Previous version', () => app.choose(node, ids[index - 1]), '.small');
  const next = iconButton('right', 'Next version', () => app.choose(node, ids[index + 1]), '.small');
  prev.disabled = index === 0;
  next.disabled = index === count - 1;
  const place = el('span', { 'aria-label': `Version ${index + 1} of ${count}`, role: 'img' }, `${index + 1}/${count}`);
  return el('span.versions', { role: 'group', 'aria-label': 'Versions' }, prev, place, next);
}

const LONG = 1500; // characters of a question from which on it scrolls in its bubble

const bubble = text =>
  text.length < LONG && text.split('\n').length < LONG / 60
    ? el('div.bubble', text)
    : el('div.bubble.tall', { tabindex: '0', role: 'region', 'aria-label': 'A long question' }, text);

class UserView {
  constructor(app, chat, node) {
    Object.assign(this, { app, chat, node });
    this.root = el('article.message.user');
    this.show();
  }

  update() {}

  show() {
    const { app, node } = this;
    const pictures = (node.images || []).map((url, i) =>
      el('img', { src: url, alt: `Image ${i + 1} of the question` })
    );
    const copy = iconButton('copy', 'Copy the question', () => copyText(node.text, copy), '.small');
    this.editButton = iconButton('edit', 'Edit the question', () => this.edit(), '.small');
    this.root.replaceChildren(
      el('h2.visually-hidden', 'You'),
      ...(pictures.length ? [el('div.pictures', ...pictures)] : []),
      ...(node.text ? [bubble(node.text)] : []),
      el('div.actions', versions(app, this.chat, node) || '', copy, this.editButton)
    );
  }

  edit() {
    const { app, node } = this;
    const area = el('textarea', { 'aria-label': 'Edit the question', value: node.text, rows: '4' });
    const cancel = () => {
      this.show();
      this.editButton.focus();
    };
    const send = () => area.value.trim() && app.edit(node, area.value);
    area.addEventListener('keydown', event => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        cancel();
      } else if (sendsOn(event)) {
        event.preventDefault();
        send();
      }
    });
    const row = el('div.row', button('Cancel', cancel), button('Send as a new version', send, '.primary'));
    this.root.replaceChildren(el('h2.visually-hidden', 'You'), el('div.editor', area, row));
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }
}

class ToolView {
  constructor(app, chat, node) {
    const summary = el('summary', icon('tool'), 'Result of ', el('code', node.name));
    const fold = el('details.fold', summary, el('div.inside.plain', { tabindex: '0' }, node.text));
    this.root = el('article.message.tool', el('h2.visually-hidden', 'Tool'), fold);
  }

  update() {}
}

// A longer text than any model writes is shown as it is.
const MAX_MARKDOWN = 500000;

const FINISHES = {
  stopped: 'Stopped',
  length: 'Reached the limit of tokens'
};

class AnswerView {
  constructor(app, chat, node) {
    Object.assign(this, { app, chat, node });
    this.reasoning = null;
    this.calls = el('div', { hidden: true });
    this.body = el('div.markdown');
    this.stream = new StreamView(this.body);
    this.probs = null;
    this.asTokens = app.prefs.probs;
    this.working = new WorkingLine();
    this.problem = el('div.problem', { role: 'alert', hidden: true });
    this.actions = el('div.actions');
    this.thoughts = el('div');
    this.root = el(
      'article.message.assistant',
      el('h2', node.model || 'Answer'),
      this.thoughts,
      this.body,
      this.calls,
      this.working.node,
      this.problem,
      this.actions
    );
  }

  update(turn) {
    const { node } = this;
    this.root.setAttribute('aria-busy', String(Boolean(turn)));
    if (node.model) this.root.querySelector('h2').textContent = node.model;
    if (node.reasoning) this.showReasoning(turn);
    this.showText(!turn);
    this.working.update(turn);
    if (turn) return this.actions.replaceChildren();
    this.showCalls();
    this.showProblem();
    return this.showActions();
  }

  showText(finished) {
    const tokens = this.asTokens && this.node.probs?.length > 0;
    if (tokens && !this.probs) {
      this.probs = new ProbsView(this.node.probs);
      this.body.after(this.probs.node);
    }
    if (this.probs) {
      this.probs.node.hidden = !tokens;
      if (tokens) this.probs.update();
    }
    this.body.hidden = Boolean(tokens) || !this.node.text;
    if (tokens) return;
    if (this.node.text.length < MAX_MARKDOWN) this.stream.update(this.node.text, finished);
    else if (finished) this.body.replaceChildren(el('p.plain', this.node.text));
  }

  showReasoning(turn) {
    const { node } = this;
    if (!this.reasoning) {
      this.reasoning = { title: document.createTextNode(''), text: document.createTextNode(''), touched: false };
      const summary = el(
        'summary',
        { on: { click: () => (this.reasoning.touched = true) } },
        icon('thought'),
        this.reasoning.title
      );
      this.reasoning.inside = el(
        'div.inside.plain',
        { tabindex: '0', role: 'region', 'aria-label': 'Reasoning' },
        this.reasoning.text
      );
      this.reasoning.fold = el('details.fold', summary, this.reasoning.inside);
      this.thoughts.append(this.reasoning.fold);
    }
    const { fold, inside, text, title, touched } = this.reasoning;
    const thinking = Boolean(turn && turn.thinkingSince);
    const low = inside.scrollTop + inside.clientHeight > inside.scrollHeight - 40;
    if (node.reasoning.length > text.length) text.appendData(node.reasoning.slice(text.length));
    if (!touched) fold.open = thinking;
    if (thinking && low) inside.scrollTop = inside.scrollHeight;
    const ms = thinking ? performance.now() - turn.thinkingSince : node.thought;
    const size = node.stats?.thinking
      ? `${formatNumber(node.stats.thinking)} tokens`
      : `${formatNumber(node.reasoning.length)} characters`;
    title.data = thinking
      ? `Thinking, ${formatSeconds(ms)}`
      : `Thought${ms ? ` for ${formatSeconds(ms)}` : ''}, ${size}`;
  }

  showCalls() {
    const calls = this.node.calls || [];
    this.calls.hidden = !calls.length;
    const answered = this.chat.nodes.some(n => n.parent === this.node.id);
    const wanted = calls.length > 0 && !answered && !this.node.error;
    this.calls.replaceChildren(...calls.map(call => callNode(call, wanted)));
    if (wanted) this.calls.append(this.resultForm(calls));
  }

  resultForm(calls) {
    const areas = calls.map(() =>
      el('textarea', { rows: '3', spellcheck: 'false', placeholder: 'What the function gives back, text or JSON' })
    );
    const send = () =>
      this.app.sendResults(
        this.node,
        areas.map(area => area.value)
      );
    const labels = calls.map((call, i) => el('label', 'Result of ', el('code', call.name), areas[i]));
    return el(
      'div.results',
      el(
        'p',
        `The model waits for ${calls.length > 1 ? 'these results' : 'this result'}. It goes on when you send it.`
      ),
      ...labels,
      el('div', button(calls.length > 1 ? 'Send results' : 'Send result', send, '.primary'))
    );
  }

  showProblem() {
    const error = this.node.error || (this.node.finish === undefined ? { kind: 'left' } : null);
    this.problem.hidden = !error;
    if (!error) return;
    const path = pathOf(this.chat).filter(n => n.id < this.node.id);
    const [head, text, actions] = (PROBLEMS[error.kind] || PROBLEMS.other)(error, canLeaveOut(this.chat, path));
    const buttons = actions.map(([label, action], i) =>
      button(label, () => this.app[action](this.node), i ? '' : '.primary')
    );
    this.problem.replaceChildren(el('p', el('strong', head), ' ', text), ...buttons);
  }

  showActions() {
    const { app, node } = this;
    const copy = iconButton('copy', 'Copy the answer', () => copyText(node.text, copy), '.small');
    const again = iconButton('again', 'Answer again', () => app.regenerate(node), '.small');
    const chances = iconButton('chance', 'Token probabilities', () => this.toggleTokens(chances), '.small');
    chances.setAttribute('aria-pressed', String(this.asTokens));
    const parts = [
      versions(app, this.chat, node),
      node.text && copy,
      !node.error && again,
      node.probs?.length && chances,
      statsNode(node)
    ];
    this.actions.replaceChildren(...parts.filter(Boolean));
  }

  // Says that answering again would change nothing, and offers what would.
  tellSame({ text, label, change }) {
    const { app, node } = this;
    const other = button(label, () => app.regenerate(node, change), '.primary');
    const anyway = button('Answer again anyway', () => app.regenerate(node, {}));
    this.root.querySelector('.same')?.remove();
    this.actions.after(el('div.same', { role: 'group', 'aria-label': 'Answer again' }, el('p', text), other, anyway));
    announce(text);
    other.focus();
    other.scrollIntoView({ block: 'nearest' });
  }

  toggleTokens(chances) {
    this.asTokens = !this.asTokens;
    chances.setAttribute('aria-pressed', String(this.asTokens));
    this.showText(true);
  }
}

// head, text, [label, action of the app]
const PROBLEMS = {
  gone: e => ['No connection.', `${e.message} Is it still running? Your question is kept.`, [['Try again', 'retry']]],
  broken: e => ['Incomplete.', `${e.message} What came so far is kept.`, [['Answer again', 'regenerate']]],
  left: () => [
    'Incomplete.',
    'The page was closed before the answer was complete, or another tab is still at it.',
    [['Answer again', 'regenerate']]
  ],
  overflow: (e, canLeave) => [
    'Too long for the context.',
    overflowText(e, canLeave),
    canLeave
      ? [
          ['Leave out the oldest turns', 'leaveOut'],
          ['Try again', 'retry']
        ]
      : [
          ['Edit the question', 'editLast'],
          ['Settings', 'openSettings'],
          ['Try again', 'retry']
        ]
  ],
  key: e => ['A key is needed.', e.message, [['Try again', 'retry']]],
  full: e => ['The server is full.', e.message, [['Try again', 'retry']]],
  refused: e => [
    'The server refused.',
    e.message,
    [
      ['Try again', 'retry'],
      ['Settings', 'openSettings']
    ]
  ],
  failed: e => ['The server has a problem.', e.message, [['Try again', 'retry']]],
  other: e => ['Something went wrong.', e.message, [['Try again', 'retry']]]
};

function overflowText(e, canLeave) {
  if (!e.room) return e.message;
  const sizes = `has ${formatNumber(e.used)} tokens; there is room for ${formatNumber(e.room)}.`;
  if (canLeave) return `The conversation ${sizes}`;
  return `The last question alone, with the system prompt and the tools, ${sizes} Shorten it, or serve the model with a larger context.`;
}

function callNode(call, open) {
  let text = call.arguments;
  try {
    text = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // shown as it came
  }
  const summary = el('summary', icon('tool'), 'Calls ', el('code', call.name));
  return el('details.fold', { open }, summary, el('div.inside.markdown', codeNode('json', text)));
}

function statsNode(node) {
  const s = node.stats || {};
  const cut = node.error || node.finish === 'stopped'; // then the server has not told how many
  const parts = [
    FINISHES[node.finish],
    s.speed && formatSpeed(s.speed),
    s.first && `first token ${formatSeconds(s.first)}`,
    s.tokens && `${cut ? 'about ' : ''}${formatNumber(s.tokens)} tokens`,
    s.cached && `${formatNumber(s.cached)} of ${formatNumber(s.prompt)} from cache`,
    s.seed !== undefined && `seed ${s.seed}`
  ];
  return el('span.stats', ...parts.filter(Boolean).map(part => el('span', part)));
}

// What is shown while an answer is on its way.
class WorkingLine {
  constructor() {
    this.text = document.createTextNode('');
    this.fill = el('div.fill');
    this.bar = el('div.bar', { hidden: true }, this.fill);
    this.node = el(
      'div.working',
      { hidden: true },
      el('img', { src: 'page/logo.svg', alt: '' }),
      this.bar,
      el('span', this.text)
    );
  }

  update(turn) {
    this.node.hidden = !turn;
    if (!turn) return;
    const { progress, waiting } = turn;
    this.bar.hidden = !progress || !(progress.total > 0);
    if (!this.bar.hidden) this.fill.style.width = `${Math.min(100, (100 * progress.processed) / progress.total)}%`;
    this.text.data = waiting
      ? `The server is full. Asking again in ${waiting} s`
      : progress
        ? progressText(progress)
        : speedText(turn);
  }
}

const progressText = p => `Reading, ${formatNumber(p.processed)} of ${formatNumber(p.total)} tokens`;

function speedText(turn) {
  if (!turn.first) return 'Waiting for the first token';
  const call = turn.node.calls && turn.node.calls[turn.node.calls.length - 1];
  const speed = turn.speed();
  return (call ? `Calls ${call.name}, ` : '') + (speed ? formatSpeed(speed) : '');
}

const VIEWS = { user: UserView, assistant: AnswerView, tool: ToolView };
