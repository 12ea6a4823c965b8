"""Replicas behind HAProxy with deploy/haproxy.cfg: test_balancer.py QUERN. docs/scale-replicas.md is what it holds to."""
import collections
import contextlib
import json
import sys
import tempfile

from dialects import DIALECTS
from rig import PATIENCE, Balancer, Client, Stream, Upload, deployed, wait_for

# With --context-shift it has no end of its own.
ENDLESS = {"prompt": "Once upon a time", "n_predict": -1, "ignore_eos": True, "stream": True}


def take_turn(client, talk, seed=None):
    """The next turn of a conversation: its reply, text, and tokens of the prompt, all and cached."""
    body = talk.body(seed)
    reply = client.ask(talk.path, body, talk.headers)
    text, tokens, cached = talk.read(reply.json())
    talk.answered(text)
    return reply, text, tokens, cached


def test_conversations_stay(balancer, replicas, talks):
    """Every turn of a conversation is answered by one replica, from the prefix that it has, and all have some."""
    for turn in range(3):
        with contextlib.closing(Client(balancer.port, 3 * turn + 1)) as client:  # its address must not matter
            client.ask("/v1/models")  # one more than there are replicas, so that taking turns would show
            for talk in talks:
                name = f"{type(talk).__name__} {talk.number}, turn {turn + 1}"
                reply, _, tokens, cached = take_turn(client, talk)
                if turn == 0:
                    talk.replica = reply.replica
                assert reply.replica == talk.replica, f"{name} is on {reply.replica}, not {talk.replica}"
                if turn and talk.reuses and cached is not None:
                    assert cached >= talk.prompt_tokens - 1, f"{name}: {cached} cached, {talk.prompt_tokens} were there"
                talk.prompt_tokens = tokens
    spread = collections.Counter(talk.replica for talk in talks)
    print(f"{len(talks)} conversations: {dict(sorted(spread.items()))}")
    assert len(spread) == len(replicas) and min(spread.values()) >= 8, spread
    # Ollama's answers do not tell what was cached; the counters of the replicas do, for all.
    wait_for("all answers are counted", lambda: sum(r.metric("quern_requests_answered_total") for r in replicas) >= 3 * len(talks))
    cached, prompt = (sum(r.metric(f"quern_prompt_tokens{x}_total") for r in replicas) for x in ("_cached", ""))
    print(f"{cached:.0f} of {prompt:.0f} tokens of prompts were cached")
    assert cached >= prompt / 2, (cached, prompt)


def test_same_text_anywhere(balancer, replicas, talks):
    """A seed gives the same text, whichever replica answers."""
    n_empty = 0
    for talk in talks[: len(DIALECTS)]:
        body = talk.body(seed=11)
        ways = [balancer, *replicas]
        texts = [talk.read(w.ask(talk.path, body, headers=talk.headers).json())[0] for w in ways]
        talk.turns.pop()
        assert len(set(texts)) == 1, (type(talk).__name__, texts)
        n_empty += not texts[0]
    assert n_empty <= 2, n_empty  # a model may find that all has been said


def test_streams(balancer, replicas):
    """A stream comes as it is written; a client that goes away ends it."""
    stream = Stream(balancer.port, "/completion", ENDLESS)  # its first event is there
    server = next(r for r in replicas if r.name == stream.replica)
    stream.go_away()
    wait_for("it is given up", lambda: server.metric("quern_requests_cancelled_total") == 1)
    wait_for("the balancer sees it, too", lambda: sum(balancer.in_work().values()) == 0)


def test_popular(balancer):
    """After 16 requests at a time, a beginning has a second place, which may be another replica's."""
    moved = 0
    with contextlib.closing(Client(balancer.port)) as client:
        def home():
            replica = client.ask("/completion", {"prompt": text[:1100], "n_predict": 1}).replica
            wait_for("that is over", lambda: sum(balancer.in_work().values()) == len(uploads))
            return replica

        for number in range(6):
            text, uploads = f"Beginning {number}. " * 20000, []
            first = home()
            for _ in range(16):
                assert home() == first, (number, len(uploads))
                uploads.append(Upload(balancer.port, "/completion", text))
                wait_for("it is in work", lambda: sum(balancer.in_work().values()) == len(uploads))
            moved += home() != first
            for upload in uploads:
                upload.go_away()
            wait_for("all are given up", lambda: sum(balancer.in_work().values()) == 0)
    assert moved > 0


