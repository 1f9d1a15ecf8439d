#!/bin/bash
# Static pods: started from manifests, edited, moved away and back, while skiff runs and while it does not, and after a reboot.
cd "$(dirname "$0")" || exit
. ./lib.sh
readonly manifests=/etc/skiff-static settings=/etc/skiff-kubelet.yaml
pod=static-$(hostname)

manifest() {
	cat <<YAML
apiVersion: v1
kind: Pod
metadata: {name: static}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: localhost/skiff/demo:1
    imagePullPolicy: IfNotPresent
    env: [{name: GREETING, value: $1}]
YAML
}

# greets_with TEXT: the pod answers with it.
greets_with() {
	local ip
	ip=$(kubectl get pod "$pod" -o jsonpath='{.status.podIP}')
	[ -n "$ip" ] && curl -sS -m 10 "http://$ip:8080/" | grep "^$1, says"
}
is_gone() { absent pod "$pod" && not pgrep -x web; }

case $PHASE in
1)
	prepare_runtime
	mkdir -p $manifests
	cat >$settings <<-YAML
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		staticPodPath: $manifests
	YAML
	snapshot /root/before
	install_server --kubelet-config $settings
	eventually "the default service account exists" default_account
	manifest first >$manifests/web.yaml
	eventually "the pod of a manifest answers" greets_with first
	manifest second >$manifests/web.yaml
	eventually "the pod of an edited manifest answers" greets_with second

	expect "delete the mirror pod" kubectl delete pod "$pod" --wait=false
	eventually "the pod answers all the same" greets_with second
	mv $manifests/web.yaml /root/web.yaml
	eventually "the pod of a manifest that was moved away is gone" is_gone
	mv /root/web.yaml $manifests/web.yaml
	eventually "the pod of a manifest that was moved back answers" greets_with second

	before=$(demo_processes)
	must "systemctl restart skiff" systemctl restart skiff
	eventually "the pod answers after a restart" greets_with second
	untouched "a restart" "$before"

	must "systemctl stop skiff" systemctl stop skiff
	mv $manifests/web.yaml /root/web.yaml
	must "systemctl start skiff" systemctl start skiff
	eventually "the pod of a manifest that was removed meanwhile is gone" is_gone
	mv /root/web.yaml $manifests/web.yaml
	eventually "the pod of a manifest that was moved back answers" greets_with second
	next_phase_after reboot
	;;
2)
	eventually "the node is ready after the reboot" node_ready
	eventually "the pod answers after the reboot" greets_with second
	uninstall /root/before
	;;
esac
finish
