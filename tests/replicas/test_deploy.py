"""What deploy/ and docs/scale-replicas.md name, there is: test_deploy.py QUERN. Options, metrics, routes, files, and
numbers that must fit each other."""
import os
import re
import shutil
import subprocess
import sys

from rig import DEPLOY, SOURCE, deployed, find_haproxy

try:
    import yaml
except ImportError:
    yaml = None

PAGE = SOURCE / "docs" / "scale-replicas.md"
# Options of other programs, by program.
FOREIGN = {
    "sbatch": {"--nodes", "--job-name", "--ntasks-per-node", "--exclusive", "--mem", "--output", "--signal"},
    "srun": {"--kill-on-bad-exit", "--wait", "--mpi"},
    "scancel": {"--batch", "--signal"},
    "kubectl": {"--from-file"},
    "docker": {"--from", "--rm"},
    "apt-get": {"--no-install-recommends"},
    "cmake": {"--install", "--prefix", "--strip"},
    "quern serve with many machines": {"--split"},
}


def texts():
    """Name and text of each file."""
    for path in sorted([PAGE, *DEPLOY.rglob("*")]):
        if path.is_file():
            yield path.relative_to(SOURCE), path.read_text()


def test_options(quern):
    helped = subprocess.run([quern, "help", "serve"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"--[a-z][a-z-]*", helped)).union(*FOREIGN.values())
    for name, text in texts():
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text):
            assert option in known, f"{name}: {option} is no option of quern serve"


def test_metrics(replicas, balancer):
    replicas[0].ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]})
    has = {"quern": replicas[0].ask("/metrics").body.decode(), "haproxy": balancer.metrics()}
    n = 0
    for name, text in texts():
        for metric in re.findall(r"\b(?:quern|haproxy)_[a-z_]+\b", text):
            n += 1
            assert re.search(rf"^# TYPE {metric} ", has[metric.split("_")[0]], re.M), f"{name}: {metric} is no metric"
    assert n > 20, n


def routes_of(method, summary):
    """Paths that do this, with their other spellings, from the table of routes."""
    paths, is_it = set(), False
    for line in (SOURCE / "src" / "server" / "routes.def").read_text().splitlines():
        row = re.match(r'(ROUTE|ALIAS)\("(\w+)", "([^"]+)"', line)
        if row and row[1] == "ROUTE":
            is_it = row[2] == method and re.search(rf'"(?:{summary})[^"]*"\)$', line) is not None
        if row and is_it:
            paths.add(row[3])
    return paths


def test_routes(balancer):
    config = (DEPLOY / "haproxy.cfg").read_text()
    listed = {path for paths in re.findall(r"^ +acl answers path (.*)$", config, re.M) for path in paths.split()}
    answering = routes_of("POST", "Answers |Continues ")
    assert listed == answering, listed ^ answering
    health = set(re.search(r"acl health path (.*)", config)[1].split())
    assert health == routes_of("GET", "Tells whether the server is up"), health
    for path in health:
        assert balancer.ask(path).status == 200, path
    table = (SOURCE / "docs" / "server.md").read_text()
    for name, text in texts():
        for path in re.findall(r"`(/(?:v1/|api/)?[a-z_/]+)`", text):
            assert f"{path}`" in table or path == "/cache", f"{name}: {path} is no route"


def test_configurations():
    env = dict(os.environ, QUERN_NAMESPACE="quern")
    for last in ("replicas.cfg", "kubernetes/replicas.cfg"):
        command = [find_haproxy(), "-dW", "-c", "-f", DEPLOY / "haproxy.cfg", "-f", DEPLOY / last]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (last, done.stderr)


def test_files():
    for name, text in texts():
        for path in re.findall(r"\b(?:deploy|tests)/[\w/.-]*\w", text):
            assert (SOURCE / path).exists(), f"{name}: {path} does not exist"
    for script in DEPLOY.glob("slurm/*.sh"):
        subprocess.run(["sh", "-n", script], check=True)
        if shutil.which("shellcheck"):
            subprocess.run(["shellcheck", script], check=True)
        assert os.access(script, os.X_OK), script


# --- manifests -----------------------------------------------------------------------------------


def load_manifests():
    """Objects by kind and name, and what kustomize is told."""
    told = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
    found = {}
    for name in told["resources"]:
        for item in yaml.safe_load_all((DEPLOY / name).read_text()):
            assert item["apiVersion"] and item["kind"], name
            key = item["kind"], item["metadata"]["name"]
            assert key not in found, key
            found[key] = item
    return found, told


