# Validates sampled texts: validate.py SCHEMAS TEXTS. Each line of TEXTS is {"schema": number, "text"}.
import json
import sys

from jsonschema import Draft202012Validator, FormatChecker

schemas = json.load(open(sys.argv[1], encoding="utf-8"))
validators = [Draft202012Validator(one["schema"], format_checker=FormatChecker()) for one in schemas]
bad = total = 0
for line in open(sys.argv[2], encoding="utf-8"):
    sample = json.loads(line)
    total += 1
    try:
        value = json.loads(sample["text"])
        errors = [e.message for e in validators[sample["schema"]].iter_errors(value)]
    except ValueError as e:
        errors = [str(e)]
    if errors:
        bad += 1
        if bad <= 10:
            print("%s: %s\n    %s" % (schemas[sample["schema"]]["name"], errors[0][:300], sample["text"][:300]))
print("%d texts, %d not valid" % (total, bad))
sys.exit(bad != 0 or total == 0)
