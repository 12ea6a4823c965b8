// The settings: of this conversation, and of every one.

import { byId, button, el, iconButton } from './dom.js';
import { JSON_FIELDS, SAMPLING, readJson, samplingProblem } from './request.js';

let serial = 0;

// A labelled field with a note below it; `check(text)` -> what is wrong, or ''.
function field(name, label, input, note, check) {
  const id = `field-${++serial}`;
  const below = el('span.note', { id: `${id}-note` }, note);
  input.setAttribute('aria-describedby', below.id);
  input.id = id;
  input.name = name;
  const judge = () => {
    const problem = check(input.value);
    input.setAttribute('aria-invalid', String(Boolean(problem)));
    below.textContent = problem || note;
    below.classList.toggle('wrong', Boolean(problem));
  };
  judge();
  const node = el('div.field', el('label.name', { for: id }, label), input, below);
  return { node, judge };
}

// A text of the conversation; `check` makes it one of JSON.
function textField(app, name, label, note, check) {
  const { chat } = app;
  const area = el(check ? 'textarea.mono' : 'textarea', { value: chat[name], spellcheck: check && 'false' });
  const { node, judge } = field(name, label, area, note, text => (check && readJson(text, check).problem) || '');
  area.addEventListener('input', () => {
    judge();
    chat[name] = area.value;
    app.saveSoon(chat);
  });
  return node;
}

const JSON_NOTES = {
  schema: 'Answers follow it, to the letter.',
  tools: 'A JSON list of functions. You type their results.'
};

export class Settings {
  constructor(app) {
    this.app = app;
    this.dialog = byId('settings');
    this.dialog.addEventListener('click', event => event.target === this.dialog && this.dialog.close());
    this.dialog.addEventListener('close', () => {
      app.save(app.chat);
      app.showWrong();
    });
  }

  // `wrong` {name, label, problem} is a setting that kept a question from being sent.
  open(wrong) {
    this.fill();
    if (wrong) {
      const told = el('p.problem', { role: 'alert' }, `Not sent. ${wrong.label} is not valid.`);
      this.dialog.firstChild.after(told);
    }
    this.dialog.showModal();
    if (wrong) this.dialog.querySelector(`[name="${wrong.name}"]`).focus();
  }

  fill() {
    const close = iconButton('close', 'Close settings', () => this.dialog.close());
    this.dialog.replaceChildren(
      el('div.head', el('h2', { id: 'settings-title' }, 'Settings'), close),
      this.chatSection(),
      this.samplingSection(),
      this.pageSection()
    );
  }

  chatSection() {
    const { app } = this;
    return el(
      'section',
      { 'aria-label': 'This conversation' },
      el('h3', 'This conversation'),
      textField(app, 'system', 'System prompt', 'Said to the model before everything else.'),
      ...JSON_FIELDS.map(({ name, label, check }) => textField(app, name, label, JSON_NOTES[name], check))
    );
  }

  samplingSection() {
    const { app } = this;
    const own = app.props?.default_generation_settings?.params || {};
    const inputs = SAMPLING.map(spec => {
      const value = String(app.prefs.sampling[spec.name] ?? '');
      const usual =
        own[spec.name] >= spec.min && spec.name !== 'seed' ? ` (${Math.round(own[spec.name] * 1000) / 1000})` : '';
      const input = el('input', {
        type: 'text',
        inputmode: 'decimal',
        value,
        placeholder: `default${usual}`,
        autocomplete: 'off'
      });
      const { node, judge } = field(spec.name, spec.label, input, spec.note, text => samplingProblem(spec, text));
      input.addEventListener('input', () => {
        judge();
        app.setSampling(spec.name, input.value.trim());
      });
      return node;
    });
    const reset = button('Use the defaults', () => {
      app.prefs.sampling = {};
      app.savePrefs();
      this.fill();
    });
    return el('section', { 'aria-label': 'Sampling' }, el('h3', 'Sampling'), el('div.grid', ...inputs), reset);
  }

  pageSection() {
    const { app } = this;
    const caps = app.props?.chat_template_caps || {};
    const probs = el('input', { type: 'checkbox', checked: app.prefs.probs });
    probs.addEventListener('change', () => app.setPref('probs', probs.checked));
    const names = { auto: 'Automatic', light: 'Light', dark: 'Dark' };
    const modes = { auto: 'Default', on: 'On', off: 'Off' };
    return el(
      'section',
      { 'aria-label': 'Every conversation' },
      el('h3', 'Every conversation'),
      caps.thinking !== false &&
        choice('Reasoning', 'thinking', modes, app.prefs.thinking, value => app.setPref('thinking', value)),
      choice('Theme', 'theme', names, app.prefs.theme, value => app.setTheme(value)),
      el(
        'label.check',
        probs,
        el(
          'span',
          'Token probabilities',
          el('span.note', 'New answers show how likely each token was and what else was possible.')
        )
      ),
      button('Enter an API key', () => app.askForKey(false))
    );
  }
}

function choice(label, name, options, value, changed) {
  const id = `choice-${name}`;
  const labels = Object.entries(options).map(([key, text]) => {
    const input = el('input', { type: 'radio', name, checked: key === value });
    input.addEventListener('change', () => changed(key));
    return el('label', input, text);
  });
  return el(
    'div.field',
    el('span.name', { id }, label),
    el('div.choice', { role: 'radiogroup', 'aria-labelledby': id }, ...labels)
  );
}