def test_references(found, told):
    """Names that objects call each other by."""
    pods = {kind_name: item["spec"]["template"] for kind_name, item in found.items() if kind_name[0] in ("StatefulSet", "Deployment")}
    labels = [pod["metadata"]["labels"] for pod in pods.values()]
    for key, item in found.items():
        spec = item.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector") or {}
        wanted = selector.get("matchLabels", selector)
        assert not wanted or wanted in labels, (key, wanted)
    maps = {m["name"] for m in told["configMapGenerator"]}
    claims = {name for kind, name in found if kind == "PersistentVolumeClaim"}
    images = {image["name"] for image in told["images"]}
    for key, pod in pods.items():
        spec = pod["spec"]
        own = {c["metadata"]["name"] for c in found[key]["spec"].get("volumeClaimTemplates", [])}
        volumes = own | {v["name"] for v in spec["volumes"]}
        for volume in spec["volumes"]:
            assert volume.get("configMap", {}).get("name") in maps | {None}, volume
            assert volume.get("persistentVolumeClaim", {}).get("claimName") in claims | {None}, volume
        for container in spec["containers"]:
            assert container["image"] in images
            assert {m["name"] for m in container["volumeMounts"]} == volumes, key
            ports = {p["name"] for p in container["ports"]}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                there = container.get(probe, {"tcpSocket": {"port": "http"}})
                assert (there.get("httpGet") or there["tcpSocket"])["port"] in ports, (key, probe)
    for source in (f for m in told["configMapGenerator"] for f in m["files"]):
        assert (DEPLOY / source.split("=")[-1]).is_file(), source


def test_restricted(found):
    """Pods that may do nothing else."""
    for key in (("StatefulSet", "quern"), ("Deployment", "balancer")):
        spec = found[key]["spec"]["template"]["spec"]
        context = spec["securityContext"]
        assert context["runAsNonRoot"] and context["runAsUser"] > 0, key
        assert context["seccompProfile"]["type"] == "RuntimeDefault", key
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"] and own["allowPrivilegeEscalation"] is False, key
            assert own["capabilities"] == {"drop": ["ALL"]}, key
            assert container["resources"]["limits"]["memory"], key


def test_numbers(found):
    """Numbers of several files that belong together."""
    config = (DEPLOY / "haproxy.cfg").read_text()
    pod = found["StatefulSet", "quern"]["spec"]["template"]["spec"]
    args = dict(a.removeprefix("--").partition("=")[::2] for a in pod["containers"][0]["args"] if a.startswith("--"))
    scaler = found["HorizontalPodAutoscaler", "quern"]["spec"]
    servers = re.findall(r'server r(\d+) "quern-(\d+)\.quern\.\S+:(\d+)" id (\d+)', (DEPLOY / "kubernetes/replicas.cfg").read_text())
    assert [s[0] for s in servers] == [s[3] for s in servers] == [str(int(s[1]) + 1) for s in servers]
    assert len(servers) == scaler["maxReplicas"] and {s[2] for s in servers} == {args["port"]}
    rows, places = int(args["parallel"]), int(re.search(r"default-server .* maxconn (\d+)", config)[1])
    assert rows < places < 1024 and int(scaler["metrics"][0]["pods"]["target"]["averageValue"]) < rows
    assert pod["terminationGracePeriodSeconds"] > int(args["grace"])
    balancer = found["Deployment", "balancer"]["spec"]["template"]["spec"]
    assert "hard-stop-after 1h" in config and balancer["terminationGracePeriodSeconds"] == 3600
    for script in DEPLOY.glob("slurm/*.sh"):
        text = script.read_text()
        assert int(re.search(r"--signal=B:TERM@(\d+)", text)[1]) > int(re.search(r"--grace (\d+)", text)[1]), script
    looked_at = {int(n) for n in re.findall(r"bytes\(0,(\d+)\)|at-least (\d+)", config) for n in n if n} - {1024}
    assert looked_at == {131072} and "131072 bytes" in PAGE.read_text()
    assert int(re.search(r"tune.bufsize (\d+)", config)[1]) > 131072 + 32768


def test_manifests():
    if not yaml:
        print("the manifests are not looked at: python3-yaml is not installed (tools/setup.sh)")
        return
    found, told = load_manifests()
    test_references(found, told)
    test_restricted(found)
    test_numbers(found)
    if shutil.which("kubectl"):
        subprocess.run(["kubectl", "kustomize", DEPLOY], check=True, stdout=subprocess.DEVNULL)


def main():
    quern = sys.argv[1]
    test_options(quern)
    test_files()
    test_configurations()
    test_manifests()
    with deployed(quern, 1) as (replicas, balancer):
        test_metrics(replicas, balancer)
        test_routes(balancer)


if __name__ == "__main__":
    main()
