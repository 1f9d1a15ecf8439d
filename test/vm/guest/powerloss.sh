#!/bin/bash
# The power is cut seconds after images were imported and pods were started. Everything that was acknowledged is there afterwards, and the pods run.
cd "$(dirname "$0")" || exit
. ./lib.sh

config_maps() { kubectl get configmaps -o name | grep -c '^configmap/ack-'; }

case $PHASE in
1)
	install_server
	for i in $(seq 20); do
		kubectl create configmap "ack-$i" >/dev/null 2>&1 && echo "$i" >>/root/acknowledged
	done
	sync /root/acknowledged
	# The power is cut right after the import: nothing else has synced its files.
	expect "import the demo's image" skiff image import /opt/skiff/bin/demo.tar
	next_phase_after power-cut
	;;
2)
	eventually "the API server is ready" kubectl get --raw /readyz
	eventually "the node is ready" node_ready
	same "acknowledged writes" "$(wc -l </root/acknowledged)" "$(config_maps)"
	start_demo
	next_phase_after power-cut
	;;
3)
	eventually "the node is ready" node_ready
	demo_works "after the power was cut"
	expect "skiff uninstall" skiff uninstall
	;;
esac
finish
