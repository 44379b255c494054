"""The image and the compose file: what they say is right, and what they run works as they run it.

No engine runs here, so the image is never built. Its steps, its command and its health check are read out of the
Dockerfile and run without one, as a user without any rights.
"""

import fnmatch
import hashlib
import importlib.util
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.error
import zipfile
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import psycopg
import pytest
import typer
import yaml

import payloads
from oncebridge.cli.app import app
from oncebridge.settings import VARIABLES, known_settings
from oncebridge.settings.serve import ServeSettings
from servers.postgres import FAST, GUARDED, own_postgres
from servers.process import ServerProcess, free_port, listens, wait_until
from servers.stack import tool
from servers.valkey import _binary as valkey_binary

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "deploy" / "container"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
#: Where the image has what it is made of.
OPT = "/opt/oncebridge"
PIP = re.compile(r"\bpip (--python \S+ )?(install|wheel) ")
KEY = "a key that nobody guesses"
SETTINGS = {f"{start}{name.upper()}" for table, start in VARIABLES.items() for name in known_settings(table)}


def stages():
    """Return the instructions of each stage, as pairs of a word and the rest of the line."""
    lines = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    found = [[]]
    for line in filter(None, lines):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest.strip()))
    return found[1:]


BUILD, IMAGE = stages()


def said(word, stage=IMAGE):
    """Return what the instructions of a kind say."""
    return [rest for one, rest in stage if one == word]


def environment():
    """Return the variables that the image sets."""
    return dict(part.split("=", 1) for rest in said("ENV") for part in shlex.split(rest))


# --- the image ----------------------------------------------------------------------------------------------


def test_both_stages_have_the_same_python_which_is_tested():
    """A virtual environment works with the Python that made it, in a version that we say we work with."""
    (build,), (image,) = said("FROM", BUILD), said("FROM")
    assert build == f"{image} AS build"
    (python,) = re.findall(r"^ARG PYTHON=(.+)$", DOCKERFILE, re.MULTILINE)
    assert image == "python:${PYTHON}-slim-trixie${PYTHON_DIGEST}"
    assert f"Programming Language :: Python :: {python}" in PROJECT["project"]["classifiers"]


REGISTRY = """#!/bin/sh
for image; do :; done
case "$image" in
  *"$REFUSED"*) test -n "$REFUSED" && echo "no such image" >&2 && exit 1 ;;
esac
sum=$(printf %s "$image" | sha256sum | cut -d' ' -f1)
echo "{\\"digest\\": \\"sha256:$sum\\", \\"size\\": 1}"
"""


