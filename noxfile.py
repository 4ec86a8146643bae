"""Everything this project can be asked to do; `nox --list` tells what in a line each."""

import json
import os
import re
import tempfile

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["tests", "lint", "typing"]
nox.options.reuse_venv = "yes"
# The standard library's venv keeps nothing outside the checkout; virtualenv keeps seed packages.
nox.options.default_venv_backend = "venv"

PYPROJECT = nox.project.load_toml("pyproject.toml")
PYTHON_VERSIONS = nox.project.python_versions(PYPROJECT)
PACKAGES = ("kvoffload", "stateful_models")
# What tests and type checks see: every extra but the one that brings gigabytes.
EDITABLE = ("-e", ".[verify,plot,prometheus,zstd]")
# Pinned as the checkers are: types of a new release must not turn an old commit red.
TORCH = "torch==2.13.0"
TRITON = "triton==3.9.0"
# Whose manager ours is held against. Its wheel is for Linux; of it, only Python is used.
VLLM = "vllm==0.33.0"
VLLM_PLATFORM = "manylinux_2_28_x86_64"
# Whose caches ours agree with, request by request.
SIMULATOR = "libcachesim==0.3.5"
# Whose types are torch's is listed here, for pyright: without it there is nothing to check against.
WITH_TORCH = "spec_tests/with_torch"


def tools(*names: str) -> list[str]:
    """The requirements of the extra `dev` for these tools, so that versions stand in one place.

    Raises:
        KeyError: the extra lists no such tool.
    """
    declared: list[str] = PYPROJECT["project"]["optional-dependencies"]["dev"]
    by_name = {re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0]: line for line in declared}
    return [by_name[name] for name in names]


def install(session: nox.Session, *requirements: str) -> None:
    """Install without pip's hints about newer versions of itself."""
    session.install(*requirements, env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"})


def pyright(session: nox.Session, *arguments: str) -> None:
    """Run pyright, which keeps what it might fetch inside the checkout."""
    cache = os.path.join(session.virtualenv.location, "cache")
    env = {
        "PYRIGHT_PYTHON_CACHE_DIR": cache,
        "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
        "npm_config_cache": os.path.join(cache, "npm"),
    }
    session.run("pyright", *arguments, env=env)


def test(session: nox.Session, *options: str) -> None:
    """Run pytest on the checkout, which is also what is installed (editable)."""
    install(session, *EDITABLE, *tools("build", "hatchling", "mutmut", "mypy", "pytest-xdist"))
    # As many at once as there are cores, and none waits at the end for what another has left.
    parallel = ("-n", "auto", "--dist", "worksteal")
    session.run("python", "-m", "pytest", *parallel, *options, *session.posargs)


def need_torch() -> list[str]:
    """The folders whose types are torch's, as pyright's configuration for them lists them."""
    with open(os.path.join(WITH_TORCH, "pyrightconfig.json"), encoding="utf-8") as file:
        listed: list[str] = json.load(file)["include"]
    return [os.path.normpath(os.path.join(WITH_TORCH, folder)) for folder in listed]


@nox.session
def demo(session: nox.Session) -> None:
    """Replay the packaged sample of real traffic under LRU and ARC, every call judged."""
    install(session, ".")
    session.run("kvoffload", "replay", "--policy", "lru", "--policy", "arc", "--check")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests with this Python; the same examples every time."""
    test(session)


@nox.session(python=PYTHON_VERSIONS)
def versions(session: nox.Session) -> None:
    """Run the tests with each supported Python that is installed."""
    test(session)


@nox.session
def nightly(session: nox.Session) -> None:
    """Run every case of the tests, on many more examples, other ones every time."""
    test(session, "--hypothesis-profile=nightly", "-m", "")


@nox.session
def torch(session: nox.Session) -> None:
    """Run the tests that need torch and Triton, on the CPU, and check types against torch's."""
    install(session, *EDITABLE, TORCH, *tools("mypy", "pyright"))
    # Builds of torch for a GPU ask for a Triton of their own; for interpreting any will do.
    install(session, "--no-deps", TRITON)
    # Triton decides when it is imported whether kernels are run or interpreted.
    session.run(
        "python",
        "-m",
        "pytest",
        WITH_TORCH,
        *session.posargs,
        env={"TRITON_INTERPRET": "1"},
    )
    session.run("mypy", *need_torch())
    # Paths given to it do not count where its configuration excludes them: there is one for these.
    pyright(session, "--project", WITH_TORCH)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format and the import contracts."""
    install(session, *tools("ruff", "import-linter"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session
def typing(session: nox.Session) -> None:
    """Check types with mypy and pyright, and that the public API is typed completely."""
    install(session, *EDITABLE, *tools("mutmut", "mypy", "nox", "pyright"))
    session.run("mypy")
    pyright(session)
    for package in PACKAGES:
        pyright(session, "--verifytypes", package, "--ignoreexternal")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure speed and memory, and print the figures; nothing is judged here."""
    # A plain copy is torch's: only who asks for copies needs the download.
    install(session, *EDITABLE, *([TORCH] if "copies" in session.posargs else []))
    session.run("python", "-m", "spec_tests.bench", *session.posargs)


@nox.session
def pages(session: nox.Session) -> None:
    """Try every page mapping that there is, and pairs of them, on all cores; minutes."""
    install(session, *EDITABLE)
    session.run("python", "-m", "spec_tests.pages", *session.posargs)


@nox.session
def peer(session: nox.Session) -> None:
    """Play random programs on our manager and on vLLM's, which is taken from its wheel; minutes."""
    install(session, *EDITABLE)
    root = os.path.join(session.create_tmp(), VLLM)
    if not os.path.isdir(root):
        download(session, root)
    env = {"KVOFFLOAD_PEER_ROOT": root}
    session.run("python", "-m", "pytest", "spec_tests/peer", env=env)
    session.run("python", "-m", "spec_tests.peer", "run", *session.posargs, env=env)


@nox.session
def simulators(session: nox.Session) -> None:
    """Hold policies and the optimum against libCacheSim's, request by request."""
    install(session, *EDITABLE, SIMULATOR)
    session.run("python", "-m", "spec_tests.peer.simulators")


def download(session: nox.Session, root: str) -> None:
    """Take vLLM's wheel from the package index, and keep the folder of its control plane alone."""
    with tempfile.TemporaryDirectory(dir=session.create_tmp()) as folder:
        session.run(
            *("python", "-m", "pip", "download", "--no-deps", "--no-cache-dir", VLLM),
            *("--only-binary", ":all:", "--platform", VLLM_PLATFORM, "--dest", folder),
            env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
        (wheel,) = os.listdir(folder)
        unpacked = os.path.join(folder, "unpacked")
        session.run(
            "python", "-m", "spec_tests.peer", "unpack", os.path.join(folder, wheel), unpacked
        )
        # Only what is complete gets the name.
        os.rename(unpacked, root)


@nox.session
def mutation(session: nox.Session) -> None:
    """Change the implementation line by line, and see whether the engines notice."""
    install(session, *EDITABLE, *tools("mutmut"))
    session.run("python", "-m", "spec_tests.mutation", *session.posargs)
