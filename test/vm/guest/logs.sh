#!/bin/bash
# Writes what helps to understand a failed test as a tar archive to the standard output.
. "$(dirname "$0")/lib.sh"
to=$(mktemp -d)
trap 'rm -rf "$to"' EXIT
exec 3>&1 >/dev/null 2>&1
journalctl -u skiff --no-pager -o short-precise >"$to/skiff.log"
journalctl --no-pager -o short-precise -n 20000 >"$to/journal.log"
dmesg >"$to/dmesg.log"
{ ps -efww; systemctl list-units --all --no-pager; findmnt; df -h; free; } >"$to/host.txt" 2>&1
{ ip addr; ip route show table all; rules; conntrack -L; ss -ltnup; } >"$to/network.txt" 2>&1
{ timeout 60 kubectl get all,endpointslices,pvc,pv -A -o wide; timeout 60 kubectl describe nodes; timeout 60 kubectl describe pods -A; timeout 60 kubectl get events -A; } >"$to/cluster.txt" 2>&1
cp -r /var/log/pods "$to/pods"
cp /etc/systemd/system/skiff.service "$to"
cp /root/before "$to/before.txt"
tar c -C "$to" . >&3
