// The list of conversations: search, rename, delete with undo, export and import. On a phone it is
// a drawer.

import { openHelp, toast } from './dialogs.js';
import { announce, byId, el, icon, iconButton } from './dom.js';
import { LIMITS, exportText, importText } from './transfer.js';

// days before today -> what they are called
const AGES = [
  [0, 'Today'],
  [1, 'Yesterday'],
  [7, 'This week'],
  [Infinity, 'Earlier']
];

export class Sidebar {
  constructor(app) {
    this.app = app;
    this.node = byId('sidebar');
    this.list = byId('chats');
    this.search = byId('search');
    this.file = byId('import-file');
    this.asked = 0;
    byId('new-chat').append(icon('plus'), 'New conversation');
    byId('new-chat').addEventListener('click', () => app.newChat());
    this.search.addEventListener('input', () => this.refresh());
    this.search.addEventListener('keydown', event => this.searchKey(event));
    this.file.addEventListener('change', () => this.import(this.file.files[0]));
    this.addTools();
    this.addDrawer();
  }

  addTools() {
    const tool = (name, text, label, click) =>
      el('button.tool', { 'aria-label': label, title: label, on: { click } }, icon(name), text);
    byId('tools').append(
      tool('inbox', 'Import', 'Import conversations from a file', () => this.file.click()),
      tool('outbox', 'Export', 'Export all conversations to a file', () => this.exportAll()),
      tool('help', 'Help', 'Help: keyboard', () => openHelp(this.app.props))
    );
  }

  searchKey(event) {
    if (event.key === 'Escape' && this.search.value) {
      event.stopPropagation();
      this.search.value = '';
      this.refresh();
    } else if (event.key === 'Enter' || event.key === 'ArrowDown') {
      const first = this.list.querySelector('.open');
      if (first) event.key === 'Enter' ? first.click() : first.focus();
    }
  }

  focusSearch() {
    if (matchMedia('(max-width: 760px)').matches) this.openDrawer();
    this.search.focus();
    this.search.select();
  }

  // ---- the list ----

  async refresh() {
    const query = this.search.value.trim().toLowerCase();
    const asked = ++this.asked;
    const heads = await (query ? this.app.store.search(query) : this.app.store.list());
    if (asked !== this.asked) return; // a newer search is on its way
    const focused = document.activeElement?.closest?.('.chat-item')?.dataset.chat;
    this.list.replaceChildren(...this.groups(heads));
    if (focused) this.focusItem(focused);
    if (!heads.length) this.list.append(el('p.note.when', query ? 'Nothing found' : 'No conversations yet'));
    if (query) announce(`${heads.length} found`);
  }

  focusItem(id) {
    this.list.querySelector(`[data-chat="${CSS.escape(id)}"] .open`)?.focus();
  }

  groups(heads) {
    const today = new Date().setHours(0, 0, 0, 0);
    const groups = new Map();
    for (const head of heads) {
      const [, name] = AGES.find(([days]) => head.updated >= today - days * 86400000);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(head);
    }
    return [...groups].flatMap(([name, group]) => [
      el('div.when', { 'aria-hidden': 'true' }, name),
      el('ul', { 'aria-label': name }, ...group.map(head => this.item(head)))
    ]);
  }

  item(head) {
    const { app } = this;
    const current = app.chat.id === head.id;
    const open = el('button.open', { 'aria-current': current && 'true', title: head.title }, head.title);
    open.addEventListener('click', () => app.openChat(head.id));
    const tools = el(
      'span.item-tools',
      iconButton('edit', `Rename ${head.title}`, () => this.rename(head, item), '.small'),
      iconButton('outbox', `Export ${head.title} to a file`, () => this.exportOne(head), '.small'),
      iconButton('trash', `Delete ${head.title}`, () => app.deleteChat(head.id), '.small')
    );
    const busy = app.turns.has(head.id) ? ' busy' : '';
    const item = el('li', { class: `chat-item${current ? ' current' : ''}${busy}`, 'data-chat': head.id }, open, tools);
    return item;
  }

  rename(head, item) {
    const input = el('input', { type: 'text', value: head.title, maxlength: '200', 'aria-label': 'New name' });
    let done = false;
    const end = async keep => {
      if (done) return;
      done = true;
      if (keep && input.value.trim()) await this.app.renameChat(head.id, input.value.trim());
      await this.refresh();
      this.focusItem(head.id);
    };
    input.addEventListener('keydown', event => {
      if (event.key === 'Enter') end(true);
      if (event.key === 'Escape') {
        event.stopPropagation();
        end(false);
      }
    });
    input.addEventListener('blur', () => end(true));
    item.replaceChildren(input);
    input.focus();
    input.select();
  }

  // ---- files ----

  async exportAll() {
    save('quern-conversations.json', exportText(await this.app.store.all()));
  }

  async exportOne(head) {
    const name = head.title.replace(/[^\p{L}\p{N}]+/gu, '-').slice(0, 60);
    save(`${name || 'conversation'}.json`, exportText([await this.app.store.get(head.id)]));
  }

  async import(file) {
    this.file.value = '';
    if (!file) return;
    try {
      if (file.size > LIMITS.file)
        throw new Error(`the file is ${file.size} bytes long; at most ${LIMITS.file} are read`);
      const chats = importText(await file.text());
      for (const chat of chats) await this.app.store.put(chat);
      toast(`Imported ${chats.length} conversation${chats.length === 1 ? '' : 's'}.`);
      this.refresh();
    } catch (error) {
      toast(`Nothing was imported: ${error.message}.`);
    }
  }

  // ---- the drawer ----

  addDrawer() {
    byId('open-drawer').append(icon('menu'));
    byId('close-drawer').append(icon('close'));
    byId('open-drawer').addEventListener('click', () => this.openDrawer());
    byId('close-drawer').addEventListener('click', () => this.closeDrawer());
    byId('backdrop').addEventListener('click', () => this.closeDrawer());
    this.node.addEventListener('keydown', event => {
      if (event.key === 'Escape') this.closeDrawer();
    });
    matchMedia('(max-width: 760px)').addEventListener('change', () => this.setDrawer(false));
  }

  setDrawer(open) {
    this.node.classList.toggle('shown', open);
    byId('backdrop').hidden = !open;
    byId('main').inert = open;
    byId('open-drawer').setAttribute('aria-expanded', String(open));
  }

  openDrawer() {
    this.setDrawer(true);
    byId('close-drawer').focus();
  }

  closeDrawer() {
    if (!this.node.classList.contains('shown')) return;
    this.setDrawer(false);
    byId('open-drawer').focus();
  }
}

function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  const link = el('a', { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
