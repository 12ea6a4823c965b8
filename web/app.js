// The page: what it holds, and what its parts ask of it.

import { GoneError, listModels, modelProps, onKeyNeeded } from './api.js';
import { addNode, leaveOutOldest, newChat, pathOf, titleFrom } from './chat.js';
import { Composer } from './composer.js';
import { GoneBanner, askForKey, openHelp, toast } from './dialogs.js';
import { announce, byId, el, icon, perFrame } from './dom.js';
import { applyTheme, loadPrefs, savePrefs } from './prefs.js';
import { requestBody } from './request.js';
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
    this.thread = new Thread(this);
    this.composer = new Composer(this);
    this.sidebar = new Sidebar(this);
    this.settings = new Settings(this);
    this.banner = new GoneBanner(() => this.loadModels());
    onKeyNeeded(askForKey);
    byId('open-settings').append(icon('settings'));
    byId('open-settings').addEventListener('click', () => this.openSettings());
    byId('model').addEventListener('change', event => this.pickModel(event.target.value));
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
      if (error instanceof GoneError) this.banner.show();
      else toast(error.message);
      return;
    }
    const ids = this.models.map(model => model.id);
    const options = this.models.map(model =>
      el('option', { value: model.id }, model.id + (model.meta.loaded === false ? ' (not loaded)' : ''))
    );
    const select = byId('model');
    select.replaceChildren(...(options.length ? options : [el('option', 'No model')]));
    select.disabled = !ids.length;
    if (ids.length) await this.pickModel(ids.includes(this.prefs.model) ? this.prefs.model : ids[0]);
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
    const last = pathOf(this.chat).findLast(node => node.stats?.prompt);
    this.composer.showContext(last ? last.stats.prompt + last.stats.tokens : 0, this.contextSize());
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
    if (this.model) return true;
    toast('There is no model to ask. Start the server with one.');
    this.loadModels();
    return false;
  }

  edit(node, text) {
    if (this.turns.has(this.chat.id) || !this.canAsk()) return;
    this.answer(addNode(this.chat, node.parent, 'user', { text, images: node.images }).id);
    this.composer.area.focus();
  }

  regenerate(node) {
    if (!this.turns.has(this.chat.id) && this.canAsk()) this.answer(node.parent);
  }

  // Asks again for an answer that failed, in its place.
  retry(node) {
    if (this.turns.has(this.chat.id) || !this.canAsk()) return;
    for (const name of ['error', 'reasoning', 'thought', 'calls', 'probs', 'finish']) delete node[name];
    node.text = '';
    this.run(node);
  }

  leaveOut(node) {
    const path = pathOf(this.chat).filter(other => other.id < node.id);
    const { used, room } = node.error;
    if (leaveOutOldest(this.chat, path, used, room)) this.retry(node);
    else toast('Only this question is left. Shorten it, or choose a model with a larger context.');
  }

  sendResults(node, results) {
    let parent = node.id;
    node.calls.forEach((call, i) => {
      parent = addNode(this.chat, parent, 'tool', { text: results[i], call: call.id, name: call.name }).id;
    });
    this.answer(parent);
    this.composer.area.focus();
  }

  answer(parent) {
    this.run(addNode(this.chat, parent, 'assistant', { model: this.model.id }));
  }

  async run(node) {
    const { chat } = this;
    const path = pathOf(chat);
    const body = requestBody(chat, path.slice(0, path.indexOf(node)), this.prefs, this.model.id);
    const isOn = () => this.turns.get(chat.id) === turn; // not when the conversation was deleted
    const draw = perFrame(() => isOn() && this.chat === chat && this.thread.grow(turn, false));
    const turn = new Turn(chat, node, () => {
      if (isOn()) this.saveSoon(chat);
      draw();
    });
    this.turns.set(chat.id, turn);
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
    if (node.error && node.error.kind === 'gone') this.banner.show();
    if (this.chat === chat) {
      this.thread.grow(turn, true);
      this.composer.setRunning(false);
      this.showContext();
    }
    await this.save(chat);
    announce(node.error ? `No answer. ${node.error.message}` : `Answer: ${node.text.slice(0, 600)}`);
    this.sidebar.refresh();
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

const KEYS = {
  'Ctrl+k': app => app.sidebar.focusSearch(),
  'Ctrl+Shift+o': app => app.newChat(),
  'Ctrl+/': app => openHelp(app.props),
  Escape: app => app.stop()
};

new App(await openStore()).start();
