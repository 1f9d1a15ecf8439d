#!/bin/bash
# skiff as a service: installed, the demo is reached, restarted, killed, uninstalled.
cd "$(dirname "$0")" || exit
. ./lib.sh

prepare_runtime
snapshot /root/before
install_server
start_demo
say "cgroups: $(find /sys/fs/cgroup -maxdepth 4 -name '*pod*' -type d | head -n 3 | tr '\n' ' ')"

second=$(skiff server --data-dir /var/lib/skiff --secure-port 7443 2>&1)
case $second in
*"is used by another skiff"*) say "ok   a second skiff is refused: $second" ;;
*) fail "a second skiff was not refused: $second" ;;
esac

before=$(demo_processes)
must "systemctl restart skiff" systemctl restart skiff
eventually "the node is ready after the restart" node_ready
demo_works "after the restart"
untouched "a restart" "$before"

main=$(systemctl show -p MainPID --value skiff)
restarted() {
	local now
	now=$(systemctl show -p MainPID --value skiff)
	[ "$now" != "$main" ] && [ "$now" != 0 ] && systemctl is-active skiff
}
must "kill -9 skiff" kill -9 "$main"
eventually "systemd has started skiff again" restarted
eventually "the node is ready after the crash" node_ready
demo_works "after the crash"
untouched "a crash" "$before"

uninstall /root/before
finish