@pytest.fixture
def images(tmp_path, monkeypatch):
    """Return the tool that pins images, on copies of the files, with a made-up registry behind `docker`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text(REGISTRY)
    (tmp_path / "bin" / "docker").chmod(0o755)
    for name in ("Dockerfile", "compose.yaml"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("REFUSED", "")
    module = tool("images")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def test_images_are_pinned_by_the_digests_of_their_registries(images, tmp_path):
    """Both files name every image by tag and digest; our own image has none, and a second run changes nothing."""
    assert images.main() == 0
    written = {name: (tmp_path / name).read_text(encoding="utf-8") for name in ("Dockerfile", "compose.yaml")}
    (python,) = re.findall(r"^ARG PYTHON=(.+)$", DOCKERFILE, re.MULTILINE)

    def digest(image):
        return f"sha256:{hashlib.sha256(image.encode()).hexdigest()}"

    assert f"ARG PYTHON_DIGEST=@{digest(f'python:{python}-slim-trixie')}\n" in written["Dockerfile"]
    pinned = {name: one["image"] for name, one in yaml.safe_load(written["compose.yaml"])["services"].items()}
    for name, service in SERVICES.items():
        tag = service["image"].partition("@")[0]
        assert pinned[name] == (tag if tag == "oncebridge" else f"{tag}@{digest(tag)}")
    assert images.main() == 0
    assert written == {name: (tmp_path / name).read_text(encoding="utf-8") for name in written}


def test_an_image_that_cannot_be_looked_up_changes_nothing(images, tmp_path, monkeypatch):
    """Without an answer of its registry no image is pinned, and none of the others either."""
    monkeypatch.setenv("REFUSED", "postgres")
    with pytest.raises(SystemExit, match=r"postgres:\S+ cannot be looked up, nothing was changed: no such image"):
        images.main()
    for name in ("Dockerfile", "compose.yaml"):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="docker is not installed"):
        images.main()


def test_the_image_runs_as_nobody_in_particular():
    """The user is not root, and a number, so that Kubernetes can tell."""
    ((user, group),) = [rest.split(":") for rest in said("USER")]
    assert int(user) > 999
    assert int(group) > 999
    assert f"--owner {user} --group {group} --mode 0700 /data" in said("RUN")[0]


def test_the_image_runs_the_service_without_a_shell():
    """Signals reach it, and arguments take the place of `serve` alone."""
    assert [json.loads(rest) for rest in said("ENTRYPOINT")] == [list(PROJECT["project"]["scripts"])]
    assert [json.loads(rest) for rest in said("CMD")] == [["serve"]]
    assert said("STOPSIGNAL") == ["SIGTERM"]


def test_the_image_sets_what_exists():
    """Every variable is a setting; and the port is the one that the service listens on."""
    ours = {name for name in environment() if name.startswith("ONCEBRIDGE_")}
    assert ours == {"ONCEBRIDGE_SERVE_HOST"} & SETTINGS
    assert said("EXPOSE") == [str(ServeSettings().port)]


def test_the_image_leaves_the_ledger_to_whoever_runs_it():
    """A variable would win over the settings file; and a ledger that goes with the container forgets everything."""
    assert "ONCEBRIDGE_LEDGER" not in environment()
    assert not said("VOLUME")


# --- what it is made of -------------------------------------------------------------------------------------


def ignored(path):
    """Tell whether .dockerignore keeps a file from the builder: the last line that fits decides."""
    result = False
    parts = path.split("/")
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        starts = ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]
        fits = any(fnmatch.fnmatchcase(start, pattern) for start in starts)
        if pattern.startswith("**/"):
            fits = pattern.removeprefix("**/") in parts
        result = not line.startswith("!") if fits else result
    return result


def copied():
    """Return what the build copies from the checkout, each with where it goes."""
    pairs = []
    for rest in said("COPY", BUILD):
        *sources, target = rest.split()
        pairs += [(source, target) for source in sources]
    return pairs


def test_the_builder_gets_what_is_copied_and_no_more():
    """What the build copies is there and not ignored; secrets, ledgers and history never leave the machine."""
    sources = {source for source, _ in copied()}
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert not ignored(source)
    kept = {path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert not {path for path in kept if ignored(path)}
    for path in (".env", "secrets/api_key", "once.db", ".git/config", ".venv/bin/python", "oncebridge.toml"):
        assert ignored(path)
    assert ignored("src/oncebridge/__pycache__/bridge.cpython-311.pyc")


def locked(name):
    """Return what a lock file holds, by name."""
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


def test_the_image_has_the_versions_that_are_tested():
    """Everything that extras need is in it, as the tests run with it, and nothing that only tests need."""
    image = locked("container.txt")
    assert image.items() <= locked("dev.txt").items()
    assert {"boto3", "granian", "hiredis", "msgspec", "psycopg-binary", "starlette", "typer", "uvloop"} <= set(image)
    assert not {"pytest", "mypy", "hatchling", "uv"} & set(image)


def test_packages_are_installed_by_hash_and_never_built():
    """Whatever is fetched is known beforehand, and runs nothing while it is installed."""
    installs = [command for rest in said("RUN", BUILD) for command in rest.split("&&") if PIP.search(command)]
    for command in installs:
        if "-r requirements/" in command:
            assert "--require-hashes --only-binary :all:" in command
        else:
            assert "--no-deps" in command
            assert "--no-index" in command
    assert len(installs) == 4


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Run the last step of the build, on what the builder gets, with this Python for the image's."""
    folder = tmp_path_factory.mktemp("image")
    context, opt = folder / "build", folder / "opt"
    package = {path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    for source, target in copied():
        files = [ROOT / source] if (ROOT / source).is_file() else sorted((ROOT / source).rglob("*"))
        for file in files:
            path = file.relative_to(ROOT)
            if target in ("./", source) and file.is_file() and not ignored(path.as_posix()):
                (context / path).parent.mkdir(parents=True, exist_ok=True)
                (context / path).write_bytes(file.read_bytes())
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", opt], check=True)
    step = said("RUN", BUILD)[-1].replace(OPT, shlex.quote(str(opt)))
    pip = shlex.quote(f"{sys.executable} -m pip --quiet --disable-pip-version-check")
    step = f'pip() {{ {pip[1:-1]} "$@"; }}; {step}'
    ran = subprocess.run(["sh", "-ec", step], cwd=context, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    (wheel,) = (context / "dist").glob("*.whl")
    return opt, wheel, {path.relative_to(ROOT / "src").as_posix() for path in package}


def test_the_build_makes_the_wheel_that_is_tested(built):
    """From what the builder gets comes the whole package, and nothing else."""
    opt, wheel, package = built
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == package
    assert (opt / "bin" / "oncebridge").exists()


def test_byte_code_is_in_the_image(built):
    """It cannot be written later, and without it every start would compile everything."""
    opt, *_ = built
    (package,) = opt.glob("lib/python*/site-packages/oncebridge")
    assert len(list(package.rglob("*.pyc"))) == len(list(package.rglob("*.py")))


# --- what it runs -------------------------------------------------------------------------------------------


def health():
    """Import the script that the image asks about its health."""
    ((_, script),) = [json.loads(rest.partition("CMD")[2]) for rest in said("HEALTHCHECK")]
    ((source, _),) = [pair for pair in copied() if pair[1] == script]
    spec = importlib.util.spec_from_file_location("health", ROOT / source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("command", "is_service"),
    [
        (f"{OPT}/bin/python\0{OPT}/bin/oncebridge\0serve\0", True),
        (f"{OPT}/bin/python\0{OPT}/bin/oncebridge\0serve\0--workers\0002\0", True),
        ("/sbin/docker-init\0--\0oncebridge\0serve\0", True),
        (f"{OPT}/bin/python\0{OPT}/bin/oncebridge\0consume\0https://sqs.example/serve\0", False),
        (f"{OPT}/bin/python\0{OPT}/bin/oncebridge\0migrate\0", False),
        ("", False),
    ],
)
def test_only_the_service_is_asked_for_its_health(command, is_service, tmp_path, monkeypatch):
    """Another command is well while it runs: it has no address to ask."""
    module = health()
    assert module.Path("/proc/1/cmdline") == module.COMMAND
    monkeypatch.setattr(module, "COMMAND", tmp_path / "cmdline")
    monkeypatch.setenv("ONCEBRIDGE_SERVE_PORT", str(free_port()))
    module.COMMAND.write_text(command)
    assert (module.problem() is not None) is is_service


def test_a_health_check_ends_before_its_engine_gives_up():
    """A service that hangs is reported in our words, and not as a check that was killed."""
    ((options, _),) = [rest.split("CMD") for rest in said("HEALTHCHECK")]
    (given,) = re.findall(r"--timeout=(\d+)s", options)
    assert int(given) > health().SECONDS


def as_user():
    """Return what runs a command as the image's user, without any rights of root's."""
    ((user, group),) = [rest.split(":") for rest in said("USER")]
    return ["unshare", "--user", f"--map-user={user}", f"--map-group={group}"] if os.geteuid() == 0 else []


def command_for(*arguments):
    """Return the image's command line, for the Python that runs here."""
    ((entrypoint,),) = [json.loads(rest) for rest in said("ENTRYPOINT")]
    (usual,) = [json.loads(rest) for rest in said("CMD")]
    return [*as_user(), sys.executable, "-m", entrypoint, *(arguments or usual)]


def surroundings(folder, **given):
    """Return the environment of a container: what the image sets, what is given, and nothing of ours."""
    python = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    image = {name: value for name, value in environment().items() if name != "PATH"}
    return {"PATH": os.environ["PATH"], "HOME": "/", "TMPDIR": str(folder / "tmp"), **python, **image, **given}


@pytest.fixture
def container(tmp_path):
    """Make folders as a container has them: /app can only be read, /data and /tmp can be written."""
    for name in ("app", "data", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "key").write_text(KEY)
    return tmp_path


@contextmanager
def running(container, **given):
    """Run the image's command in a folder that can only be read."""
    container.joinpath("app").chmod(0o555)
    with (container / "said").open("wb") as log:
        process = subprocess.Popen(
            command_for(),
            cwd=container / "app",
            env=surroundings(container, ONCEBRIDGE_API_KEYS=f"file:{container}/key", **given),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(module, process):
    """Wait until the health check says that all is well."""

    def is_well():
        assert process.poll() is None
        return module.problem() is None

    wait_until(is_well, "the service to be well")


@pytest.mark.root
def test_the_image_runs_without_rights_and_stops_when_told(container, monkeypatch):
    """The command serves as a user without rights, writes nothing beside it, and SIGTERM ends it orderly."""
    port = free_port()
    module = health()
    monkeypatch.setenv("ONCEBRIDGE_SERVE_PORT", str(port))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # not for an address of this machine
    ledger = f"sqlite:///{container}/data/once.db"
    with running(container, ONCEBRIDGE_LEDGER=ledger, ONCEBRIDGE_SERVE_PORT=str(port)) as process:
        module.COMMAND = Path(f"/proc/{process.pid}/cmdline")
        wait_until(lambda: module.is_service(module.COMMAND.read_bytes()), "the command to be there")
        wait_for(module, process)
        socket.create_connection(("127.0.0.2", port)).close()  # it listens on every address
        process.send_signal(getattr(signal, said("STOPSIGNAL")[0]))
        assert process.wait(60) == 0
    assert module.ask(str(port)) is not None
    assert (container / "data" / "once.db").exists()
    assert not list((container / "app").iterdir())
    assert not list((container / "tmp").iterdir())


@pytest.mark.root
def test_the_image_does_not_serve_strangers(container):
    """Without a key it does not start, because it can be reached from elsewhere."""
    env = surroundings(container, ONCEBRIDGE_LEDGER="memory://")
    ran = subprocess.run(command_for(), env=env, cwd=container, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "api_keys" in ran.stderr


# --- the compose file ---------------------------------------------------------------------------------------

OURS = [name for name, service in SERVICES.items() if service["image"] == "oncebridge"]


def test_every_service_is_hardened():
    """Nothing that runs can write where it need not, or get rights that it has not."""
    assert set(SERVICES) == {"serve", "consume", "migrate", "redis", "postgres"}
    for service in SERVICES.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service
        assert "cap_add" not in service
    assert [SERVICES[name]["user"] for name in ("redis", "postgres")] == ["valkey", "postgres"]
    assert not [name for name in OURS if "user" in SERVICES[name]]  # the image has one


def test_only_the_service_is_reached_and_only_from_this_machine():
    """No other port is published, and servers are on a network that leads nowhere."""
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    (port,) = said("EXPOSE")
    assert published == {"serve": [f"127.0.0.1:{port}:{port}"]}
    assert COMPOSE["networks"]["ledger"] == {"internal": True}
    assert SERVICES["redis"]["networks"] == SERVICES["postgres"]["networks"] == ["ledger"]


def test_no_password_stands_in_the_file():
    """Passwords come from outside, and one that is missing is an error that says where to put it."""
    for service in SERVICES.values():
        for name, value in (service.get("environment") or {}).items():
            if re.search(r"PASSWORD|_AUTH$", name):
                assert re.fullmatch(r"\$\{[A-Z_]+:\?put it into \.env[^}]+\}", value)
    assert SERVICES["serve"]["secrets"] == ["api_key"]
    assert "/.env" in (ROOT / ".gitignore").read_text().splitlines()
    assert f"/{Path(COMPOSE['secrets']['api_key']['file']).parent}/" in (ROOT / ".gitignore").read_text().splitlines()


def test_images_are_pinned_and_ours_is_never_fetched():
    """An image of others has a version; ours is built here, since one of its name elsewhere is not ours."""
    assert 0 < len(OURS) < len(SERVICES)
    for name, service in SERVICES.items():
        if name in OURS:
            assert (service["build"], service["pull_policy"]) == (".", "build")
        else:
            assert re.search(r":\d+(\.\d+)?-\w+(@sha256:[0-9a-f]{64})?$", service["image"])


def test_nothing_starts_before_what_it_needs():
    """Servers are well and tables are made before events come; every server can tell whether it is well."""
    for name in ("serve", "consume"):
        conditions = {other: needed["condition"] for other, needed in SERVICES[name]["depends_on"].items()}
        assert conditions == {
            "redis": "service_healthy",
            "postgres": "service_healthy",
            "migrate": "service_completed_successfully",
        }
    for name in ("redis", "postgres"):
        assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    assert SERVICES["migrate"]["restart"] == "no"


def test_whatever_is_named_is_there():
    """Volumes, networks, files, settings and commands that services name exist."""
    commands = typer.main.get_command(app).commands
    assert OURS
    assert COMPOSE["configs"]
    for name in OURS:
        service = SERVICES[name]
        assert service.get("command", ["serve"])[0] in commands
        ours = {variable for variable in service["environment"] if variable.startswith("ONCEBRIDGE_")}
        assert ours <= SETTINGS
    for service in SERVICES.values():
        assert {volume.partition(":")[0] for volume in service.get("volumes", [])} <= set(COMPOSE["volumes"])
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        assert {config["source"] for config in service.get("configs", [])} <= set(COMPOSE["configs"])
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
    for config in COMPOSE["configs"].values():
        assert (ROOT / config["file"]).is_file()


def test_the_settings_are_where_the_image_looks_for_them():
    """The settings file is put into the image's working directory, and keys are read where secrets are put."""
    (workdir,) = said("WORKDIR")
    for name in OURS:
        assert [config["target"] for config in SERVICES[name]["configs"]] == [f"{workdir}/oncebridge.toml"]
    assert SERVICES["serve"]["environment"]["ONCEBRIDGE_API_KEYS"] == "file:/run/secrets/api_key"


def filled_in(value, **known):
    """Put values in the place of variables, as compose does."""
    return re.sub(r"\$\{([A-Z_]+):[-?]([^}]*)\}", lambda found: known.get(found[1], ""), value)


@pytest.fixture
def redis_port(tmp_path):
    """Run Redis as the compose file says, with a password."""
    port = free_port()
    options = [filled_in(part, REDIS_PASSWORD="p@ss/word") for part in SERVICES["redis"]["command"][1:]]
    command = [valkey_binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(tmp_path), *options]
    server = ServerProcess(command, log=tmp_path / "redis", ready=lambda: listens(port))
    server.start()
    yield port
    server.stop()


@pytest.fixture
def database(tmp_path):
    """Run Postgres with the tables that the compose file makes, for a user who needs a password."""
    (tmp_path / "postgres").mkdir()
    with own_postgres(tmp_path / "postgres", FAST) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {GUARDED} LOGIN PASSWORD 'another'")
            connection.execute(f"CREATE DATABASE oncebridge OWNER {GUARDED}")
        url = f"postgresql://{GUARDED}@127.0.0.1:{server.port}/oncebridge"
        with psycopg.connect(url, password="another") as connection:
            connection.execute((ROOT / COMPOSE["configs"]["tables"]["file"]).read_text())
        yield url


def post(port, body, key=KEY):
    """Post events as a sender does."""
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    with urlopen(Request(f"http://127.0.0.1:{port}/events", body, headers), timeout=60) as answer:
        return json.load(answer)


@pytest.mark.root
@pytest.mark.parametrize("ledger", ["redis", "postgres"])
def test_the_services_work_together(ledger, container, redis_port, database, monkeypatch):
    """With either ledger: tables are made, and each event is one row in Postgres, however often it comes."""
    settings = (ROOT / COMPOSE["configs"]["settings"]["file"]).read_text()
    assert settings.count("postgresql://oncebridge@postgres/oncebridge") == 2
    (container / "app" / "oncebridge.toml").write_text(
        settings.replace("postgresql://oncebridge@postgres/oncebridge", database)
    )
    known = {"REDIS_PASSWORD": "p@ss/word", "POSTGRES_PASSWORD": "another"}
    known |= {"ONCEBRIDGE_LEDGER": database} if ledger == "postgres" else {}
    given = {name: filled_in(value, **known) for name, value in SERVICES["migrate"]["environment"].items()}
    given |= {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(redis_port)}
    env = surroundings(container, **given)
    migrate = command_for(*SERVICES["migrate"]["command"])
    ran = subprocess.run(migrate, env=env, cwd=container / "app", capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr

    port = free_port()
    module = health()
    monkeypatch.setenv("ONCEBRIDGE_SERVE_PORT", str(port))
    events = [payloads.presence(state, modified_ms=payloads.TIME_MS + n) for n, state in enumerate(["AWAY", "MEAL"])]
    body = b"[" + b",".join(payloads.raw(event) for event in events) + b"]"
    with running(container, **given, ONCEBRIDGE_SERVE_PORT=str(port)) as process:
        wait_until(lambda: module.ask(str(port)) is None or process.poll() is not None, "the service to be well")
        assert process.poll() is None, (container / "said").read_text()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            post(port, body, key="another key")
        for _ in range(2):
            # On a busy machine it may be told to come again.
            wait_until(lambda: post(port, body), "the events to be taken")
        process.terminate()
        assert process.wait(60) == 0
    with psycopg.connect(database, password="another") as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (2,)
        assert connection.execute("SELECT presence FROM agent_presence").fetchall() == [("MEAL",)]
