"""Renders the Helm chart with several settings and validates its objects, and validates the
compose file.

    check.py CHART COMPOSE_FILE

Needs the packages helm-python-sdk (Helm itself, without a cluster), kubernetes-validate (the
schemas of Kubernetes), docker-compose (the schema of compose files), jsonschema and PyYAML.
Prints the number of validated objects.
"""

import importlib.metadata
import json
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml
from helm_python import Chart, HelmError, lint

# Image volumes and `trafficDistribution` need 1.33.
VERSIONS = ("1.33", "1.35", "1.37")
RULES = '[[repository]]\nnames = ["**"]\nuntagged = "7d"\n'

# Settings, and kinds of objects that they must give, with their number.
CASES = [
    ({}, {"Deployment": 1, "DaemonSet": 1, "CronJob": 1, "PodDisruptionBudget": 1}),
    ({"registry": {"enabled": False}}, {"Deployment": 0, "DaemonSet": 1}),
    ({"nodes": {"enabled": False}, "registry": {"replicas": 1}}, {"DaemonSet": 0, "PodDisruptionBudget": 0}),
    (
        {
            "imagePullSecrets": [{"name": "pull"}],
            "registry": {
                "mode": "private",
                "usersSecret": "users",
                "credentialsSecret": "bucket",
                "environment": {"AWS_REGION": "eu-central-1"},
                "rules": RULES,
                "redirects": False,
                "extraVolumes": [{"name": "hooks", "secret": {"secretName": "hooks"}}],
                "extraVolumeMounts": [{"name": "hooks", "mountPath": "/run/secrets/hooks", "readOnly": True}],
                "tlsSecret": "tls",
                "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "tls", "annotations": {"a": "b"}},
                "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:x"}},
                "nodeSelector": {"kubernetes.io/arch": "amd64"},
                "tolerations": [{"key": "k", "operator": "Exists"}],
            },
            "nodes": {
                "models": ["registry.example/team/chat:1", "registry.example/team/embed:2"],
                "imageModels": [{"name": "chat", "reference": "registry.example/images/chat:1", "path": "model"}],
                "cachePath": "",
                "environment": {"LODE_KEEP_ALIVE": "1h"},
                "environmentSecret": "hub",
                "loginSecret": "login",
                "keysSecret": "keys",
                "clients": {"uses": "models"},
                "runtimeClassName": "nvidia",
                "resources": {"limits": {"nvidia.com/gpu": 1}},
                "nodeSelector": {"gpu": "true"},
                "tolerations": [{"operator": "Exists"}],
            },
        },
        {"Ingress": 1, "CronJob": 2, "ConfigMap": 2},
    ),
]
# Settings that the chart must refuse, and a part of the reason.
REFUSED = [
    ({"registry": {"replicas": 0}}, "minimum"),
    ({"registry": {"storage": "models"}}, "pattern"),
    ({"registry": {"mode": "public"}}, "mode"),
    ({"registry": {"mode": "private"}}, "usersSecret"),
    ({"nodes": {"imageModels": [{"name": "Chat"}]}}, "reference"),
]


def objects(chart, values):
    with Chart.load(chart) as loaded:
        rendered = loaded.render(values=values, name="demo", namespace="models")
    for name, text in sorted(rendered.items()):
        for document in yaml.safe_load_all(text):
            if document:
                yield name, document


def check_references(documents):
    """Every object of the chart that a pod mounts or a service selects must exist."""
    names = {(document["kind"], document["metadata"]["name"]) for document in documents}
    assert len(names) == len(documents), "two objects have the same name"
    labels = [
        template["metadata"]["labels"]
        for document in documents
        for template in [document["spec"].get("template") if "spec" in document else None]
        if template
    ]
    for document in documents:
        if document["kind"] == "Service":
            selector = document["spec"]["selector"]
            found = any(selector.items() <= own.items() for own in labels)
            assert found, f"the service {document['metadata']['name']} selects nothing"
        text = json.dumps(document)
        if '"configMap": {"name": "demo-' in text:
            name = text.split('"configMap": {"name": "')[1].split('"')[0]
            assert ("ConfigMap", name) in names, f"the config map {name} is missing"


def check_chart(chart):
    found = lint(chart)
    assert not found["errors"], found
    number = 0
    for values, expected in CASES:
        documents = [document for _, document in objects(chart, values)]
        for version in VERSIONS:
            for document in documents:
                kubernetes_validate.validate(document, version, strict=True)
                number += 1
        check_references(documents)
        for kind, count in expected.items():
            actual = sum(document["kind"] == kind for document in documents)
            assert actual == count, f"{actual} objects of kind {kind}, expected {count}, with {values}"
    for values, reason in REFUSED:
        try:
            list(objects(chart, values))
        except HelmError as error:
            assert reason in str(error), f"{values}: {error}"
        else:
            raise AssertionError(f"{values} was accepted")
    return number


def check_compose(path):
    schema_file = next(
        file for file in importlib.metadata.files("docker-compose") if file.name == "compose_spec.json"
    )
    schema = json.loads(Path(schema_file.locate()).read_text())
    # The schema is older than names of projects and contents of configs.
    schema["properties"]["name"] = {"type": "string"}
    schema["definitions"]["config"]["properties"]["content"] = {"type": "string"}
    compose = yaml.safe_load(Path(path).read_text())
    jsonschema.Draft7Validator(schema).validate(compose)
    services = compose["services"]
    for name, service in services.items():
        needed = service.get("depends_on", [])
        missing = [other for other in needed if other not in services]
        assert not missing, f"{name} depends on {missing}"
        for use in service.get("configs", []):
            assert use["source"] in compose["configs"], f"{name} lacks the config {use['source']}"
    return len(services)


def main():
    chart, compose = sys.argv[1:]
    print(f"{check_chart(chart)} objects, {check_compose(compose)} services")


main()
