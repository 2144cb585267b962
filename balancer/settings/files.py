"""The shapes of `balancer.toml` and of `bundles/<name>.toml`. Reading them is the business of `load`."""

import re
import socket
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

from balancer.outside import quoted
from balancer.policies.check_options import CheckOptions
from balancer.policies.options import (
    BalancerOptions,
    BudgetOptions,
    HeatOptions,
    PlacementOptions,
    PlacementRule,
    TableOptions,
)
from balancer.settings.autonomy import Mode
from balancer.settings.derive import check_formula, model_of
from balancer.settings.message_handlers import ATTEMPTS
from balancer.settings.migration import MigrationSettings
from balancer.settings.units import Dsn, parse_duration, parse_size

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)?")
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
    """Address and port. Beyond loopback changes need TLS and a token of at least 16 characters."""
    token: SecretStr | None = None
    """Bearer token for everything that changes something; None: nothing can be changed over HTTP."""
    token_file: Path | None = None
    """A file with that token alone, in place of `token`."""
    read_token: SecretStr | None = None
    """Bearer token with which everything can be read and nothing changed; None: there is none of that kind."""
    read_token_file: Path | None = None
    """A file with that token alone, in place of `read_token`."""
    read_requires_token: bool | None = None
    """Whether reading needs the token too; None: it does, unless the server listens on loopback."""
    allowed_hosts: list[str] = []
    """Names under which the server is reached, beside IP addresses, localhost and this host's own name. A browser that
    a foreign page leads here by its own name (DNS rebinding) is refused."""
    tls_certificate: Path | None = None
    """The server's certificate chain, PEM; None: plain HTTP."""
    tls_key: Path | None = None
    """The key of that certificate, PEM."""


class DirectorySecurity(Section):
    """How to prove who we are to ZooKeeper, and how to know that it is ZooKeeper."""

    user: str = ""
    """The writer: daemons and operators. Empty: no authentication, and everybody may rewrite the map."""
    password: SecretStr | None = None
    """The writer's password; better in a file."""
    password_file: Path | None = None
    """A file with the writer's password alone."""
    reader_user: str = ""
    """Whom applications log in as: it may read the map, leave key samples and take ids. Empty: only the writer reads,
    so that applications that need the map have to be given the writer's password, with which they can rewrite it."""
    reader_password: SecretStr | None = None
    """The reader's password: daemons need it to let the reader in; better in a file."""
    reader_password_file: Path | None = None
    """A file with the reader's password alone."""
    previous_user: str = ""
    """The digest user that the directory belonged to: log in as it too, until `directory secure` has been run."""
    previous_password: SecretStr | None = None
    """The previous user's password; better in a file."""
    previous_password_file: Path | None = None
    """A file with the previous user's password alone."""
    sasl: bool = False
    """Whether user and password are for SASL DIGEST-MD5 instead of the digest scheme."""
    tls: bool = False
    """Whether to talk to ZooKeeper through TLS; `zks://` in the address says the same."""
    tls_ca: Path | None = None
    """Certificates that ZooKeeper's own must be signed by, PEM; None: those of the system."""
    tls_certificate: Path | None = None
    """Our certificate, where ZooKeeper wants one, PEM."""
    tls_key: Path | None = None
    """The key of that certificate, PEM."""


class PgBouncerSettings(Section):
    """`[pgbouncer]`: the PgBouncer beside this instance, given the directory's aliases and paused around switches."""

    admin: DsnField
    """Its console: a DSN with dbname=pgbouncer and a user who is in its admin_users; the password as libpq finds it."""
    file: Path
    """The file of aliases that pgbouncer.ini includes; it is ours alone."""
    per: Annotated[str, Field(pattern="^(tablet|node)$")] = "tablet"
    """What gets an alias: each tablet as `<table>_t<id>`, or each node by its id."""
    options: str = ""
    """Added to each alias, such as "pool_size=20"."""


