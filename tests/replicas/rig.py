"""Replicas of `quern serve`, HAProxy before them with the configuration that is shipped, and clients."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MODEL = SOURCE / "models" / "quern-draft-Q8_0.gguf"
DEPLOY = SOURCE / "deploy"
HOST = "127.0.0.1"
PATIENCE = 120  # seconds until something that must happen counts as lost


def find_haproxy():
    return shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def wait_for(what, is_so):
    """Returns what is_so() does, once that is true. How long it takes decides nothing."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = is_so()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited {PATIENCE} s in vain: {what}")


class Reply:
    def __init__(self, response, body):
        self.status, self.body = response.status, body
        self.replica = response.getheader("X-Replica")
        self.headers = response.headers

    def json(self):
        assert self.status == 200, f"status {self.status}: {self.body[:300]!r}"
        return json.loads(self.body)


class Client:
    """One connection that is kept: a request begins after the one before has ended, for the other side, too."""

    def __init__(self, port, number=1):
        """number: of the address that it has."""
        address = (f"127.0.0.{number}", 0)
        self.connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE, source_address=address)

    def ask(self, path, body=None, headers=None, method=None):
        response = self.begin(path, body, headers, method)
        return Reply(response, response.read())

    def begin(self, path, body=None, headers=None, method=None):
        """The response while its body is still coming."""
        data = json.dumps(body).encode() if body is not None else None
        self.connection.request(method or ("POST" if data else "GET"), path, data, headers or {})
        return self.connection.getresponse()

    def close(self):
        self.connection.close()


class Stream:
    """A stream of which the first event is there; a thread reads on, so that nobody waits for this client."""

    def __init__(self, port, path, body, headers=None):
        self.client = Client(port)
        self.response = self.client.begin(path, body, headers)
        self.replica, self.rest, self.error = self.response.getheader("X-Replica"), None, None
        first = self.response.readline()
        assert first.startswith(b"data: "), (self.response.status, first)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        try:
            self.rest = self.response.read()
        except (http.client.HTTPException, OSError) as error:
            self.error = error

    def end(self):
        """Waits for its end: what came, or None if something is missing."""
        self.reader.join()
        self.client.close()
        return self.rest

    def go_away(self):
        self.client.connection.sock.shutdown(socket.SHUT_RDWR)
        self.end()


class Upload:
    """A request whose beginning has arrived and whose end has not: it is in work, and nothing is computed."""

    def __init__(self, port, path, text):
        """text: of a prompt that is longer than what the balancer looks at."""
        data = json.dumps({"prompt": text}).encode()
        self.socket = socket.create_connection((HOST, port))
        head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(data)}\r\n\r\n"
        self.socket.sendall(head.encode() + data[:-1])

    def go_away(self):
        self.socket.close()


class Replica:
    """A server with a port of its own, which it has again after `start`."""

    def __init__(self, quern, folder, name):
        self.quern, self.name, self.port = quern, name, 0
        self.log = pathlib.Path(folder) / f"{self.name}.log"
        self.process = None

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [self.quern, "serve", MODEL, "--port", str(self.port), "--metrics", "--threads", "1",
                 "--context-shift"], stdout=subprocess.PIPE, stderr=log, text=True)
        for line in self.process.stdout:
            if line.strip().startswith("address"):
                self.port = int(line.rsplit(":", 1)[1])
                return
        raise AssertionError(f"{self.name} did not start: {self.log.read_text()}")

    def ask(self, *words, **named):
        with contextlib.closing(Client(self.port)) as client:
            return client.ask(*words, **named)

    def metric(self, name):
        """A number of /metrics, which has one model."""
        text = self.ask("/metrics").body.decode()
        return float(re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M)[1])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """TERM, and its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


class Balancer:
    """HAProxy on sockets that it inherits, so that no port can be taken by others in between."""

    def __init__(self, folder, servers):
        """servers: names and ports."""
        self.sockets = [socket.create_server((HOST, 0)) for _ in range(2)]
        self.port, self.stats_port = (s.getsockname()[1] for s in self.sockets)
        fds = [s.fileno() for s in self.sockets]
        # As deploy/replicas.cfg; checks are more frequent, for a test that does not wait, and patient, on busy machines.
        lines = [f"    server {name} {HOST}:{port} id {i + 1}\n" for i, (name, port) in enumerate(servers)]
        config = pathlib.Path(folder) / f"replicas_{fds[0]}.cfg"
        config.write_text("backend replicas\n    timeout connect 30s\n    timeout check 30s\n"
                          "    default-server inter 100ms fastinter 50ms\n" + "".join(lines))
        env = dict(os.environ, QUERN_BIND=f"fd@{fds[0]}", QUERN_STATS=f"fd@{fds[1]}")
        self.log = open(config.with_suffix(".log"), "wb")
        self.process = subprocess.Popen(
            [find_haproxy(), "-f", DEPLOY / "haproxy.cfg", "-f", config], env=env, pass_fds=fds,
            stdout=self.log, stderr=subprocess.STDOUT)
        for name, _ in servers:
            wait_for(f"{name} is up", lambda name=name: self.is_up(name))

    def ask(self, *words, **named):
        with contextlib.closing(Client(self.port)) as client:
            return client.ask(*words, **named)

    def metrics(self, scope=""):
        with contextlib.closing(Client(self.stats_port)) as client:
            return client.ask(f"/metrics{scope}").body.decode()

    def is_up(self, name):
        return f'haproxy_server_status{{proxy="replicas",server="{name}",state="UP"}} 1' in self.metrics("?scope=server")

    def stop(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.log.close()
        for s in self.sockets:
            s.close()

    def in_work(self):
        """Requests that are being answered, by the name of the server."""
        found = re.findall(r'^haproxy_server_current_sessions{proxy="replicas",server="(\w+)"} (\d+)',
                           self.metrics("?scope=server"), re.M)
        return {name: int(n) for name, n in found}


@contextlib.contextmanager
def deployed(quern, n):
    """n replicas and a balancer that knows them as up; their logs are shown if anything fails."""
    with tempfile.TemporaryDirectory() as folder:
        replicas = [Replica(quern, folder, f"r{i + 1}") for i in range(n)]
        balancer = None
        try:
            for replica in replicas:
                replica.start()
            balancer = Balancer(folder, [(r.name, r.port) for r in replicas])
            yield replicas, balancer
        except BaseException:
            for log in sorted(pathlib.Path(folder).glob("*.log")):
                print(f"--- the end of {log.name}\n{log.read_text(errors='replace')[-3000:]}", flush=True)
            raise
        finally:
            if balancer:
                balancer.stop()
            for replica in replicas:
                if replica.process and replica.process.poll() is None:
                    replica.kill()
