#!/bin/bash
# skiff as a service: install, demo, restart, uninstall. RUNTIME=debian uses the containerd of the distribution instead of skiff's own.
cd "$(dirname "$0")"
. ./lib.sh
flags=()
if [ "${RUNTIME:-}" = debian ]; then
	flags=(--container-runtime-endpoint unix:///run/containerd/containerd.sock)
	expect "install the packages" install_packages
	# Its sandbox image comes from a registry, which cannot be reached from here.
	sandbox=$(containerd config dump | sed -n 's/.*sandbox_image = "\(.*\)"/\1/p')
	expect "import the sandbox image" ctr -n k8s.io images import /opt/skiff/bin/pause.tar
	expect "name it $sandbox" ctr -n k8s.io images tag --force localhost/skiff/pause:1 "$sandbox"
	expect "import the demo" ctr -n k8s.io images import /opt/skiff/bin/demo.tar
else
	mkdir -p /var/lib/skiff/images
	cp /opt/skiff/bin/demo.tar /var/lib/skiff/images/
fi
snapshot /tmp/before

expect "skiff install" skiff install server "${flags[@]}"
eventually "the node is ready" node_ready
eventually "the demo is applied" demo_applied
eventually "the demo runs" demo_ready
say "cgroups: $(find /sys/fs/cgroup -maxdepth 4 -name '*pod*' -type d | head -n 3 | tr '\n' ' ')"

second=$(skiff server --data-dir /var/lib/skiff --secure-port 7443 2>&1)
case $second in
*"is used by another skiff"*) say "ok   a second skiff is refused: $second" ;;
*) fail "a second skiff was not refused: $second" ;;
esac

before=$(demo_processes)
expect "restart" systemctl restart skiff
eventually "the node is ready after the restart" node_ready
eventually "the demo is ready after the restart" demo_ready
after=$(demo_processes)
if [ -n "$before" ] && [ "$before" = "$after" ]; then say "ok   the restart did not touch pods: processes $after"; else fail "processes before $before, after $after"; fi

expect "skiff uninstall" skiff uninstall
cat /tmp/out
expect "the host is as it was" unchanged /tmp/before
[ $failures = 0 ] || journalctl -u skiff --no-pager | grep -v component=etcd | tail -n 30
say "$failures failures"
exit $failures
