"""Reads all files and either gives the settings whole or says everything that is wrong with them.

Who calls it: the command line and the daemon (also on reload). Nothing is half-loaded: one mistake in one file means
no settings at all, so that the caller keeps what it had.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings.exceptions import SettingsError

from balancer.errors import UserError
from balancer.policies.check_options import CheckOptions
from balancer.policies.options import (
    BalancerOptions,
    BudgetOptions,
    BundleOptions,
    HeatOptions,
    PlacementOptions,
    PlacementRule,
    TableOptions,
)
from balancer.policies.view import NodeView
from balancer.settings import cross_checks
from balancer.settings.cross_checks import check_checks, check_rules
from balancer.settings.files import BundleFile, DaemonFile, Mode, NodeSection
from balancer.settings.from_options import build
from balancer.settings.messages import MessageSettings, check_message
from balancer.settings.migration import MigrationSettings
from balancer.settings.mistakes import ConfigurationError, Mistake, translate
from balancer.untrusted import one_line, read_secret_file, read_text_file, visible

DEFAULT_PLACES = (Path("balancer.toml"), Path("/etc/tablet-balancer/balancer.toml"))


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One node of a bundle, as the file describes it."""

    id: str
    dsn: str
    password: SecretStr | None
    zone: str
    weight: float
    disk: int | None
    memory: int | None
    write_rate: float | None = None
    read_rate: float | None = None
    forward_user: str = ""
    forward_password: SecretStr | None = None
    has_standbys: bool | None = None
    peer_dsn: str = ""
    peer_files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TableSettings:
    """What a table is: for `table create` and for checking what was adopted."""

    name: str
    roots: tuple[str, ...]
    layout: str
    key: tuple[str, ...]
    tablets: int
    splits: tuple[Any, ...]
    require_proof: bool = False
    spread_sequences: bool = False
    messages: Mapping[str, MessageSettings] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BundleSettings:
    """One bundle's file, read."""

    name: str
    file: Path
    mode: Mode
    timezone: str
    options: BundleOptions
    migration: MigrationSettings
    nodes: Mapping[str, NodeSettings]
    tables: Mapping[str, TableSettings]
    given: Mapping[str, Any] = field(repr=False, default_factory=dict)
    """The keys that the file itself sets: where a value came from."""
    forwarding: bool = False
    checks: CheckOptions = field(default_factory=CheckOptions)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that was configured."""

    file: Path
    daemon: DaemonFile
    bundles: Mapping[str, BundleSettings]
    given: Mapping[str, Any] = field(repr=False, default_factory=dict)

    def bundle(self, name: str) -> BundleSettings:
        """The bundle of this name."""
        if name not in self.bundles:
            known = ", ".join(sorted(self.bundles)) or "none"
            raise UserError(f"there is no bundle {name!r} in {self.file}; there are: {known}")
        return self.bundles[name]


def find_file(path: Path | None) -> Path:
    """The file that was named, in BALANCER_CONFIG or by the option, or the first of the usual places."""
    named = path or (Path(os.environ["BALANCER_CONFIG"]) if os.environ.get("BALANCER_CONFIG") else None)
    if named is not None:
        return named
    for place in DEFAULT_PLACES:
        if place.exists():
            return place
    raise UserError(f"no configuration: name one with --config, or write {' or '.join(map(str, DEFAULT_PLACES))}")


def load_settings(path: Path | None = None) -> Settings:
    """Everything, or a ConfigurationError with all that is wrong."""
    file = find_file(path)
    mistakes: list[Mistake] = []
    given = _read(file, mistakes)
    daemon = _validate(DaemonFile, str(file), given, mistakes)
    folder = file.parent / (daemon.bundles if isinstance(daemon, DaemonFile) else Path("bundles"))
    passwords = _password_folder(file, daemon, mistakes)
    bundles = {}
    for bundle_file in _bundle_files(folder, given, mistakes):
        loaded = _load_bundle(bundle_file, daemon, passwords, mistakes)
        if loaded is not None:
            bundles[loaded.name] = loaded
    mistakes.extend(_shared_nodes(bundles))
    if mistakes or not isinstance(daemon, DaemonFile):
        raise ConfigurationError(mistakes)
    return Settings(file, daemon, bundles, given)


def _bundle_files(folder: Path, given: Mapping[str, Any], mistakes: list[Mistake]) -> list[Path]:
    try:
        return sorted(folder / name for name in os.listdir(folder) if name.endswith(".toml"))
    except FileNotFoundError:
        if "bundles" in given:
            mistakes.append(Mistake(str(folder), "", "the folder of the bundles' files does not exist"))
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else "no path can be so"
        mistakes.append(Mistake(visible(str(folder)), "", f"the folder of the bundles' files cannot be read: {what}"))
    return []


def _read(file: Path, mistakes: list[Mistake]) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text_file(file))
    except FileNotFoundError:
        problem = "the file does not exist"
    except tomllib.TOMLDecodeError as error:
        problem = f"is not TOML: {one_line(str(error))}"
    except RecursionError:
        problem = "cannot be read as TOML: tables or lists are nested too deeply"
    except ValueError as error:
        problem = one_line(str(error))
    mistakes.append(Mistake(visible(str(file)), "", problem))
    return {}


def _validate(
    shape: type[DaemonFile] | type[BundleFile],
    file: str,
    given: Mapping[str, Any],
    mistakes: list[Mistake],
    env_prefix: str | None = None,
) -> BaseModel | None:
    if not given and mistakes and mistakes[-1].file == file:
        return None  # it could not be read: saying that keys are missing would only confuse
    try:
        return shape(_env_prefix=env_prefix, **given)
    except ValidationError as error:
        mistakes.extend(translate(file, shape, given, error))
    except SettingsError as error:
        mistakes.append(Mistake("environment", "", str(error)))
    return None


def _load_bundle(
    file: Path, daemon: BaseModel | None, passwords: Path | None, mistakes: list[Mistake]
) -> BundleSettings | None:
    before = len(mistakes)
    given = _read(file, mistakes)
    read = _validate(BundleFile, str(file), given, mistakes, f"{env_prefix(file.stem)}__")
    if not isinstance(read, BundleFile):
        return None
    options = BundleOptions(
        balancer=build(BalancerOptions, read.tablet_balancer_config),
        tables={name: _table_options(section) for name, section in read.tables.items()},
        heat=build(HeatOptions, read.heat),
        placement=build(PlacementOptions, read.placement),
        budgets=build(BudgetOptions, read.migration),
        rules=tuple(build(PlacementRule, rule) for rule in read.rules),
    )
    migration = build(MigrationSettings, read.migration)
    mistakes.extend(Mistake(str(file), key, message) for key, message in _broken_rules(options, migration))
    layouts = {name: _table(name, section).layout for name, section in read.tables.items()}
    places = [NodeView(name, zone=section.zone) for name, section in read.nodes.items()]
    mistakes.extend(Mistake(str(file), key, message) for key, message in check_rules(options, places, layouts))
    for name, section in read.tables.items():
        found = cross_checks.check_periods(options.tables[name], _table(name, section).layout)
        mistakes.extend(Mistake(str(file), f"tables.{name}.{key}", message) for key, message in found)
        found = _message_mistakes(_table(name, section).messages, options.tables[name])
        mistakes.extend(Mistake(str(file), f"tables.{name}.{key}", message) for key, message in found)
    checks = build(CheckOptions, read.checks)
    tables = {name: _table(name, section) for name, section in read.tables.items()}
    found_in_checks = check_checks(checks, tables)
    mistakes.extend(Mistake(str(file), f"checks.{key}", message) for key, message in found_in_checks)
    groups = {name: group.flat() for name, group in options.balancer.groups.items()}
    options = replace(options, balancer=replace(options.balancer, groups=groups))
    nodes = {name: _node(name, section, file, passwords, mistakes) for name, section in read.nodes.items()}
    if len(mistakes) > before:
        return None
    defaults = daemon if isinstance(daemon, DaemonFile) else None
    return BundleSettings(
        name=file.stem,
        file=file,
        mode=read.mode or (defaults.mode if defaults else Mode.OBSERVE),
        timezone=read.timezone or (defaults.timezone if defaults else "UTC"),
        options=options,
        migration=migration,
        nodes=nodes,
        tables=tables,
        given=given,
        forwarding=read.forwarding,
        checks=checks,
    )


def env_prefix(name: str) -> str:
    """How a bundle, or a node, is called in the environment."""
    return "BALANCER_BUNDLE_" + re.sub(r"\W", "_", name).upper()


def _broken_rules(options: BundleOptions, migration: MigrationSettings) -> Iterator[tuple[str, str]]:
    for key, message in cross_checks.check_migration(migration):
        yield f"migration.{key}", message
    for key, message in cross_checks.check_balancer(options.balancer):
        yield f"tablet_balancer_config.{key}", message
    for key, message in cross_checks.check_heat(options.heat):
        yield f"heat.{key}", message
    for key, message in cross_checks.check_placement(options.placement):
        yield f"placement.{key}", message
    for name, table in options.tables.items():
        for key, message in cross_checks.check_table(table, options.balancer.groups):
            yield f"tables.{name}.{key}", message


def _message_mistakes(messages: Mapping[str, MessageSettings], options: TableOptions) -> Iterator[tuple[str, str]]:
    for name, message in messages.items():
        for key, sentence in check_message(name, message):
            yield f"messages.{name}.{key}".rstrip("."), sentence
    if messages and options.expire_after is not None:
        yield "messages", "do not work with expire_after: messages would expire before they are delivered"


def _password_folder(file: Path, daemon: BaseModel | None, mistakes: list[Mistake]) -> Path | None:
    """The folder that `node_passwords` names; one that is not there is a mistake, or every login would fail instead."""
    if not isinstance(daemon, DaemonFile) or daemon.node_passwords is None:
        return None
    folder = file.parent / daemon.node_passwords
    try:
        found = folder.is_dir()
    except (OSError, ValueError):
        found = False
    if not found:
        mistakes.append(Mistake(str(file), "node_passwords", f"there is no folder {visible(str(folder))}"))
        return None
    return folder


def _password_in(folder: Path, node: str) -> SecretStr | None:
    """The password in the file of the node's name; None: there is none. `ValueError` with half a sentence."""
    # A name with a slash would leave the folder; what begins with a dot is of the file system or of a mounted volume.
    if "/" in node or node.startswith(".") or not node:
        raise ValueError("cannot have this name; give the node a password_file, or another name")
    file = folder / node
    try:
        file.stat()
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        pass  # reading it says what is wrong
    return SecretStr(read_secret_file(file))


