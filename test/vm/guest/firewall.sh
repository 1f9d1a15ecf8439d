#!/bin/bash
# skiff beside a firewall that drops what it does not know: FIREWALL=ufw, firewalld or forward_drop, which is a policy of DROP for forwarded packets in
# iptables, in its legacy variant and in nftables at once. Pods, Services, node ports and DNS work, the firewall protects what it has protected before,
# and its rules are the same before and after.
cd "$(dirname "$0")" || exit
. ./lib.sh

# Each firewall: start it with only the ports of ssh, the API server and the kubelet open; write its rules again.
ufw_start() { install_packages && ufw allow 22/tcp && ufw allow 6443/tcp && ufw allow 10250/tcp && ufw --force enable; }
ufw_reload() { ufw reload; }

firewalld_start() { install_packages && systemctl start firewalld && firewall-cmd --permanent --add-port=6443/tcp --add-port=10250/tcp && firewall-cmd --reload; }
firewalld_reload() { firewall-cmd --reload; }

forward_drop_start() {
	local command
	for command in iptables ip6tables iptables-legacy ip6tables-legacy; do $command -P FORWARD DROP || return; done
	nft 'table inet host { chain forward { type filter hook forward priority filter; policy drop; }; }'
}
forward_drop_reload() {
	local command
	for command in iptables ip6tables iptables-legacy ip6tables-legacy; do $command -F FORWARD || return; done
	nft flush chain inet host forward
}

# firewalld 2 owns its table by default: nobody else can change it.
owns_table() { [ "$FIREWALL" = firewalld ] && nft list table inet firewalld | grep 'flags owner'; }

pod_address() { kubectl -n demo get pods -o jsonpath='{.items[1].status.podIP}'; }
first_pod() { kubectl -n demo get pods -o jsonpath='{.items[0].metadata.name}'; }
pod_to_pod() { kubectl -n demo exec "$(first_pod)" -- /web "http://$(pod_address):8080" | greets; }
in_pod() { nsenter -t "$(pgrep -x web | head -n 1)" -n "$@"; }
api_from_pod() { in_pod curl -sSk -m 10 "https://$(kubectl get service kubernetes -o jsonpath='{.spec.clusterIP}')/healthz" | grep '^ok'; }
outside_from_pod() { in_pod curl -sS -m 10 http://203.0.113.1:8080/; }
node_port_from_outside() { from lan "http://$(node_address):$(node_port)/" | greets; }
available() { [ "$(node_condition NetworkUnavailable status)" = False ]; }

network_works() {
	eventually "the network is available $1" available
	demo_works "$1"
	eventually "a pod reaches a pod $1" pod_to_pod
	eventually "a pod reaches the API server $1" api_from_pod
	eventually "a pod reaches another host $1" outside_from_pod
	eventually "another host reaches the node port $1" node_port_from_outside
	protected "$1"
}

# Packets that are not skiff's: from one network of the host to another, and to a server of the host.
forwarded() { from lan http://203.0.113.1:8080/; }
to_host() { from lan http://198.51.100.10:8080/; }
to_host_from_pod() { in_pod curl -sS -m 5 http://198.51.100.10:8080/; }
protected() {
	expect "packets of others are not forwarded $1" not forwarded
	[ "$FIREWALL" != forward_drop ] || return
	expect "a closed port of the host is closed for others $1" not to_host
	# An interface in firewalld's zone trusted may reach every port.
	owns_table >/dev/null || expect "a closed port of the host is closed for pods $1" not to_host_from_pod
}

must "another host" neighbor lan 198.51.100
must "a host of another network" neighbor dmz 203.0.113
# Servers that are not skiff's, one on the host and one on the other network.
cp /opt/skiff/bin/web /root/responder
/root/responder >/dev/null 2>&1 &
ip netns exec dmz /root/responder >/dev/null 2>&1 &
sysctl -q net.ipv4.ip_forward=1
eventually "without a firewall packets are forwarded" forwarded
eventually "without a firewall the port is open" to_host

must "start the firewall" "${FIREWALL}_start"
protected_before() { not forwarded; }
must "the firewall drops forwarded packets" protected_before
prepare_runtime
snapshot /root/before
[ ! -d /etc/firewalld ] || cp -a /etc/firewalld /root/firewalld

install_server
if owns_table >/dev/null; then
	advises() { [ "$(node_condition NetworkUnavailable status)" = True ] && node_condition NetworkUnavailable message | grep firewall-cmd; }
	eventually "the node says what firewalld has to be told" advises
	while read -r command; do
		# shellcheck disable=SC2086 # a command line
		expect "$command" $command
	done < <(node_condition NetworkUnavailable message | grep -o '`[^`]*`' | tr -d '`' | awk '!seen[$0]++')
fi
eventually "the demo is applied" demo_applied
network_works "after the start"
must "the firewall writes its rules again" "${FIREWALL}_reload"
network_works "after the firewall has written its rules again"
must "systemctl restart skiff" systemctl restart skiff
network_works "after a restart"

expect "skiff uninstall" skiff uninstall
cat /tmp/out
if [ -d /root/firewalld ]; then
	rm -r /etc/firewalld && mv /root/firewalld /etc/firewalld
	expect "firewalld has its settings from before" firewall-cmd --reload
fi
expect "the host and its firewall are as they were" unchanged /root/before
expect "packets of others are not forwarded afterwards" not forwarded
finish
