// The view of token probabilities: every token of an answer with its chance as the ground, and its
// alternatives when it is pointed at or focused. One token at a time is in the tab order; the arrow
// keys move along.

import { byId, el } from './dom.js';

const percent = logprob => {
  const p = Math.exp(logprob) * 100;
  return `${p >= 10 ? p.toFixed(0) : p >= 0.1 ? p.toFixed(1) : '<0.1'} %`;
};

const STEPS = [0.9, 0.6, 0.3, 0.1]; // from likely to unlikely

function chanceClass(logprob) {
  const p = Math.exp(logprob);
  const step = STEPS.findIndex(limit => p >= limit);
  return `p${step < 0 ? 4 : step}`;
}

const visible = token => token.replaceAll('\n', '⏎').replaceAll('\t', '⇥') || '∅';

export class ProbsView {
  constructor(probs) {
    this.probs = probs;
    this.shown = 0;
    this.tokens = el('div.tokens', { role: 'group', 'aria-label': 'Tokens of the answer. Arrow keys move along.' });
    this.tokens.addEventListener('pointerover', event => this.point(event.target));
    this.tokens.addEventListener('pointerleave', hideChances);
    this.tokens.addEventListener('focusin', event => this.point(event.target));
    this.tokens.addEventListener('focusout', hideChances);
    this.tokens.addEventListener('keydown', event => this.walk(event));
    const hint = el('p.note', 'The darker, the less likely. Point at a token to see what else was possible.');
    this.node = el('div', this.tokens, hint);
    this.update();
  }

  update() {
    const more = document.createDocumentFragment();
    for (; this.shown < this.probs.length; this.shown++) {
      const [token, logprob] = this.probs[this.shown];
      const hint = `${visible(token)}, ${percent(logprob)}`;
      more.append(
        el(
          'span',
          {
            class: chanceClass(logprob),
            tabindex: this.shown ? '-1' : '0',
            role: 'note',
            'aria-label': hint,
            'data-at': String(this.shown)
          },
          token
        )
      );
    }
    this.tokens.append(more);
  }

  point(span) {
    if (span.dataset.at) showChances(span, this.probs[Number(span.dataset.at)]);
    else hideChances();
  }

  walk(event) {
    const step = { ArrowRight: 'nextElementSibling', ArrowLeft: 'previousElementSibling' }[event.key];
    const next = step && event.target[step];
    if (event.key === 'Escape') hideChances();
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}

function showChances(span, [token, logprob, others]) {
  hideChances();
  const rows = others.some(([other]) => other === token) ? others : [[token, logprob], ...others];
  const body = rows.map(([other, chance]) =>
    el('tr', { class: other === token && 'taken' }, el('td', visible(other)), el('td', percent(chance)))
  );
  const box = el('div', { id: 'chances', role: 'tooltip' }, el('table', el('tbody', ...body)));
  document.body.append(box);
  span.setAttribute('aria-describedby', 'chances');
  const at = span.getClientRects()[0] || span.getBoundingClientRect();
  const size = box.getBoundingClientRect();
  const below = at.bottom + 6 + size.height < innerHeight;
  box.style.left = `${Math.max(8, Math.min(at.left, innerWidth - size.width - 8))}px`;
  box.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - size.height - 6)}px`;
}

export function hideChances() {
  const box = byId('chances');
  if (box) box.remove();
  document.querySelector('.tokens [aria-describedby]')?.removeAttribute('aria-describedby');
}
