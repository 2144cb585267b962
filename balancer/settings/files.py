"""The shapes of `balancer.toml` and of `bundles/<name>.toml`. Reading them is the business of `load`.

How far the daemon may go on its own in a bundle.
"""

import re
import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    create_model,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from balancer.policies.check_options import CheckOptions
from balancer.policies.options import (
    BalancerOptions,
    BudgetOptions,
    HeatOptions,
    PlacementOptions,
    PlacementRule,
    TableOptions,
)
from balancer.settings.from_options import check_formula, model_of
from balancer.settings.messages import ATTEMPTS
from balancer.settings.migration import MigrationSettings
from balancer.settings.units import Dsn, parse_duration, parse_size
from balancer.settings.yt_spellings import as_written_here
from balancer.untrusted import quoted


class Mode(StrEnum):
    """What a bundle's daemon does with its plans."""

    OBSERVE = "observe"  # plans and reports only
    APPROVE = "approve"  # a plan waits for `balancer apply`
    AUTONOMOUS = "autonomous"


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)?")
_MOST_TABLETS = 10000
_LONGEST_NAME = 200  # two of PostgreSQL's longest and more


def check_zone(name: str) -> str:
    """The name itself, if there is such a time zone."""
    try:
        ZoneInfo(name[:_LONGEST_NAME])
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f'{quoted(name)} is not a time zone; write one as "UTC" or "Europe/Moscow"') from None
    return name


def check_root(name: str) -> str:
    """A root's name with its schema; `public` where none is given."""
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise ValueError(f'{quoted(name)} is not a table name; write it as "schema.table"')
    return name if "." in name else f"public.{name}"


def check_directory(url: str) -> str:
    """The address of the directory, if its scheme is one we know."""
    if not url.startswith(("zk://", "zks://", "sqlite://")):
        raise ValueError('the directory is "zk://host:2181,host:2181/cluster" or "sqlite:///path/to/file"')
    return url


