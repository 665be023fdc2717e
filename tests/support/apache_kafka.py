"""Apache Kafka 4 itself (KRaft, one node) for tests: its jars from Maven, started in seconds.

The jars are fetched once into a cache folder outside the repository, each compared with
``kafka/SHA256SUMS``. ``python apache_kafka.py [PORT]`` (``scripts/kafka``) runs a broker by hand.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent / "kafka"
GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
FETCH_SECONDS = 300
CLUSTER_ID = "cmlnY2FuYXJ5LXRlc3RzMQ"  # any 16 bytes in base64
JAVA_OPTIONS = (
    "-Xms64m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # compiles little: it starts in half of the time
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)

# No topic comes into being by being named: in production that is usually forbidden too. The rest
# keeps one small node light; everything else is as Apache ships it.
PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.cleaner.dedupe.buffer.size=4194304
log.cleaner.backoff.ms=200
"""


class KafkaUnavailable(Exception):
    """Apache Kafka cannot be had on this machine; the message says why."""


def version() -> str:
    """The version that ``kafka/pom.xml`` names."""
    found = re.search(
        r"kafka_2\.13</artifactId>\s*<version>([^<]+)", (HERE / "pom.xml").read_text()
    )
    assert found is not None
    return found[1]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rigcanary" / f"kafka-{version()}"


def _sums() -> dict[str, str]:
    lines = (HERE / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def _check(folder: Path) -> None:
    wanted = _sums()
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.jar")
    }
    wrong = sorted(n for n in wanted.keys() | found.keys() if wanted.get(n) != found.get(n))
    if wrong:
        raise KafkaUnavailable(f"not what {HERE.name}/SHA256SUMS says: {', '.join(wrong[:5])}")


def jars() -> Path:
    """Folder with the server's jars, fetched when they are not there yet.

    Raises:
        KafkaUnavailable: without Java or Maven, or when Maven cannot fetch them.
    """
    if shutil.which("java") is None:
        raise KafkaUnavailable("java is not installed (apt-get install default-jre-headless)")
    folder = _cache()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fetch(folder)
        _check(folder)
    return folder


def _fetch(folder: Path) -> None:
    if shutil.which("mvn") is None:
        raise KafkaUnavailable("maven is not installed (apt-get install maven)")
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        target = Path(temporary) / "jars"
        fetched = subprocess.run(
            [
                "mvn", "--batch-mode", "--quiet", "--strict-checksums", "--file",
                str(HERE / "pom.xml"), GOAL, "-DincludeScope=runtime",
                f"-DoutputDirectory={target}",
            ],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_SECONDS,
            check=False,
        )  # fmt: skip
        if fetched.returncode != 0:
            said = (fetched.stdout.strip() or "nothing said").splitlines()[0]
            raise KafkaUnavailable(f"maven cannot fetch Apache Kafka: {said}")
        _check(target)
        target.rename(folder)


def prepare(folder: Path, port: int, controller_port: int) -> list[str]:
    """Format a log folder below ``folder``; returns the command that runs the broker.

    Raises:
        KafkaUnavailable: as :func:`jars`.
    """
    java = ["java", *JAVA_OPTIONS, "-cp", f"{jars()}/*"]
    config = folder / f"kafka-{port}.properties"
    config.write_text(
        PROPERTIES.format(port=port, controller_port=controller_port, data=folder / f"data-{port}")
    )
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, timeout=60,
    )  # fmt: skip
    return [*java, "kafka.Kafka", str(config)]


def main() -> None:
    """Run a broker until Ctrl-C; its data are gone then."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9092
    with tempfile.TemporaryDirectory(prefix="rigcanary-kafka-") as folder:
        try:
            command = prepare(Path(folder), port, port + 1)
        except KafkaUnavailable as error:
            sys.exit(f"scripts/kafka: {error}")
        print(f"Apache Kafka {version()} at 127.0.0.1:{port}; Ctrl-C ends it, data and all")
        with contextlib.suppress(KeyboardInterrupt):
            subprocess.run(command, check=False)


if __name__ == "__main__":
    main()
