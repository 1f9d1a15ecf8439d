#!/bin/bash
# The power is cut seconds after images were imported and pods were started. Everything that was acknowledged is there afterwards, and the pods run.
cd "$(dirname "$0")"
. ./lib.sh

# ask_for_power_cut makes the host cut this machine's power and run the next phase.
ask_for_power_cut() {
	[ $failures = 0 ] || exit $failures
	exit 100
}

config_maps() { kubectl get configmaps -o name | grep -c '^configmap/ack-'; }

case $PHASE in
1)
	expect "skiff install" skiff install server
	eventually "the node is ready" node_ready
	for i in $(seq 20); do
		kubectl create configmap "ack-$i" >/dev/null 2>&1 && echo "$i" >>/root/acknowledged
	done
	sync /root/acknowledged
	# The power is cut right after the import: nothing else has synced its files.
	expect "import the demo's image" skiff image import /opt/skiff/bin/demo.tar
	ask_for_power_cut
	;;
2)
	eventually "the API server is ready" kubectl get --raw /readyz
	eventually "the node is ready" node_ready
	if [ "$(config_maps)" = "$(wc -l </root/acknowledged)" ]; then say "ok   $(config_maps) acknowledged writes are there"; else fail "$(config_maps) writes of $(wc -l </root/acknowledged)"; fi
	eventually "the demo is applied" demo_applied
	eventually "the demo runs" demo_ready
	ask_for_power_cut
	;;
3)
	eventually "the node is ready" node_ready
	eventually "the demo runs" demo_ready
	expect "skiff uninstall" skiff uninstall
	;;
esac
[ $failures = 0 ] || journalctl -u skiff --no-pager | grep -v component=etcd | tail -n 30
say "$failures failures"
exit $failures