class LeadershipSettings(Section):
    """`[leadership]`: which of several instances leads, where there is a directory for each group of bundles."""

    spread: bool = False
    """Whether a leader hands over to the instance that is wanted for this directory, so that many directories share out
    their leaders over the hosts. Off: who leads goes on until it ends."""
    weight: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """This instance's share of the directories beside the other instances'. Larger: it leads more of them; smaller:
    fewer; 0: only those that no other instance can lead."""
    settle: Duration = 30.0
    """How long the same instance must have been wanted before a leader hands over to it. Longer: an instance that comes
    and goes changes no leader; shorter: groups are back on their hosts sooner after a restart."""
    lead_at_least: Duration = 120.0
    """How long an instance leads before it hands over. Longer: leaders change more rarely; shorter: groups spread
    sooner."""


class LogSettings(Section):
    """How much is logged, and in which form."""

    level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = "info"
    """`debug`, `info`, `warning` or `error`: what is less important is not logged."""
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
    """`balancer.toml`: one per instance. The environment (`BALANCER_TICK`, `BALANCER_HTTP__LISTEN`) goes before it."""

    model_config = SettingsConfigDict(
        env_prefix="BALANCER_", env_nested_delimiter="__", extra="forbid", frozen=True, env_ignore_empty=True
    )

    directory: Annotated[str, AfterValidator(check_directory)]
    """Where the directory is kept."""
    instance: str = Field(default_factory=socket.gethostname)
    """The name of this instance in the history; by default the host's."""
    tick: Duration = 10.0
    """Time between polls; a poll of 2,000 tablets takes tens of milliseconds, so ten seconds cost nothing. Longer: less
    work for the nodes; shorter: a node that is down and a tablet that is hot are noticed sooner."""
    session_timeout: Duration = 10.0
    """After this time without a sign of life another instance takes over. Longer: a pause of the network changes no
    leader; shorter: nobody leads for less long after a crash."""
    poll_timeout: Duration = 5.0
    """A node that has not answered by then is unreachable for this tick. Longer: slow nodes still count; shorter: a
    tick is not held up by them."""
    schedule: FormulaText = ""
    """The cluster's default formula; empty: always open."""
    timezone: Zone = "UTC"
    """Where the hours of schedules and of the day's load are counted; the default of bundles."""
    mode: Mode = Mode.OBSERVE
    """The default of bundles: nothing moves until somebody wants it to."""
    bundles: Path = Path("bundles")
    """The folder of the bundles' files, relative to this file."""
    node_passwords: Path | None = None
    """A folder, relative to this file, in which the file that has a node's name has its password, and nothing else: a
    mounted secret, for instance, so that a new node needs one more file there. BALANCER_PASSWORD_<NODE> and the node's
    `password_file` go before it; a node without a file there logs in as libpq does. A file that changes is read again
    without a restart. None: there is no such folder."""
    look_back: Duration = 900.0
    """How far a late tick looks back for a minute in which the schedule was open. Longer: a window that was missed is
    made up for later; shorter: nothing starts long after its window."""
    http: HttpSettings = HttpSettings()
    directory_security: DirectorySecurity = DirectorySecurity()
    leadership: LeadershipSettings = LeadershipSettings()
    log: LogSettings = LogSettings()
    pgbouncer: PgBouncerSettings | None = None
    """None: no PgBouncer is fed by this instance."""

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
    """`capacity = { … }` of a node: what it can bear; plans keep below it, and give each node its share by it."""

    write_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Rows per second written to its tablets; None: not limited. Larger: more is put there; smaller: less."""
    read_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Rows per second read from its tablets; None: not limited. Larger: more is put there; smaller: less."""
    memory: Size | None = None
    """The node's `memory`, by another name. Larger: it gets more of the in-memory tables; smaller: less."""
    disk: Size | None = None
    """The node's `disk`, by another name. Larger: more tablets are put there; smaller: it is closed sooner."""


