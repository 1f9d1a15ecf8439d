#!/bin/bash
# Volumes: those of the default class, on the disk and in memory, projected ones; what of them outlives pods and restarts, and what goes with the claim.
cd "$(dirname "$0")" || exit
. ./lib.sh

prepare_runtime
snapshot /root/before
install_server
eventually "the default service account exists" default_account
eventually "the pod with data is applied" data_applied
eventually "the pod with data is ready" data_ready

same "local-path is the default class" true "$(kubectl get storageclass local-path -o jsonpath='{.metadata.annotations.storageclass\.kubernetes\.io/is-default-class}')"
for volume in claim disk memory; do
	same "starts in the volume $volume" 1 "$(starts $volume)"
done
same "the file of a ConfigMap" blue "$(in_data /usr/bin/cat /projected/color)"
same "the file of a Secret" hidden "$(in_data /usr/bin/cat /projected/word)"
expect "the file of the downward API" in_data /usr/bin/grep 'app="data"' /projected/labels
expect "the token of the service account" in_data /usr/bin/test -s /projected/token
same "the file system of the volume in memory" tmpfs "$(in_data /usr/bin/stat -f -c %T /memory)"
expect "a volume in memory has a limit" not in_data /usr/bin/dd if=/dev/zero of=/memory/large bs=64k count=32
expect "its files can be removed" in_data /usr/bin/rm /memory/large

kubectl create configmap settings --from-literal=color=green --dry-run=client -o yaml | kubectl apply -f - >/dev/null 2>&1
green() { [ "$(in_data /usr/bin/cat /projected/color)" = green ]; }
eventually "a change of a ConfigMap reaches the volume" green

pod=$(kubectl get pod data-0 -o jsonpath='{.metadata.uid}')
must "systemctl restart skiff" systemctl restart skiff
eventually "the node is ready after the restart" node_ready
eventually "the pod is ready after the restart" data_ready
same "a restart of skiff leaves the pod alone" "$pod 1" "$(kubectl get pod data-0 -o jsonpath='{.metadata.uid}') $(starts disk)"

# Another pod has the same claim, and nothing else of the first.
expect "delete the pod" kubectl delete pod data-0 --timeout="${limit}s"
replaced() { [ "$(kubectl get pod data-0 -o jsonpath='{.metadata.uid}')" != "$pod" ] && data_ready; }
eventually "another pod takes its place" replaced
same "starts in the claim, on the disk and in memory" "2 1 1" "$(starts claim) $(starts disk) $(starts memory)"

directory=$(kubectl get pv -o jsonpath='{.items[0].spec.hostPath.path}')
expect "the data lies in $directory" test -s "$directory/starts"
expect "delete the StatefulSet" kubectl delete statefulset data --timeout="${limit}s"
eventually "its pod is gone" absent pod data-0
no_mounts() { not grep -q '/var/lib/kubelet/pods/.*/volumes/' /proc/mounts; }
eventually "nothing of the pod is mounted" no_mounts
expect "the claim outlives it" test -s "$directory/starts"
expect "delete the claim" kubectl delete pvc claim-data-0 --timeout="${limit}s"
removed() { [ ! -e "$directory" ] && absent pv; }
eventually "its volume and data are removed" removed

# What uninstall finds in use it unmounts and removes.
eventually "the pod with data is applied again" data_applied
eventually "the pod with data is ready again" data_ready
uninstall /root/before
finish