Zone = Annotated[str, AfterValidator(check_zone)]
FormulaText = Annotated[str, AfterValidator(check_formula)]
Duration = Annotated[float, BeforeValidator(parse_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
DsnField = Annotated[Dsn, BeforeValidator(Dsn.parse)]


class Section(BaseModel):
    """A part of a file: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class HttpSettings(Section):
    """Where the API listens and who may use it."""

    listen: Annotated[str, Field(pattern=r"^.+:\d+$")] = "127.0.0.1:8080"
    """Address and port. Beyond loopback, changes need TLS and a token of at least 16 characters."""
    token: SecretStr | None = None
    """Bearer token for all changes; None: nothing can be changed over HTTP."""
    token_file: Path | None = None
    """A file that contains only that token, instead of `token`."""
    read_token: SecretStr | None = None
    """Bearer token that reads everything and changes nothing; None: there is no such token."""
    read_token_file: Path | None = None
    """A file that contains only that token, instead of `read_token`."""
    read_requires_token: bool | None = None
    """Whether reading needs the token too; None: it does, unless the server listens on loopback."""
    allowed_hosts: list[str] = []
    """Names under which the server is reached, in addition to IP addresses, localhost and this host's own name.
    Requests under any other name are refused, which stops DNS rebinding."""
    tls_certificate: Path | None = None
    """The server's certificate chain, PEM; None: plain HTTP."""
    tls_key: Path | None = None
    """The key of that certificate, PEM."""


class DirectorySecurity(Section):
    """How the instance proves to ZooKeeper who it is, and checks that it is talking to ZooKeeper."""

    user: str = ""
    """The writer: daemons and operators. Empty: no authentication, so anyone may rewrite the map."""
    password: SecretStr | None = None
    """The writer's password; better in a file."""
    password_file: Path | None = None
    """A file that contains only the writer's password."""
    reader_user: str = ""
    """The user that applications log in as: it may read the map, leave key samples and take ids. Empty: only the writer
    reads, so applications that need the map need the writer's password, with which they can rewrite it."""
    reader_password: SecretStr | None = None
    """The reader's password: daemons need it to let the reader in; better in a file."""
    reader_password_file: Path | None = None
    """A file that contains only the reader's password."""
    previous_user: str = ""
    """The digest user that the directory belonged to before; the instance also logs in as this user until
    `directory secure` has been run."""
    previous_password: SecretStr | None = None
    """The previous user's password; better in a file."""
    previous_password_file: Path | None = None
    """A file that contains only the previous user's password."""
    sasl: bool = False
    """Whether user and password are for SASL DIGEST-MD5 instead of the digest scheme."""
    tls: bool = False
    """Whether to talk to ZooKeeper over TLS; `zks://` in the address does the same."""
    tls_ca: Path | None = None
    """CA certificates that must have signed ZooKeeper's certificate, PEM; None: the system's."""
    tls_certificate: Path | None = None
    """The instance's certificate, if ZooKeeper asks for one, PEM."""
    tls_key: Path | None = None
    """The key of that certificate, PEM."""


class PgBouncerSettings(Section):
    """`[pgbouncer]`: the PgBouncer next to this instance, which gets the directory's aliases and is paused around
    switches."""

    admin: DsnField
    """Its console: a DSN with dbname=pgbouncer and a user listed in its admin_users; libpq finds the password."""
    file: Path
    """The file of aliases that pgbouncer.ini includes; only the balancer may write it."""
    per: Annotated[str, Field(pattern="^(tablet|node)$")] = "tablet"
    """What gets an alias: each tablet, as `<table>_t<id>`, or each node, by its id."""
    options: str = ""
    """Added to each alias, such as "pool_size=20"."""


class LeadershipSettings(Section):
    """`[leadership]`: which of several instances leads, if each group of bundles has its own directory."""

    spread: bool = False
    """Whether a leader hands over to the instance that is wanted for this directory, so that the leaders of many
    directories spread over the hosts. Off: an instance leads until it stops."""
    weight: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """This instance's share of the directories, relative to the other instances. Larger: it leads more of them;
    smaller: fewer; 0: only those that no other instance can lead."""
    settle: Duration = 30.0
    """How long the same instance must have been wanted before a leader hands over to it. Longer: an instance that comes
    and goes does not change the leader; shorter: groups return to their hosts sooner after a restart."""
    lead_at_least: Duration = 120.0
    """The least time that an instance leads before it hands over. Longer: leaders change less often; shorter: groups
    spread sooner."""


class LogSettings(Section):
    """How much is logged, and in which form."""

    level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = "info"
    """`debug`, `info`, `warning` or `error`: anything less important is not logged."""
    format: Annotated[str, Field(pattern="^(auto|text|json)$")] = "auto"
    """`auto`: key–value text on a terminal, JSON otherwise."""


class _EnvironmentFirst(BaseSettings):
    """A file whose keys may be overridden by the environment; nothing else is read."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings


class DaemonFile(_EnvironmentFirst):
    """`balancer.toml`: one per instance. The environment (`BALANCER_TICK`, `BALANCER_HTTP__LISTEN`) overrides it."""

    model_config = SettingsConfigDict(
        env_prefix="BALANCER_", env_nested_delimiter="__", extra="forbid", frozen=True, env_ignore_empty=True
    )

    directory: Annotated[str, AfterValidator(check_directory)]
    """Where the directory is kept."""
    instance: str = Field(default_factory=socket.gethostname)
    """The name of this instance in the history; by default the host's name."""
    tick: Duration = 10.0
    """Time between polls. A poll of 2,000 tablets takes tens of milliseconds, so polling every ten seconds costs almost
    nothing. Longer: less work for the nodes, but heat is only looked at in a tick, and free slots are only filled then,
    so that beyond a minute a flash crowd is over before it is spread; shorter: a node that is down or a hot tablet is
    noticed sooner."""
    session_timeout: Duration = 10.0
    """After this time without a sign of life from the leader, another instance takes over. Longer: a short network
    outage does not change the leader; shorter: a new leader takes over sooner after a crash."""
    poll_timeout: Duration = 5.0
    """A node that has not answered within this time counts as unreachable for this tick. Longer: slow nodes still
    count; shorter: they do not delay a tick."""
    schedule: FormulaText = ""
    """The cluster's default formula; empty: always open."""
    timezone: Zone = "UTC"
    """The time zone for the hours of schedules and of the day's load; the default for bundles."""
    mode: Mode = Mode.OBSERVE
    """The default mode for bundles: nothing moves until you ask for it."""
    bundles: Path = Path("bundles")
    """The folder of the bundles' files, relative to this file."""
    node_passwords: Path | None = None
    """A folder, relative to this file, with one file per node: the file has the node's name and contains only its
    password. It may be a mounted secret, so that a new node needs just one more file there. BALANCER_PASSWORD_<NODE>
    and the node's `password_file` take precedence; a node without a file there logs in as libpq does. A changed file is
    read again without a restart. None: no such folder."""
    look_back: Duration = 900.0
    """How far back a late tick looks for a minute in which the schedule was open. Longer: a missed window is still used
    later; shorter: nothing starts long after its window."""
    http: HttpSettings = HttpSettings()
    directory_security: DirectorySecurity = DirectorySecurity()
    leadership: LeadershipSettings = LeadershipSettings()
    log: LogSettings = LogSettings()
    pgbouncer: PgBouncerSettings | None = None
    """None: this instance does not manage a PgBouncer."""

    @model_validator(mode="after")
    def _nodes_can_tell_groups_apart(self) -> Self:
        last = self.directory.rstrip("/").rpartition("/")[2]
        if self.leadership.spread and self.directory.startswith("zk") and "." in last:
            raise ValueError(
                f"leadership.spread needs a directory whose last name has no dot: nodes would know {quoted(last)} and"
                f" others as {quoted(last.rpartition('.')[0])}"
            )
        return self


READ_AT_START = (
    "directory",
    "instance",
    "session_timeout",
    "poll_timeout",
    "http",
    "directory_security",
    "log",
    "pgbouncer",
)
"""What an instance takes from its file when it starts, and not when the file changes: it needs a restart."""


def waits_for_restart(started: DaemonFile, read: DaemonFile) -> list[str]:
    """The settings that differ from those an instance was started with and that it does not take over by itself."""
    return [name for name in READ_AT_START if getattr(started, name) != getattr(read, name)]


class CapacitySection(Section):
    """`capacity = { … }` of a node: how much it can take; plans stay below it, and use it for each node's share."""

    write_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Rows per second written to its tablets; None: no limit. Larger: more is put there; smaller: less."""
    read_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Rows per second read from its tablets; None: no limit. Larger: more is put there; smaller: less."""
    memory: Size | None = None
    """Another name for the node's `memory`. Larger: it gets more of the in-memory tables; smaller: less."""
    disk: Size | None = None
    """Another name for the node's `disk`. Larger: more tablets are put there; smaller: it is closed sooner."""


class NodeSection(Section):
    """`[nodes.ID]`: one PostgreSQL database."""

    dsn: DsnField
    """The database's address, in libpq's form, without a password; several hosts name its standbys."""
    password_file: Path | None = None
    """A file that contains only the password. BALANCER_PASSWORD_<NODE> takes precedence over it; `node_passwords` of
    the instance and libpq's passfile come after it."""
    forward_user: str = ""
    """The login that other nodes use to reach its tablets, for `forwarding = true`: a role without any rights of its
    own, which `balancer node grant-script --forward-role` creates."""
    peer_dsn: DsnField | None = None
    """How other nodes' servers reach it, for their subscriptions and foreign servers; None: as `dsn` says, without the
    files in it. The password is the same."""
    peer_sslrootcert: str = ""
    """The authority's certificate on the other nodes' servers, for `sslmode=verify-full` among them; empty: what the
    password proves (SCRAM with channel binding)."""
    peer_sslcert: str = ""
    """A client certificate on the other nodes' servers; empty: none."""
    peer_sslkey: str = ""
    """The key of that certificate, on those servers."""
    has_standbys: bool | None = None
    """Whether it has standbys that may be promoted. None: if one was ever seen. Where it has, a former owner's rows are
    kept until one of them has replayed the switch; false: the last one was given up."""
    forward_password_file: Path | None = None
    """A file that contains only that login's password; BALANCER_FORWARD_PASSWORD_<NODE> takes precedence."""
    zone: str = ""
    """The name of the zone it is in, for rules and for the zones of tables; empty: no zone."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Its share of the load, relative to the other nodes. Larger: it gets more; smaller: less."""
    disk: Size | None = None
    """The size of its disk, which PostgreSQL cannot know; None: no limit. Larger: more tablets are put there; smaller:
    it is closed to new ones sooner."""
    memory: Size | None = None
    """Memory for in-memory tables; None: as much as any other node. Larger: it gets more of their tablets; smaller:
    fewer."""
    capacity: CapacitySection = CapacitySection()

    @model_validator(mode="after")
    def _capacities_are_said_once(self) -> Self:
        for name in ("disk", "memory"):
            if getattr(self, name) is not None and getattr(self.capacity, name) is not None:
                raise ValueError(f"{name} and capacity.{name} are both given: set only one")
        return self


class MessageSection(Section):
    """`[tables.NAME.messages.MESSAGE]`: see `messages`."""

    apply: str
    """The statement that applies the message at its target; `%(name)s` is a value of the message or of the target's
    key."""
    reverse: str = ""
    """The statement that undoes the sender's change, with the sender's key, when the message is given up; empty:
    nothing is undone."""
    attempts: Annotated[int, Field(ge=1, le=1000)] = ATTEMPTS
    """How often a refused message is tried, with growing pauses, before it is given up. More: the cause has more time
    to pass; fewer: the sender learns of it sooner."""


class _TableShape(Section):
    """What a table is; the options that decide about it come from `policies.options.TableOptions`."""

    roots: Annotated[list[Annotated[str, AfterValidator(check_root)]], Field(min_length=1)]
    """Table names, with their schema; all have the key, and they split and move together."""
    layout: Annotated[str, Field(pattern="^(hash|range|whole|everywhere)$")]
    """`hash` or `range`: cut by `key`. `whole`: one tablet on one node, with all rows of all roots; it moves but is
    never split. `everywhere`: plain tables that every node has; one node is their home, which takes the writes, and the
    others follow."""
    key: Annotated[list[str], Field(min_length=1)] = []
    """The columns by which the table is cut. Tables with layout `whole` or `everywhere` have none."""
    tablets: Annotated[int, Field(ge=1, le=_MOST_TABLETS)] = 16
    """How many tablets `table create` makes; a power of two for a hash table. More: finer balance, but more partitions
    for PostgreSQL to plan over; fewer: coarser balance, and large tablets are split later."""
    splits: list[Any] = []
    """For `table create` of a range table: the keys at which it is cut."""
    require_proof: bool = False
    """Whether the roots refuse writes of transactions that have not called `balancer.hold`. Off by default, because an
    application older than the balancer does not call it."""
    spread_sequences: bool = False
    """Whether `table adopt` makes the sequences of serial and identity columns count in steps of 1024, each node from a
    different number, so that two nodes never hand out the same number. Off: such a table is not created on a second
    node; whether its sequences may count differently is the application's decision."""
    messages: dict[str, MessageSection] = {}
    """The messages that the table accepts; `balancer messages enable` prepares the table for them."""

    @model_validator(mode="before")
    @classmethod
    def _as_written_here(cls, section: Any) -> Any:
        return as_written_here(section)

    @model_validator(mode="after")
    def _a_key_fits_the_layout(self) -> Self:
        if self.layout in ("whole", "everywhere"):
            unfit = {"key", "splits", "tablets", "spread_sequences", "messages"} | (
                {"require_proof"} if self.layout == "everywhere" else set()
            )
            for name in sorted(unfit & self.model_fields_set):
                what = f'a table with layout = "{self.layout}" is one tablet and has no key'
                raise ValueError(f"{name}: {what}; leave it out")
        elif not self.key:
            raise ValueError(f'key: a {self.layout} table needs the columns by which it is cut, as in ["user_id"]')
        return self

    @model_validator(mode="after")
    def _vbuckets_are_a_power_of_two(self) -> Self:
        if self.layout == "hash" and self.tablets & (self.tablets - 1):
            below = 1 << (self.tablets.bit_length() - 1)
            near = f"{below} or {2 * below}" if 2 * below <= _MOST_TABLETS else str(below)
            raise ValueError(f"tablets = {self.tablets}: a hash table needs a power of two, such as {near}")
        return self


# Made at run time from the option classes; the type checker sees sections whose fields it does not know.
TableSection: Any = create_model("TableSection", __base__=(_TableShape, model_of(TableOptions)))
MigrationSection: Any = create_model(
    "MigrationSection", __base__=(model_of(MigrationSettings), model_of(BudgetOptions))
)
BalancerSection: Any = model_of(BalancerOptions)
HeatSection: Any = model_of(HeatOptions)
PlacementSection: Any = model_of(PlacementOptions)
RuleSection: Any = model_of(PlacementRule)
CheckSection: Any = model_of(CheckOptions)


class BundleFile(_EnvironmentFirst):
    """`bundles/<name>.toml`. The environment (`BALANCER_BUNDLE_<NAME>__MIGRATION__MODE`) overrides it."""

    model_config = SettingsConfigDict(
        env_nested_delimiter="__", extra="forbid", frozen=True, arbitrary_types_allowed=True, env_ignore_empty=True
    )

    mode: Mode | None = None
    """`observe` plans and reports, `approve` waits for `balancer apply`, `autonomous` acts; None: the instance's
    mode."""
    timezone: Zone | None = None
    """The time zone for this bundle's hours; None: the instance's."""
    forwarding: bool = False
    """Whether each node serves every key through `balancer_all`; needs postgres_fdw and stores logins on nodes."""
    tablet_balancer_config: BalancerSection = BalancerSection()
    heat: HeatSection = HeatSection()
    placement: PlacementSection = PlacementSection()
    migration: MigrationSection = MigrationSection()
    checks: CheckSection = CheckSection()
    nodes: dict[str, NodeSection] = {}
    tables: dict[str, TableSection] = {}
    rules: list[RuleSection] = []
    """Where tablets must or must not live; every plan checks them."""