class NodeSection(Section):
    """`[nodes.ID]`: one PostgreSQL database."""

    dsn: DsnField
    """Where the database is, as libpq takes it, without a password; several hosts name its standbys."""
    password_file: Path | None = None
    """A file with the password alone; BALANCER_PASSWORD_<NODE> goes before it, `node_passwords` of the instance and
    libpq's passfile after it."""
    forward_user: str = ""
    """The login by which other nodes reach its tablets, for `forwarding = true`: a role without any right of its own,
    as `balancer node grant-script --forward-role` makes it."""
    forward_password_file: Path | None = None
    """A file with that login's password alone; BALANCER_FORWARD_PASSWORD_<NODE> goes before it."""
    zone: str = ""
    """A name for where it stands, for rules and for the zones of tables; empty: in none."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Its share of the load, relative to the other nodes. Larger: it gets more; smaller: less."""
    disk: Size | None = None
    """Bytes its disk holds, where PostgreSQL cannot know; None: not limited. Larger: more tablets are put there;
    smaller: it is closed to new ones sooner."""
    memory: Size | None = None
    """Bytes of memory for in-memory tables; None: as much as any other node. Larger: it gets more of their tablets;
    smaller: fewer."""
    capacity: CapacitySection = CapacitySection()

    @model_validator(mode="after")
    def _capacities_are_said_once(self) -> Self:
        for name in ("disk", "memory"):
            if getattr(self, name) is not None and getattr(self.capacity, name) is not None:
                raise ValueError(f"{name} is given beside capacity.{name}: say it once")
        return self


class MessageSection(Section):
    """`[tables.NAME.messages.MESSAGE]`: see `message_handlers`."""

    apply: str
    """The statement that applies it, where the target is; `%(name)s` is a value of the message or of the target's
    key."""
    reverse: str = ""
    """The statement that takes the sender's change back when the message was given up, with the sender's key; empty:
    nothing is taken back."""
    attempts: Annotated[int, Field(ge=1, le=1000)] = ATTEMPTS
    """How often it is tried before it is given up, with longer and longer waits, if it is refused. More: what refuses
    it has more time to pass; fewer: the sender is told sooner."""


class _TableShape(Section):
    """What a table is; what decides about it comes from `policies.options.TableOptions`."""

    roots: Annotated[list[Annotated[str, AfterValidator(check_root)]], Field(min_length=1)]
    """Tables by name, with their schema; all have the key, and split and move together."""
    layout: Annotated[str, Field(pattern="^(hash|range|whole|everywhere)$")]
    """`whole`: one tablet on one node, with all rows of all roots; it moves, and is never split. `everywhere`: plain
    tables that every node has; one is their home, where they are written, and the others follow."""
    key: Annotated[list[str], Field(min_length=1)] = []
    """The columns by which it is cut. A whole table has none."""
    tablets: Annotated[int, Field(ge=1, le=10000)] = 16
    """How many tablets `table create` makes; a power of two for a hash table. More: finer balance, more partitions for
    PostgreSQL to plan over; fewer: coarser, and large ones are split later."""
    splits: list[Any] = []
    """For `table create` of a range table: the keys at which it is cut."""
    require_proof: bool = False
    """Whether the roots refuse writes of transactions that have not called `balancer.hold`. Off: an application that
    was there before the balancer does not call it."""
    spread_sequences: bool = False
    """Whether `table adopt` makes the sequences of serial and identity columns count in steps of 1024, each node from
    another number on, so that nodes never hand out the same. Off: such a table is not made on a second node, because a
    sequence that counts otherwise than before is the application's to decide."""
    messages: dict[str, MessageSection] = {}
    """What it understands; `balancer messages enable` makes a table ready for them."""

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
            raise ValueError(f"tablets = {self.tablets}: a hash table has a power of two of them, as in 16 or 64")
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
    """`bundles/<name>.toml`. The environment (`BALANCER_BUNDLE_<NAME>__MIGRATION__MODE`) goes before it."""

    model_config = SettingsConfigDict(
        env_nested_delimiter="__", extra="forbid", frozen=True, arbitrary_types_allowed=True, env_ignore_empty=True
    )

    mode: Mode | None = None
    """`observe` plans and reports, `approve` waits for `balancer apply`, `autonomous` acts; None: the instance's."""
    timezone: Zone | None = None
    """Where this bundle's hours are counted; None: the instance's."""
    forwarding: bool = False
    """Whether each node answers for every key through `balancer_all`; needs postgres_fdw and stores logins on nodes."""
    tablet_balancer_config: BalancerSection = BalancerSection()
    heat: HeatSection = HeatSection()
    placement: PlacementSection = PlacementSection()
    migration: MigrationSection = MigrationSection()
    checks: CheckSection = CheckSection()
    nodes: dict[str, NodeSection] = {}
    tables: dict[str, TableSection] = {}
    rules: list[RuleSection] = []
    """Where tablets must and must not live; checked at every plan."""
