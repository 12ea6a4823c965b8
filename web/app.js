// The page: what it holds, and what its parts ask of it.

import { GoneError, listModels, modelProps, onKeyNeeded } from './api.js';
import { addNode, leaveOutOldest, newChat, pathOf, titleFrom, versionsOf } from './chat.js';
import { Composer } from './composer.js';
import { Banner, askForKey, openHelp, toast } from './dialogs.js';
import { announce, byId, el, icon, perFrame } from './dom.js';
import { applyTheme, loadPrefs, savePrefs } from './prefs.js';
import { requestBody, whySame, wrongSettings } from './request.js';
import { Settings } from './settings.js';
import { Sidebar } from './sidebar.js';
import { openStore } from './store.js';
import { Thread } from './thread.js';
import { Turn } from './turn.js';

const SAVE_EVERY = 2000; // ms, while an answer grows

class App {
  constructor(store) {
    this.store = store;
    this.prefs = loadPrefs();
    this.chat = newChat();
    this.turns = new Map(); // conversation id -> the answer on its way
    this.models = [];
    this.model = null;
    this.props = null;
    this.saving = new Map(); // conversation -> timer
    this.asked = new WeakMap(); // answer -> the settings that it was asked with, as text
    this.thread = new Thread(this);
    this.composer = new Composer(this);
    this.sidebar = new Sidebar(this);
    this.settings = new Settings(this);
    this.banner = new Banner(() => this.loadModels());
    onKeyNeeded(askForKey);
    byId('open-settings').append(icon('settings'));
    byId('open-settings').addEventListener('click', () => this.openSettings());
    byId('model').addEventListener('change', event => this.pickModel(event.target.value));
    applyTheme(this.prefs.theme);
    byId('memory-note').hidden = store.lasting;
    document.addEventListener('keydown', event => this.key(event));
    addEventListener('pagehide', () => this.saveNow());
    document.addEventListener('visibilitychange', () => (document.hidden ? this.saveNow() : this.reread()));
  }

  async start() {
    const wanted = location.hash.slice(1);
    const chat = wanted && (await this.store.get(wanted));
    if (chat) this.chat = chat;
    this.showChat();
    this.sidebar.refresh();
    await this.loadModels();
  }

  // ---- models ----

  async loadModels() {
    try {
      this.models = await listModels();
    } catch (error) {
      this.tellNoModels(error);
      return;
    }
    this.banner.hide();
    const options = this.models.map(modelOption);
    const usable = this.models.filter(model => !model.problem);
    const select = byId('model');
    select.replaceChildren(...(options.length ? options : [el('option', 'No model')]));
    select.disabled = !usable.length;
    if (usable.length) await this.pickModel(this.wantedModel(usable).id);
    else {
      this.model = null;
      const [first] = this.models;
      const why = first ? `${first.id} cannot be opened: ${first.problem}` : 'This server has no model.';
      this.banner.tell(why, 'Look again', () => this.loadModels());
    }
  }

  // Without models nothing can be asked; what is missing stays on the page, with a way to give it.
  tellNoModels(error) {
    if (error instanceof GoneError) this.banner.gone();
    else if (error.status === 401)
      this.banner.tell('This server answers only with its key.', 'Enter the key', () => this.loadModels());
    else this.banner.tell(error.message, 'Try again', () => this.loadModels());
  }

  wantedModel(usable) {
    const wanted = this.models.find(model => model.id === this.prefs.model);
    if (wanted?.problem) toast(`${wanted.id} cannot be opened, so ${usable[0].id} answers: ${wanted.problem}`);
    return wanted && !wanted.problem ? wanted : usable[0];
  }

  async pickModel(id) {
    byId('model').value = id;
    this.model = this.models.find(model => model.id === id);
    this.prefs.model = id;
    this.savePrefs();
    this.composer.setVision(this.model.meta.vision === true);
    this.props = null;
    this.showContext();
    if (!this.chat.nodes.length) this.showChat();
    try {
      const props = await modelProps(id);
      if (this.model.id !== id) return;
      this.props = props;
      this.composer.setVision(Boolean(props.modalities ? props.modalities.vision : this.model.meta.vision));
      this.showContext();
    } catch {
      // the list has told enough to go on
    }
  }

  contextSize() {
    return Number(this.props?.n_ctx || this.model?.meta.n_ctx) || 0;
  }

  showContext() {
    const filled = this.turns.get(this.chat.id)?.filled();
    if (filled) return this.composer.showContext(filled, this.contextSize());
    const last = pathOf(this.chat).findLast(node => node.stats?.prompt);
    return this.composer.showContext(last ? last.stats.prompt + last.stats.tokens : 0, this.contextSize());
  }

  // ---- conversations ----

  showChat() {
    byId('title').textContent = this.chat.title;
    document.title = this.chat.nodes.length ? `${this.chat.title} · Quern` : 'Quern';
    history.replaceState(null, '', this.chat.nodes.length ? `#${this.chat.id}` : location.pathname);
    const turn = this.turns.get(this.chat.id) || null;
    this.thread.show(this.chat, turn);
    this.composer.setRunning(Boolean(turn));
    this.showContext();
    this.showWrong();
  }