def _node(name: str, section: NodeSection, file: Path, passwords: Path | None, mistakes: list[Mistake]) -> NodeSettings:
    def secret(variable: str, key: str, given: Path | None, default: SecretStr | None) -> SecretStr | None:
        value = os.environ.get(variable + re.sub(r"\W", "_", name).upper())
        if value:
            return SecretStr(value)
        if given is None:
            return default
        try:
            return SecretStr(read_secret_file(file.parent / given))
        except ValueError as error:
            mistakes.append(Mistake(str(file), f"nodes.{name}.{key}", str(error)))
            return default

    password = secret("BALANCER_PASSWORD_", "password_file", section.password_file, section.dsn.password)
    if password is None and passwords is not None:
        try:
            password = _password_in(passwords, name)
        except ValueError as error:
            mistakes.append(Mistake(str(file), f"nodes.{visible(name)}", f"its file in node_passwords {error}"))
    forward = secret("BALANCER_FORWARD_PASSWORD_", "forward_password_file", section.forward_password_file, None)
    if section.peer_dsn is not None and section.peer_dsn.password is not None:
        mistakes.append(
            Mistake(str(file), f"nodes.{name}.peer_dsn", "the password is that of the dsn: leave it out here")
        )
    return NodeSettings(
        id=name,
        dsn=section.dsn.text,
        password=password,
        zone=section.zone,
        weight=section.weight,
        disk=section.disk or section.capacity.disk,
        memory=section.memory or section.capacity.memory,
        write_rate=section.capacity.write_rate,
        read_rate=section.capacity.read_rate,
        forward_user=section.forward_user,
        has_standbys=section.has_standbys,
        peer_dsn=section.peer_dsn.text if section.peer_dsn is not None else "",
        peer_files=_peer_files(section),
        forward_password=forward,
    )


