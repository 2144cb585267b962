"""Sets the stage: servers, configuration files, tables and rows. Done once per folder; later runs find it as it was."""

from pathlib import Path

from balancer.cli.demo import story
from balancer.directory.configured import open_configured
from balancer.directory.contract import Directory
from balancer.embedded.cluster import EmbeddedCluster
from balancer.embedded.process import free_port
from balancer.nodes.connection import Connection, Timeouts, translated
from balancer.polling.addresses import cluster_name, connected, records_of
from balancer.settings import BundleSettings, Mode, Settings, load_settings
from balancer.tables.adopt import request_of
from balancer.tables.create import create

SPLITS = {"orders": (), "events": story.EVENT_CUTS}
DEFINITIONS = {"orders": story.ORDERS_DEFINITION, "events": story.EVENTS_DEFINITION}
FILLINGS = {"orders": (story.FILL_ORDERS,), "events": (story.FILL_EVENTS,)}


def write_configuration(cluster: EmbeddedCluster, mode: Mode) -> Settings:
    """The files of the demonstration, with the ports that the servers have now."""
    folder = cluster.folder / "config"
    (folder / "bundles").mkdir(parents=True, exist_ok=True)
    directory = f"sqlite://{cluster.folder}/{story.CLUSTER}.db"
    if cluster.zookeeper is not None:
        directory = f"zk://{cluster.zookeeper.address}/{story.CLUSTER}"
    (folder / "balancer.toml").write_text(story.daemon_file(directory, free_port(8080)))
    write_bundle(cluster, mode)
    return load_settings(folder / "balancer.toml")


def write_bundle(cluster: EmbeddedCluster, mode: Mode) -> None:
    """The bundle's file, as an operator changes it: a running daemon finds either the old or the new one."""
    addresses = {
        name: (server.port or 0, str(server.folder / "password")) for name, server in sorted(cluster.nodes.items())
    }
    file = cluster.folder / "config" / "bundles" / f"{story.BUNDLE}.toml"
    fresh = file.with_suffix(".new")
    fresh.write_text(story.bundle_file(addresses, mode))
    fresh.rename(file)


def write_passfile(cluster: EmbeddedCluster) -> Path:
    """The nodes' passwords as libpq reads them, for the application's side."""
    path = cluster.folder / "passfile"
    lines = [f"127.0.0.1:{server.port}:*:postgres:{server.password()}\n" for server in cluster.nodes.values()]
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text("".join(lines))
    return path


def set_tables(settings: Settings) -> bool:
    """Makes and fills the tables, all of them on the first node; False if they are there from an earlier run."""
    bundle = settings.bundle(story.BUNDLE)
    with open_configured(settings.daemon, create=True) as directory:
        if directory.snapshot().tables:
            return False
        with connected(bundle, "demo", Timeouts(statement=120.0)) as nodes:
            for name in DEFINITIONS:
                _create(name, bundle, directory, nodes, settings)
                with translated(story.FIRST_NODE):
                    for statement in FILLINGS[name]:
                        nodes[story.FIRST_NODE].execute(statement)
                    nodes[story.FIRST_NODE].execute("ANALYZE")
    return True


def _create(
    name: str, bundle: BundleSettings, directory: Directory, nodes: dict[str, Connection], settings: Settings
) -> None:
    shape = bundle.tables[name]
    # The daemon records the other nodes, as it does all new ones; here only the first exists.
    first = [record for record in records_of(bundle) if record.id == story.FIRST_NODE]
    create(
        request_of(bundle, name, "demo"),
        directory,
        nodes,
        first,
        cluster_name(settings.daemon.directory),
        tablets=shape.tablets,
        splits=SPLITS[name],
        definition=DEFINITIONS[name],
    )