  newChat() {
    this.enter(newChat());
  }

  async openChat(id) {
    this.saveNow();
    const chat = this.turns.get(id)?.chat || (await this.store.get(id));
    if (chat) this.enter(chat);
  }

  enter(chat) {
    this.chat = chat;
    this.showChat();
    this.sidebar.refresh();
    this.sidebar.setDrawer(false);
    this.composer.area.focus();
  }

  async renameChat(id, title) {
    const chat = id === this.chat.id ? this.chat : this.turns.get(id)?.chat || (await this.store.get(id));
    Object.assign(chat, { title, named: true });
    await this.store.put(chat);
    if (chat === this.chat) byId('title').textContent = title;
  }

  async deleteChat(id) {
    const turn = this.turns.get(id);
    if (turn) turn.stop();
    const chat = turn ? turn.chat : id === this.chat.id ? this.chat : await this.store.get(id);
    this.turns.delete(id);
    this.cancelSave(chat);
    await this.store.remove(id);
    if (id === this.chat.id) this.newChat();
    else this.sidebar.refresh();
    toast(`Deleted “${chat.title}”.`, { label: 'Undo', call: () => this.restore(chat) });
  }

  async restore(chat) {
    await this.store.put(chat);
    await this.openChat(chat.id);
  }

  // Saves within SAVE_EVERY; a conversation without messages is not kept.
  saveSoon(chat) {
    if (!chat.nodes.length || this.saving.has(chat)) return;
    const timer = setTimeout(() => this.save(chat), SAVE_EVERY);
    this.saving.set(chat, timer);
  }

  cancelSave(chat) {
    clearTimeout(this.saving.get(chat));
    this.saving.delete(chat);
  }

  async save(chat) {
    this.cancelSave(chat);
    if (!chat.nodes.length) return;
    try {
      await this.store.put(chat);
    } catch (error) {
      toast(`The conversation could not be kept: ${error.message}. Export it, or delete old ones.`);
    }
  }

  saveNow() {
    for (const chat of [...this.saving.keys()]) this.save(chat);
  }

  // Another tab may have gone on with the conversation.
  async reread() {
    this.sidebar.refresh();
    const { chat } = this;
    const stored = this.store.lasting && !this.turns.has(chat.id) && (await this.store.get(chat.id));
    if (!stored || stored.updated <= chat.updated || this.chat !== chat) return;
    this.chat = stored;
    this.showChat();
  }

  // ---- asking ----

  // False when nothing was sent, so that the text stays in the box.
  send(text, images) {
    if (this.turns.has(this.chat.id) || !this.canAsk()) return false;
    const path = pathOf(this.chat);
    const parent = path.length ? path[path.length - 1].id : -1;
    if (!path.length && !this.chat.named) this.chat.title = titleFrom(text);
    this.answer(addNode(this.chat, parent, 'user', { text, images }).id);
    return true;
  }

  canAsk() {
    const [wrong] = wrongSettings(this.chat, this.prefs);
    if (!this.model)
      this.loadModels(); // which asks for the key, or tells what is missing
    else if (wrong) this.settings.open(wrong);
    return Boolean(this.model && !wrong);
  }

  edit(node, text) {
    if (this.turns.has(this.chat.id) || !this.canAsk()) return;
    this.answer(addNode(this.chat, node.parent, 'user', { text, images: node.images }).id);
    this.composer.area.focus();
  }

  // Where the answer would be the same, it is not made again before the user has heard so.
  regenerate(node, change) {
    if (this.turns.has(this.chat.id) || !this.canAsk()) return;
    const same = change ? null : this.whySame(node);
    if (same) this.thread.views.get(node.id).tellSame(same);
    else this.answer(node.parent, change);
  }

  whySame(node) {
    const now = settingsText(this.chat, this.bodyFor(node));
    const isSame = other => (this.asked.get(other) ?? now) === now; // not known after a reload
    const versions = versionsOf(this.chat, node).ids.map(id => this.chat.nodes[id]);
    const whole = versions.filter(n => n.model === this.model.id && !n.error && n.finish && n.finish !== 'stopped');
    if (!whole.some(isSame)) return null;
    return whySame(this.prefs, this.props?.default_generation_settings?.params || {});
  }

  bodyFor(node, change) {
    const path = pathOf(this.chat);
    return requestBody(this.chat, path.slice(0, path.indexOf(node)), this.prefs, this.model.id, change);
  }

  // Asks again for an answer that failed, in its place.
  async retry(node) {
    if (this.turns.has(this.chat.id) || !this.canAsk()) return;
    for (const name of ['error', 'reasoning', 'thought', 'calls', 'probs', 'finish']) delete node[name];
    node.text = '';
    await this.run(node);
  }

  // Until the rest fits or only the question is left: how many tokens a text has, only the server knows.
  async leaveOut(node) {
    const { chat } = this;
    const path = pathOf(chat).filter(other => other.id < node.id);
    while (this.chat === chat && node.error?.kind === 'overflow' && this.canAsk()) {
      if (!leaveOutOldest(chat, path, node.error.used, node.error.room)) break;
      await this.retry(node);
    }
  }

