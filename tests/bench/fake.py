#!/usr/bin/env python3
"""Stands in for quern and llama-bench, where the scripts of bench are tested: answers at once, with speeds that are made up.

FAKE_SPEED: tokens/s of decode; FAKE_COMMIT: what --version tells; FAKE_FAIL: fails when asked for this command."""
import json
import os
import struct
import sys

words = sys.argv[1:]
speed = float(os.environ.get("FAKE_SPEED", "100"))


def value_of(option, default=None):
    return words[words.index(option) + 1] if option in words else default


def row(test, n, depth, batch):
    tps = speed * (4 if test == "prefill" else batch ** 0.5) * (1 + 0.01 * len(value_of("--numerics", "exact")))
    return {"test": test, "n": n, "depth": depth, "batch": batch, "tps": tps / (1 + depth / 4096), "share": 0.5,
            "step": {"rows": n if test == "prefill" else batch, "weight_bytes": 4e8, "state_bytes": 114688.0 * depth,
                     "int_ops": 8.8e8 * (n if test == "prefill" else batch), "float_ops": 0.0}}


def bench():
    limits = {"threads": 2, "read_gbs": 50.0, "int8_tops": 2.0, "f32_gflops": 500.0, "level": "avx512"}
    if words[1].startswith("-"):
        return {"limits": limits}
    if not os.path.exists(words[1]):
        sys.exit(f"quern: {words[1]}: no such file")
    depth, batch = int(value_of("-d", 0)), int(value_of("-b", 1))
    found = {"limits": limits, "rss_mib": 500.0, "results": [
        row("prefill", int(value_of("-p")), depth, 1), row("decode", int(value_of("-n")), depth, batch)]}
    if "--open" in words:
        found["open"] = {"warm_s": 5 / speed, "cold_s": 50 / speed}
    return found


def save_logits():
    rows = len(value_of("--ids").split(","))
    error = 0 if "--ref" in words else {"exact": 0.001, "balanced": 0.005, "fast": 0.02}[value_of("--numerics", "exact")]
    values = [(i % 7 - 3) * (1 + (error if i % 2 else -error)) for i in range(rows * 64)]
    head = json.dumps({"logits": {"dtype": "F32", "shape": [rows, 64], "data_offsets": [0, 4 * rows * 64]}}).encode()
    with open(value_of("-o"), "wb") as out:
        out.write(struct.pack("<Q", len(head)) + head + struct.pack(f"<{rows * 64}f", *values))


if os.environ.get("FAKE_FAIL") == words[0]:
    sys.exit(f"quern: {words[0]}: out of luck")
if words[0] == "--version":
    print(f"quern 0.1.0\ncommit     {os.environ.get('FAKE_COMMIT', '0123456789ab')}\ncompiler   gcc 12.2.0\nCPU level  avx512")
elif words[0] == "bench":
    print(json.dumps(bench()))
elif words[0] == "inspect":
    print(json.dumps({"layers": 28, "heads": 16, "kv_heads": 8, "head_size": 128}))
elif words[0] == "logits":
    save_logits()
elif words[0] == "-m":  # llama-bench
    n_prompt = int(value_of("-p"))
    print(json.dumps([{"n_prompt": n_prompt, "n_gen": int(value_of("-n")), "n_depth": int(value_of("-d")),
                       "avg_ts": speed * (2 if n_prompt else 0.5)}]))
else:
    sys.exit(f"fake: {words}")
