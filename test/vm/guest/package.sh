#!/bin/bash
# The Debian package of a release: installed, upgraded, removed with the cluster's state kept, installed again, purged. The packages of an old and a new
# version are in /opt/release.
cd "$(dirname "$0")" || exit
. ./lib.sh
rm -f /usr/local/bin/skiff # that of the other tests
hash -r
old=$(echo /opt/release/old/skiff_*.deb)
new=$(echo /opt/release/new/skiff_*.deb)

version() { dpkg-query -W -f '${Version}' skiff; }
service() { systemctl show -p "$1" --value skiff; }
installed() { apt-get install -y "$1"; }
# said DESCRIPTION TEXT: the output of the last command has it.
said() {
	local output
	output=$(cat /tmp/out)
	expect "$1" grep -F "$2" <<<"$output"
}
runs_own_program() { [ "$(readlink "/proc/$(service MainPID)/exe")" = /usr/lib/skiff/skiff ]; }

snapshot /root/before
must "install $old" installed "$old"
said "the package says what to do" "skiff install server"
same "a service is not installed" not-found "$(service LoadState)"
first=$(version)
say "version $first, $(skiff --version)"
expect "put the demo's image where skiff imports it from" install -D -m 0644 /opt/skiff/bin/demo.tar /var/lib/skiff/images/demo.tar
install_server --node-labels=from=package
start_demo
expect "the program is the package's" runs_own_program
before=$(demo_processes)
start=$(service ExecMainStartTimestampMonotonic)

must "upgrade to $new" installed "$new"
second=$(version)
say "version $second, $(skiff --version)"
expect "the version is newer" dpkg --compare-versions "$second" gt "$first"
expect "the service was restarted" test "$(service ExecMainStartTimestampMonotonic)" != "$start"
expect "it runs the new program" runs_own_program
expect "it has its flags" grep -e "--node-labels=from=package" /etc/systemd/system/skiff.service
eventually "the node is ready after the upgrade" node_ready
demo_works "after the upgrade"
untouched "an upgrade" "$before"

must "remove" apt-get remove -y skiff
same "the service is gone" not-found "$(service LoadState)"
expect "the pods are gone" not pgrep -x web
expect "the state is kept" test -d /var/lib/skiff/etcd
expect "the settings are kept" test -e /etc/skiff/package.conf

# The package installs the service itself.
echo server >>/etc/skiff/package.conf
must "install again, as a server" installed "$new"
eventually "the node is ready again" node_ready
demo_works "after another installation"

must "purge" apt-get purge -y skiff
said "the package says what is kept" "kept in /var/lib/skiff"
expect "its programs are gone" test ! -e /usr/lib/skiff -a ! -e /usr/bin/skiff
expect "its settings are gone" test ! -e /etc/skiff
expect "the state is kept" test -d /var/lib/skiff/etcd

# Removing the state, too.
must "install once more" installed "$new"
must "skiff install server" skiff install server
expect "skiff uninstall" skiff uninstall
cat /tmp/out
must "purge" apt-get purge -y skiff
rm -rf /var/lib/skiff/images # were here before skiff
rmdir /var/lib/skiff 2>/dev/null
expect "the host is as it was" unchanged /root/before
finish
