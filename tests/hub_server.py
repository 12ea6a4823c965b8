#!/usr/bin/env python3
"""A hub of models on loopback that misbehaves: hub_server.py FOLDER LOG.

FOLDER/REPO/... are the files of every OWNER/REPO; the name of the owner says what goes wrong. The
hub answers on one port; on a second one lies what large files are redirected to. Prints both ports.
LOG gets a line for each request: which port, path, range, token.
"""

import hashlib
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

FOLDER, LOG = sys.argv[1], sys.argv[2]
SMALL = 4096  # files up to this size come from the hub itself, and it does not say their sum
STEP = 300000  # bytes after which connections of the owner "cut" end
HTML = b"<!DOCTYPE html><title>Sign in</title>" + b" " * 200
lock = threading.Lock()
counts = {}
gate = threading.Event()


def count(what):
    with lock:
        counts[what] = counts.get(what, 0) + 1
        return counts[what]


def content(repo, path):
    with open(os.path.join(FOLDER, repo, path), "rb") as f:
        return f.read()


def files(repo):
    root = os.path.join(FOLDER, repo)
    for folder, _, names in sorted(os.walk(root)):
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), root)


def rows(owner, repo):
    out = [{"type": "directory", "path": "folder", "size": 0}]
    for path in files(repo):
        data = content(repo, path)
        row = {"type": "file", "path": path, "size": len(data), "oid": "0" * 40}
        if len(data) > SMALL:
            row["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
            if owner == "badsum":
                row["lfs"]["oid"] = "5" * 64
            if owner == "badsize":
                row["lfs"]["size"] = row["size"] = len(data) + 7
            if owner == "huge":
                row["lfs"]["size"] = row["size"] = 10**18
            if owner == "most":
                row["lfs"]["size"] = row["size"] = 2**63 - 1
        out.append(row)
    if owner == "escape":
        for path in ["../../../out-Q8_0.gguf", "/tmp/out-Q8_0.gguf", "a/../../out-Q8_0.gguf", ".ssh/Q8_0.gguf", "a\\b-Q8_0.gguf", "x\n-Q8_0.gguf"]:
            out.append({"type": "file", "path": path, "size": 5000, "lfs": {"oid": "1" * 64, "size": 5000}})
    return out


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True

    def note(self, port):
        with lock, open(LOG, "a") as f:
            f.write("%s %s range=%s token=%s\n" % (port, self.path, self.headers.get("Range", "-"), self.headers.get("Authorization", "-")))

    def has_range(self):
        return self.headers.get("Range", "").startswith("bytes=")

    def range_of(self, size):
        first, last = self.headers["Range"][len("bytes="):].split("-")
        return int(first), min(int(last), size - 1)

    def send_content(self, data, etag):
        """As a good server does."""
        if not self.has_range() or self.headers.get("If-Range", etag) != etag:
            return self.reply(200, data, ETag=etag)
        first, last = self.range_of(len(data))
        if first > last:
            return self.reply(416)
        return self.reply(206, data[first:last + 1], ETag=etag, Content_Range="bytes %d-%d/%d" % (first, last, len(data)))


class Hub(Handler):
    def do_GET(self):
        self.note("hub")
        url = urlsplit(self.path)
        parts = unquote(url.path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self.api(parts[2], parts[3], parts[5], parse_qs(url.query))
        return self.resolve(parts[0], parts[1], "/".join(parts[4:]))

    def api(self, owner, repo, revision, query):
        simple = {"private": (401, {}), "gated": (403, {}), "later": (429, {"Retry_After": "100000"})}
        if owner in simple:
            status, headers = simple[owner]
            return self.reply(status, b'{"error": "no"}', **headers)
        if owner == "token" and self.headers.get("Authorization") != "Bearer secret":
            return self.reply(401)
        if owner == "busy" and count("busy") < 3:
            return self.reply(429, Retry_After="0")
        if owner == "htmlapi":
            return self.reply(200, HTML, Content_Type="text/html")
        if owner == "endless":
            return self.endless()
        if not os.path.isdir(os.path.join(FOLDER, repo)) or revision not in ("main", "v1"):
            return self.reply(404)
        if owner == "paged":
            return self.page(rows(owner, repo), repo, int(query.get("at", ["0"])[0]))
        if owner == "pages":  # that never end
            link = "<http://%s%s>; rel=\"next\"" % (self.headers["Host"], self.path)
            return self.reply(200, b"[]", Link=link)
        return self.reply(200, json.dumps(rows(owner, repo)).encode(), Content_Type="application/json")

    def page(self, all_rows, repo, at):
        headers = {}
        if at + 1 < len(all_rows):
            headers["Link"] = "<http://%s/api/models/paged/%s/tree/main?recursive=true&at=%d>; rel=\"next\"" % (self.headers["Host"], repo, at + 1)
        return self.reply(200, json.dumps(all_rows[at:at + 1]).encode(), **headers)

    def endless(self):
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.wfile.write(b"[")
            while True:
                self.wfile.write(b'{"type": "file"},' * 10000)
        except OSError:
            pass

    def resolve(self, owner, repo, path):
        there = "http://127.0.0.1:%d/%s/%s/%s?signed=%d" % (store_port, owner, repo, path, count("signed"))
        if owner == "loop":
            return self.reply(302, Location=self.path)
        if owner == "passwd":
            return self.reply(302, Location="file:///etc/passwd")
        if owner == "ftp":
            return self.reply(302, Location="ftp://127.0.0.1/x")
        data = content(repo, path)
        if len(data) <= SMALL:
            return self.send_content(data, '"%s"' % hashlib.sha1(data).hexdigest())
        return self.reply(302, Location=there, X_Linked_Etag='"%s"' % hashlib.sha256(data).hexdigest(), X_Linked_Size=str(len(data)))


class Store(Handler):
    def do_GET(self):
        self.note("store")
        owner, repo, path = unquote(urlsplit(self.path).path).strip("/").split("/", 2)
        data = content(repo, path)
        etag = '"%s"' % hashlib.md5(data).hexdigest()
        special = getattr(self, "as_" + owner, None)
        return special(data, etag) if special else self.send_content(data, etag)

    def is_probe(self):
        return self.headers.get("Range") == "bytes=0-3"

    def part(self, data, etag, **headers):
        """The head of a good answer, and where its bytes are."""
        first, last = self.range_of(len(data))
        self.send_response(206)
        self.send_header("ETag", etag)
        self.send_header("Content-Range", headers.get("shown", "bytes %d-%d/%d" % (first, last, len(data))))
        self.send_header("Content-Length", str(headers.get("length", last - first + 1)))
        self.end_headers()
        return first, last

    def send_and_end(self, data):
        try:
            self.wfile.write(data)
            self.wfile.flush()
        except OSError:
            pass
        self.close_connection = True

    def as_noranges(self, data, etag):
        return self.reply(200, data, ETag=etag)

    def as_cut(self, data, etag):
        first, last = self.part(data, etag)
        self.send_and_end(data[first:min(last + 1, first + STEP)])

    def as_cutplain(self, data, etag):
        """No ranges, and the first try ends early."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.send_and_end(data if count("cutplain") > 2 else data[:STEP])

    def as_wrongrange(self, data, etag):
        if self.is_probe():
            return self.send_content(data, etag)
        first, last = self.range_of(len(data))
        self.part(data, etag, shown="bytes %d-%d/%d" % (first + 1, last + 1, len(data)))
        return self.send_and_end(data[first:last + 1])

    def as_more(self, data, etag):
        if self.is_probe():
            return self.send_content(data, etag)
        first, last = self.range_of(len(data))
        self.part(data, etag, length=last - first + 1 + 1000)
        return self.send_and_end(data[first:last + 1] + b"x" * 1000)

    def as_html(self, data, etag):
        return self.reply(200, HTML, Content_Type="text/html; charset=utf-8")

    def as_changed(self, data, etag):
        """After the first part it is another file."""
        if self.is_probe():
            return self.send_content(data, etag)
        half = len(data) // 2
        return self.send_content(data[:half] + data[half:][::-1], '"other"')

    def as_corrupt(self, data, etag):
        """One byte in the middle is another one."""
        at = len(data) // 2
        return self.send_content(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:], etag)

    def as_expire(self, data, etag):
        """A signed address is good for a few requests."""
        if count(self.path) > 2:
            return self.reply(403, b"expired")
        return self.send_content(data, etag)

    def as_flaky(self, data, etag):
        if not self.is_probe() and count("flaky") % 2:
            return self.reply(503, b"busy")
        return self.send_content(data, etag)

    def as_patience(self, data, etag):
        """Wants to be asked again when the sun is gone."""
        if self.is_probe():
            return self.send_content(data, etag)
        return self.reply(503, b"busy", Retry_After="9223372036854775807")

    def as_hang(self, data, etag):
        """The first megabyte comes, the rest only once somebody has given up."""
        first, _ = self.range_of(len(data))
        if first < 1 << 20 or count("hang") > 2:
            return self.send_content(data, etag)
        self.part(data, etag)
        self.rfile.read(1)  # until the other side ends it
        self.close_connection = True

    def as_gated(self, data, etag):
        """Comes once something of the owner "opener" was asked for."""
        if not self.is_probe():
            gate.wait()
        return self.send_content(data, etag)

    def as_opener(self, data, etag):
        gate.set()
        return self.send_content(data, etag)

    def as_growing(self, data, etag):
        return self.send_content(data + b"x" * count("growing"), etag)

    def as_nosize(self, data, etag):
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.send_and_end(data)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # clients may go away


hub, store = Server(("127.0.0.1", 0), Hub), Server(("127.0.0.1", 0), Store)
store_port = store.server_address[1]
threading.Thread(target=store.serve_forever, daemon=True).start()
print(hub.server_address[1], store_port, flush=True)
hub.serve_forever()
