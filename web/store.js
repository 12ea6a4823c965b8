// Where conversations are kept: IndexedDB, or memory when the browser offers none. Two stores:
// `heads` {id, title, updated} for the list, `chats` for the rest.

export async function openStore() {
  try {
    return new DiskStore(await openDatabase());
  } catch {
    return new MemoryStore();
  }
}

const promise = request =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

function openDatabase() {
  const request = indexedDB.open('quern', 1);
  request.onupgradeneeded = () => {
    request.result.createObjectStore('heads', { keyPath: 'id' });
    request.result.createObjectStore('chats', { keyPath: 'id' });
  };
  return promise(request);
}

const headOf = chat => ({ id: chat.id, title: chat.title, updated: chat.updated });
const newestFirst = heads => heads.sort((a, b) => b.updated - a.updated);

function matches(chat, query) {
  if (chat.title.toLowerCase().includes(query)) return true;
  return chat.nodes.some(node => node.text.toLowerCase().includes(query));
}

class DiskStore {
  constructor(database) {
    this.lasting = true;
    this.database = database;
  }

  read(name) {
    return this.database.transaction(name).objectStore(name);
  }

  async list() {
    return newestFirst(await promise(this.read('heads').getAll()));
  }

  get(id) {
    return promise(this.read('chats').get(id));
  }

  write(change) {
    return new Promise((resolve, reject) => {
      const transaction = this.database.transaction(['heads', 'chats'], 'readwrite');
      transaction.oncomplete = () => resolve();
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
      change(transaction.objectStore('heads'), transaction.objectStore('chats'));
    });
  }

  put(chat) {
    return this.write((heads, chats) => {
      heads.put(headOf(chat));
      chats.put(chat);
    });
  }

  remove(id) {
    return this.write((heads, chats) => {
      heads.delete(id);
      chats.delete(id);
    });
  }

  // One conversation after the other, so that only one is in memory.
  search(query) {
    return new Promise((resolve, reject) => {
      const found = [];
      const request = this.read('chats').openCursor();
      request.onerror = () => reject(request.error);
      request.onsuccess = () => {
        const cursor = request.result;
        if (!cursor) return resolve(newestFirst(found));
        if (matches(cursor.value, query)) found.push(headOf(cursor.value));
        return cursor.continue();
      };
    });
  }

  all() {
    return promise(this.read('chats').getAll());
  }
}

class MemoryStore {
  constructor() {
    this.lasting = false;
    this.chats = new Map();
  }

  list() {
    return this.search('');
  }

  async get(id) {
    return this.chats.get(id);
  }

  async put(chat) {
    this.chats.set(chat.id, chat);
  }

  async remove(id) {
    this.chats.delete(id);
  }

  async search(query) {
    return newestFirst([...this.chats.values()].filter(chat => matches(chat, query)).map(headOf));
  }

  async all() {
    return [...this.chats.values()];
  }
}
