#!/bin/bash
# A reboot: what was acknowledged is there afterwards, pods come back with their data, those that run once do not.
cd "$(dirname "$0")" || exit
. ./lib.sh

once_applied() {
	kubectl apply --validate=false -f - <<YAML
apiVersion: v1
kind: Pod
metadata: {name: once}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: localhost/skiff/demo:1
    imagePullPolicy: IfNotPresent
    command: [/usr/bin/sleep, infinity]
    volumeMounts: [$program_mounts]
  volumes: [$program_volumes]
YAML
}
once_is() { [ "$(kubectl get pod once -o jsonpath='{.status.phase}')" = "$1" ]; }
config_maps() { kubectl get configmaps -o name | grep -c '^configmap/ack-'; }

case $PHASE in
1)
	prepare_runtime
	snapshot /root/before
	install_server
	start_demo
	eventually "the default service account exists" default_account
	eventually "the pod with data is applied" data_applied
	eventually "the pod that runs once is applied" once_applied
	eventually "the pod with data is ready" data_ready
	eventually "the pod that runs once is running" once_is Running
	for i in $(seq 10); do
		kubectl create configmap "ack-$i" >/dev/null 2>&1 && echo "$i" >>/root/acknowledged
	done
	demo_pods >/root/pods
	kubectl get pod data-0 -o jsonpath='{.metadata.uid}' >/root/data-pod
	next_phase_after reboot
	;;
2)
	eventually "the API server is ready after the reboot" kubectl get --raw /readyz
	same "acknowledged writes" "$(wc -l </root/acknowledged)" "$(config_maps)"
	eventually "the node is ready after the reboot" node_ready
	demo_works "after the reboot"
	same "the demo's pods" "$(cat /root/pods)" "$(demo_pods)"
	restarted() { data_ready && [ "$(starts memory)" = 1 ] && [ "$(starts claim)" = 2 ]; }
	eventually "the pod with data was started again, with its data" restarted
	same "the pod with data" "$(cat /root/data-pod)" "$(kubectl get pod data-0 -o jsonpath='{.metadata.uid}')"
	same "starts in the claim, on the disk and in memory" "2 2 1" "$(starts claim) $(starts disk) $(starts memory)"
	eventually "the pod that runs once has failed" once_is Failed
	uninstall /root/before
	;;
esac
finish
