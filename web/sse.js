// Server-sent events: pieces of text in, the data of finished events out.

const MAX_EVENT = 32 << 20;

export class EventReader {
  constructor() {
    this.buffer = '';
    this.scanned = 0; // no line end before this place
    this.data = [];
  }

  // The events that `piece` completes, as strings.
  push(piece) {
    const events = [];
    this.buffer += piece;
    let start = 0;
    for (;;) {
      const end = this.buffer.indexOf('\n', Math.max(start, this.scanned));
      if (end < 0) break;
      this.line(this.buffer.slice(start, end).replace(/\r$/, ''), events);
      start = end + 1;
    }
    this.buffer = this.buffer.slice(start);
    this.scanned = this.buffer.length;
    if (this.buffer.length > MAX_EVENT) throw new Error('an event of the stream is longer than 32 MB');
    return events;
  }

  line(line, events) {
    if (line === '') {
      if (this.data.length) events.push(this.data.join('\n'));
      this.data = [];
    } else if (line.startsWith('data:')) this.data.push(line.slice(line[5] === ' ' ? 6 : 5));
  }
}
