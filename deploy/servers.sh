#!/bin/sh
# Installs, on Debian and Ubuntu, what the test suite needs beside Python: ZooKeeper's jars with Java, PostgreSQL 15 or
# newer, and the tools that check deploy/. Only what is missing; with sudo where we are not root. Elsewhere it says what
# to install and fails: a missing server is an error, never a skipped test.
set -eu

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif [ -t 0 ]; then sudo "$@"; else sudo -n "$@"; fi
}

apt_install() {
    command -v apt-get >/dev/null 2>&1 || { echo "no apt-get here; install by hand: $*" >&2; exit 1; }
    # A terminal may be asked for a password; nobody else can answer.
    as_root true 2>/dev/null || {
        echo "missing here: $*; install it as root (apt-get install --no-install-recommends $*), then run make again" >&2
        exit 1
    }
    # The distribution's PostgreSQL would start a server of its own; the tests start theirs.
    as_root mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" | as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

case "${1:-}" in
python-venv)
    version=$("$2" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    apt_install "python$version-venv"
    ;;
servers)
    missing=""
    command -v java >/dev/null 2>&1 || missing="$missing default-jre-headless"
    [ -e /usr/share/java/zookeeper.jar ] || missing="$missing zookeeper"
    [ -e /usr/share/java/slf4j-simple.jar ] || missing="$missing libslf4j-java"
    ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
    command -v promtool >/dev/null 2>&1 || missing="$missing prometheus"
    command -v systemd-analyze >/dev/null 2>&1 || missing="$missing systemd"
    command -v pgbouncer >/dev/null 2>&1 || [ -x /usr/sbin/pgbouncer ] || missing="$missing pgbouncer"
    [ -x /usr/bin/chromium ] || missing="$missing chromium"
    # What drives the browser is a program of its own, which needs this library; Debian's smallest systems lack it.
    ldconfig -p 2>/dev/null | grep -q libatomic.so.1 || /sbin/ldconfig -p 2>/dev/null | grep -q libatomic.so.1 || missing="$missing libatomic1"
    command -v node >/dev/null 2>&1 || missing="$missing nodejs"
    command -v npm >/dev/null 2>&1 || missing="$missing npm"
    # shellcheck disable=SC2086 # a list of package names
    [ -z "$missing" ] || { echo "installing:$missing"; apt_install $missing; }
    ;;
*)
    echo "usage: $0 servers | python-venv PYTHON" >&2
    exit 2
    ;;
esac