  sendAll() {
    this.chat.from = -1;
    this.save(this.chat);
    this.showChat();
  }

  sendResults(node, results) {
    let parent = node.id;
    node.calls.forEach((call, i) => {
      parent = addNode(this.chat, parent, 'tool', { text: results[i], call: call.id, name: call.name }).id;
    });
    this.answer(parent);
    this.composer.area.focus();
  }

  answer(parent, change) {
    this.run(addNode(this.chat, parent, 'assistant', { model: this.model.id }), change);
  }

  async run(node, change) {
    const { chat } = this;
    const body = this.bodyFor(node, change);
    this.asked.set(node, settingsText(chat, body));
    const isOn = () => this.turns.get(chat.id) === turn; // not when the conversation was deleted
    const draw = perFrame(() => {
      if (!isOn() || this.chat !== chat) return;
      this.thread.grow(turn, false);
      this.showContext();
    });
    const turn = new Turn(chat, node, () => {
      if (isOn()) this.saveSoon(chat);
      draw();
    });
    this.turns.set(chat.id, turn);
    announce('Waiting for the answer');
    this.showChat();
    await this.save(chat);
    this.sidebar.refresh();
    const clock = setInterval(draw, 1000); // times that are shown go on without tokens
    await turn.run(body);
    clearInterval(clock);
    if (isOn()) await this.finish(turn);
  }

  async finish(turn) {
    const { chat, node } = turn;
    this.turns.delete(chat.id);
    chat.updated = Date.now();
    if (node.error && node.error.kind === 'gone') this.banner.gone();
    if (this.chat === chat) {
      this.thread.grow(turn, true);
      this.composer.setRunning(false);
      this.showContext();
    }
    await this.save(chat);
    announce(outcomeOf(node));
    this.sidebar.refresh();
    this.relook(node);
  }

  // An answer opens its model, or shows that it cannot be opened; only then are its own settings known.
  relook(node) {
    const known = this.props?.default_generation_settings?.params?.temperature !== undefined;
    if (node.error ? node.error.kind === 'failed' : this.model?.id === node.model && !known) this.loadModels();
  }

  stop() {
    this.turns.get(this.chat.id)?.stop();
  }

  choose(node, id) {
    this.chat.chosen[node.parent] = id;
    this.save(this.chat);
    this.showChat();
    const root = this.thread.views.get(id)?.root;
    root?.scrollIntoView({ block: 'nearest' });
    root?.querySelector('.versions button:not(:disabled)')?.focus();
  }

  editLast() {
    return !this.turns.has(this.chat.id) && this.thread.editLast();
  }

  // ---- settings ----

  openSettings() {
    this.settings.open();
  }

  // Marks the button of the settings when something in them is wrong.
  showWrong() {
    const wrong = wrongSettings(this.chat, this.prefs);
    const name = wrong.length ? `Settings. ${wrong[0].label}: not valid` : 'Settings';
    const open = byId('open-settings');
    open.classList.toggle('wrong', wrong.length > 0);
    open.setAttribute('aria-label', name);
    open.title = name;
  }

  setSampling(name, text) {
    this.prefs.sampling[name] = text;
    this.savePrefs();
  }

  setPref(name, value) {
    this.prefs[name] = value;
    this.savePrefs();
  }

  savePrefs() {
    savePrefs(this.prefs);
  }

  setTheme(theme) {
    this.setPref('theme', theme);
    applyTheme(theme);
  }

  async askForKey() {
    if (await askForKey(false)) this.loadModels();
  }

  // ---- keyboard ----

  key(event) {
    if (event.defaultPrevented || document.querySelector('dialog[open]')) return;
    const control = event.ctrlKey || event.metaKey;
    const name = `${control ? 'Ctrl+' : ''}${event.shiftKey ? 'Shift+' : ''}${event.key.length === 1 ? event.key.toLowerCase() : event.key}`;
    const call = KEYS[name];
    if (!call) return;
    if (control) event.preventDefault();
    call(this);
  }
}

// What a screen reader hears when an answer has come.
function outcomeOf({ error, calls, text }) {
  if (error) return `No answer. ${error.message}`;
  const names = (calls || []).map(call => call.name).join(', ');
  return names ? `The model calls ${names} and waits for the result.` : `Answer: ${text.slice(0, 600)}`;
}

// Everything that two requests for the answer to one question may differ in.
const settingsText = (chat, body) => JSON.stringify([chat.system, { ...body, messages: body.messages.length }]);

function modelOption({ id, meta, problem }) {
  const state = problem ? ' (cannot be opened)' : meta.loaded === false ? ' (not loaded)' : '';
  return el('option', { value: id, disabled: Boolean(problem), title: problem || null }, id + state);
}

const KEYS = {
  'Ctrl+k': app => app.sidebar.focusSearch(),
  'Ctrl+Shift+o': app => app.newChat(),
  'Ctrl+/': app => openHelp(app.props),
  Escape: app => app.stop()
};

new App(await openStore()).start();
