// The box that messages are written in, with images and the meter of the context.

import { toast } from './dialogs.js';
import { byId, el, formatNumber, icon, iconButton, sendsOn } from './dom.js';

const MAX_IMAGES = 8;
const MAX_IMAGE_BYTES = 8 << 20;
const NEARLY = 0.9; // of the context: it is time to think of a new conversation
const TYPES = ['image/png', 'image/jpeg', 'image/webp'];

export class Composer {
  constructor(app) {
    this.app = app;
    this.box = byId('composer');
    this.area = byId('prompt');
    this.button = byId('send');
    this.attach = byId('attach');
    this.file = byId('image-file');
    this.images = [];
    this.running = false;
    this.attach.append(icon('image'));
    this.attach.addEventListener('click', () => this.file.click());
    this.file.addEventListener('change', () => {
      this.add([...this.file.files]);
      this.file.value = '';
    });
    this.button.addEventListener('click', () => (this.running ? app.stop() : this.send()));
    this.area.addEventListener('input', () => this.changed());
    this.area.addEventListener('keydown', event => this.key(event));
    this.area.addEventListener('paste', event => this.paste(event));
    this.listenForDrops();
    this.makeMeter();
    this.setRunning(false);
  }

  key(event) {
    if (sendsOn(event)) {
      event.preventDefault();
      if (!this.running) this.send();
    } else if (event.key === 'ArrowUp' && !this.area.value && this.app.editLast()) event.preventDefault();
  }

  send() {
    const text = this.area.value;
    if (!text.trim() && !this.images.length) return;
    if (this.images.length && !this.vision) {
      toast('This model cannot see images. Remove them, or choose a model that can.');
      return;
    }
    if (!this.app.send(text.trim(), this.images)) return;
    this.images = [];
    this.set('');
    this.showImages();
  }

  set(text) {
    this.area.value = text;
    this.changed();
    this.area.focus();
  }

  changed() {
    this.area.style.height = 'auto';
    this.area.style.height = `${this.area.scrollHeight}px`;
    this.enable();
  }

  enable() {
    this.button.disabled = !this.running && !this.area.value.trim() && !this.images.length;
  }

  setRunning(running) {
    this.running = running;
    this.button.replaceChildren(icon(running ? 'stop' : 'send'));
    this.button.setAttribute('aria-label', running ? 'Stop' : 'Send');
    this.button.title = running ? 'Stop (Esc)' : 'Send (Enter)';
    this.enable();
  }

  // ---- images ----

  setVision(vision) {
    this.vision = vision;
    this.attach.hidden = !vision;
  }

  paste(event) {
    const files = [...event.clipboardData.files].filter(file => file.type.startsWith('image/'));
    if (!files.length) return;
    event.preventDefault();
    this.add(files);
  }

  listenForDrops() {
    const note = byId('drop-note');
    const hasFiles = event => [...event.dataTransfer.types].includes('Files');
    addEventListener('dragover', event => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      note.hidden = !this.vision;
    });
    addEventListener('dragleave', event => {
      if (!event.relatedTarget) note.hidden = true;
    });
    addEventListener('drop', event => {
      note.hidden = true;
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.add([...event.dataTransfer.files]);
    });
  }

  async add(files) {
    for (const file of files) {
      const problem = this.problemWith(file);
      if (problem) {
        toast(problem);
        continue;
      }
      const url = await dataUrl(file);
      if (this.images.length < MAX_IMAGES) this.images.push(url);
    }
    this.showImages();
    this.area.focus();
  }

  problemWith(file) {
    const megabytes = bytes => `${(bytes / (1 << 20)).toFixed(1)} MB`;
    if (!this.vision) return 'This model cannot see images. Choose one that can.';
    if (!TYPES.includes(file.type)) return `${file.name} is not a PNG, JPEG or WebP image.`;
    if (file.size > MAX_IMAGE_BYTES)
      return `${file.name} has ${megabytes(file.size)}; an image may have ${megabytes(MAX_IMAGE_BYTES)}.`;
    return this.images.length >= MAX_IMAGES ? `A message takes ${MAX_IMAGES} images; ${file.name} was left out.` : '';
  }

  showImages() {
    const thumbs = this.images.map((url, i) => {
      const remove = iconButton('close', `Remove image ${i + 1}`, () => {
        this.images = this.images.filter((other, at) => at !== i);
        this.showImages();
        this.area.focus();
      });
      return el('div.thumb', el('img', { src: url, alt: `Image ${i + 1}` }), remove);
    });
    const row = byId('attached');
    row.replaceChildren(...thumbs);
    row.hidden = !thumbs.length;
    this.enable();
  }

  // ---- the meter ----

  makeMeter() {
    this.meter = byId('meter');
    this.fill = el('div.fill');
    this.bar = el('div.bar', { role: 'meter', 'aria-label': 'Context', 'aria-valuemin': '0' }, this.fill);
    this.count = el('span', { 'aria-hidden': 'true' });
    this.meter.append(this.bar, this.count);
  }

  // `used` of the `room` tokens that the model sees at once are filled.
  showContext(used, room) {
    const { bar, meter } = this;
    meter.hidden = !room;
    if (!room) return;
    const label = `${formatNumber(used)} of ${formatNumber(room)} tokens of the context are used`;
    this.fill.style.width = `${Math.min(100, (100 * used) / room)}%`;
    bar.setAttribute('aria-valuemax', String(room));
    bar.setAttribute('aria-valuenow', String(Math.min(used, room)));
    bar.setAttribute('aria-valuetext', label);
    meter.title = label;
    meter.classList.toggle('nearly', used > NEARLY * room);
    this.count.textContent = `${formatNumber(used)} / ${formatNumber(room)} tokens`;
  }
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