def test_overloaded(replicas):
    """A replica with more than 4 times the mean gets no more: with 8 of them, two requests while no other has any."""
    text = "Another beginning. " * 10000
    servers = [(f"s{i + 1}", replicas[i % len(replicas)].port) for i in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        balancer = Balancer(folder, servers)
        try:
            body = {"prompt": text[:1100], "n_predict": 1}
            home = balancer.ask("/completion", body).replica
            wait_for("that is over", lambda: sum(balancer.in_work().values()) == 0)
            upload = Upload(balancer.port, "/completion", text)
            wait_for("it is in work", lambda: balancer.in_work()[home] == 1)
            assert balancer.ask("/completion", body).replica != home
            upload.go_away()
        finally:
            balancer.stop()


def test_waiting_client_goes_away(balancer, replicas):
    """One that waits for a whole answer, too."""
    before = sum(r.metric("quern_requests_cancelled_total") for r in replicas)
    client = Client(balancer.port)
    body = ENDLESS | {"stream": False}
    client.connection.request("POST", "/completion", json.dumps(body))
    wait_for("it is computed", lambda: sum(r.metric("quern_rows") for r in replicas) == 1)
    client.close()
    wait_for("it is given up", lambda: sum(r.metric("quern_requests_cancelled_total") for r in replicas) == before + 1)


def test_other_requests(balancer, replicas):
    """What has no conversation is spread over all; what is about one replica is not asked here."""
    with contextlib.closing(Client(balancer.port)) as client:
        seen = {client.ask("/v1/models").replica for _ in range(99)}
        assert seen == {r.name for r in replicas}, seen
        seen = {client.ask("/v1/embeddings", {"input": "a cat"}).replica for _ in range(99)}
        assert seen == {r.name for r in replicas}, seen
        for path in ("/metrics", "/slots", "/load"):
            assert client.ask(path).status == 404, path
        assert client.ask("/health").json() == {"status": "ok"}
        page = client.ask("/")
        assert page.status == 200 and b"<html" in page.body


def test_headers(balancer):
    """A header of the client's keeps together what begins differently."""
    with contextlib.closing(Client(balancer.port)) as client:
        for name in ("X-Session-Id", "X-Claude-Code-Session-Id", "Session-Id", "session_id", "X-Session-Affinity"):
            seen = [client.ask("/completion", {"prompt": f"{i}", "n_predict": 1}, {name: "one"}).replica for i in range(9)]
            assert len(set(seen)) == 1, (name, seen)
            seen = [client.ask("/completion", {"prompt": f"{i}", "n_predict": 1}, {name: ""}).replica for i in range(9)]
            assert len(set(seen)) > 1, (name, seen)


def by_address(balancer, path, make_body):
    """The replicas that eight clients are sent to, whatever the answer is."""
    seen = []
    for number in range(1, 9):
        with contextlib.closing(Client(balancer.port, number)) as client:
            seen.append(client.ask(path, make_body(number)).replica)
    return seen


def test_odd_beginnings(balancer):
    """What has no text to begin with goes by the client's address, whatever follows; a long text by what is read."""
    def part(role, **content):
        return {"role": role, "content": [content]}

    image = part("user", type="image_url", image_url={"url": "data:image/png;base64,AAAA"})
    later = [part("assistant", type="text", text="A lemon."), part("user", type="text", text="And this?")]
    odd = [("/completion", {"prompt": [1, 2, i]}) for i in range(4)]
    odd += [("/v1/chat/completions", {"messages": [image, *later[:n]]}) for n in range(len(later) + 1)]
    seen = [by_address(balancer, path, lambda _, body=body: body) for path, body in odd]
    assert len(set(seen[0])) > 1 and all(s == seen[0] for s in seen), seen

    def long_text(number):
        return "word " * 60000 + str(number)

    seen = by_address(balancer, "/completion", lambda number: {"prompt": long_text(number)})
    seen += by_address(balancer, "/v1/messages", lambda number: {
        "max_tokens": 9, "messages": [{"role": "user", "content": long_text(number)}]})
    assert len(set(seen[:8])) == len(set(seen[8:])) == 1, seen


def header_for(balancer, replica):
    """A session of a client that is this replica's."""
    for i in range(1000):
        headers = {"X-Session-Id": f"for {replica.name}, {i}"}
        if balancer.ask("/completion", {"prompt": "a", "n_predict": 1}, headers).replica == replica.name:
            return headers
    raise AssertionError(f"no session of 1000 is for {replica.name}")


def test_killed(balancer, replicas, talks):
    """The conversations of a replica that falls over go on elsewhere with the same text, and come back."""
    victim = replicas[1]
    mine = [t for t in talks if t.replica == victim.name]
    others = [t for t in talks if t.replica != victim.name]
    expected = []
    for talk in mine:
        body = talk.body(seed=5)
        expected.append(talk.read(victim.ask(talk.path, body, talk.headers).json())[0])
        talk.turns.pop()
    kill_in_answer(balancer, victim)
    with contextlib.closing(Client(balancer.port)) as client:
        for talk, text in zip(mine, expected):  # before the balancer knows, too: it cannot connect
            reply, got, *_ = take_turn(client, talk, seed=5)
            assert reply.replica != victim.name and got == text, (type(talk).__name__, got, text)
        for talk in others:
            assert take_turn(client, talk)[0].replica == talk.replica, type(talk).__name__
        wait_for("the balancer takes it out", lambda: not balancer.is_up(victim.name))
        victim.start()
        wait_for("the balancer takes it back", lambda: balancer.is_up(victim.name))
        for talk in talks:
            assert take_turn(client, talk)[0].replica == talk.replica, type(talk).__name__


def kill_in_answer(balancer, victim):
    """The client must see that its answer is not whole."""
    stream = Stream(balancer.port, "/completion", ENDLESS, header_for(balancer, victim))
    assert stream.replica == victim.name
    victim.kill()
    assert stream.end() is None, f"the stream seems whole: {stream.rest[-300:]!r}"


def test_drained(balancer, replicas, talks):
    """TERM: a stream that has begun ends as ever, no other request fails, and the exit code is 0."""
    victim = replicas[2]
    headers = header_for(balancer, victim)
    mine = [t for t in talks if t.replica == victim.name]
    tokens = 4000
    while not drain(balancer, victim, headers, mine, tokens):  # it ended before it was told: a longer one
        tokens *= 4
    with contextlib.closing(Client(balancer.port)) as client:
        for talk in mine:
            assert take_turn(client, talk)[0].replica == victim.name, type(talk).__name__


def drain(balancer, victim, headers, talks, tokens):
    """Whether the answer was still being written when the server stopped; it is up again after this."""
    stream = Stream(balancer.port, "/completion", ENDLESS | {"n_predict": tokens}, headers)
    assert stream.replica == victim.name
    victim.process.terminate()
    wait_for("the server stops", lambda: "stopping" in victim.log.read_text())
    with contextlib.closing(Client(balancer.port)) as client:
        for talk in talks:
            reply = take_turn(client, talk)[0]
            assert reply.replica != victim.name, "a server that stops took a request"
    rest = stream.end()
    assert rest and b'"stop":true' in rest, (stream.error, rest and rest[-300:])
    assert victim.process.wait(PATIENCE) == 0
    log = victim.log.read_text()
    victim.log.write_text("")
    victim.start()
    wait_for("it is back", lambda: balancer.is_up(victim.name))
    return log.rindex("stopping") < log.rindex("/completion")


def test_nobody_left(balancer, replicas):
    """Without any replica there are errors in the form that clients know."""
    for replica in replicas:
        assert replica.stop() == 0
    reply = balancer.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]})
    assert reply.status == 503 and reply.headers["Retry-After"], (reply.status, reply.headers)
    assert json.loads(reply.body)["error"]["type"] == "unavailable_error"
    wait_for("its own health says so", lambda: balancer.ask("/health").status == 503)


def main():
    talks = [make(i * len(DIALECTS) + j) for i in range(3) for j, make in enumerate(DIALECTS)]
    with deployed(sys.argv[1], 3) as (replicas, balancer):
        test_conversations_stay(balancer, replicas, talks)
        test_same_text_anywhere(balancer, replicas, talks)
        test_other_requests(balancer, replicas)
        test_headers(balancer)
        test_odd_beginnings(balancer)
        test_streams(balancer, replicas)
        test_waiting_client_goes_away(balancer, replicas)
        test_popular(balancer)
        test_overloaded(replicas)
        test_killed(balancer, replicas, talks)
        test_drained(balancer, replicas, talks)
        test_nobody_left(balancer, replicas)


if __name__ == "__main__":
    main()