def _peer_files(section: NodeSection) -> tuple[tuple[str, str], ...]:
    files = (
        ("sslrootcert", section.peer_sslrootcert),
        ("sslcert", section.peer_sslcert),
        ("sslkey", section.peer_sslkey),
    )
    return tuple((name, place) for name, place in files if place)


def _table_options(section: Any) -> TableOptions:
    """A number of tablets that was asked for is also the least: a new table is empty and would be merged at once."""
    options: TableOptions = build(TableOptions, section)
    given = "tablets" in section.model_fields_set
    if given and options.min_tablet_count is None and options.desired_tablet_count is None:
        return replace(options, min_tablet_count=section.tablets)
    return options


def _table(name: str, section: Any) -> TableSettings:
    return TableSettings(
        name=name,
        roots=tuple(section.roots),
        layout=section.layout,
        key=tuple(section.key),
        tablets=section.tablets,
        splits=tuple(section.splits),
        require_proof=section.require_proof,
        spread_sequences=section.spread_sequences,
        messages={key: MessageSettings(one.apply, one.reverse, one.attempts) for key, one in section.messages.items()},
    )


def _shared_nodes(bundles: Mapping[str, BundleSettings]) -> Iterator[Mistake]:
    """A node belongs to one bundle: two policies over one disk would work against each other."""
    owners: dict[str, str] = {}
    for bundle in bundles.values():
        for node in bundle.nodes:
            if node in owners:
                yield Mistake(
                    str(bundle.file), f"nodes.{node}", f"the bundle {owners[node]!r} has a node of this name too"
                )
            owners.setdefault(node, bundle.name)
