#!/bin/bash
# The host's address changes while skiff runs, and is missing when it starts.
cd "$(dirname "$0")" || exit
. ./lib.sh

# has ADDRESS: it is the node's, the API server is an endpoint at it and has a certificate for it, and the demo answers there.
node_has() { [ "$(node_address)" = "$1" ]; }
endpoint_has() { [ "$(kubectl get endpointslice kubernetes -o jsonpath='{.endpoints[*].addresses[*]}')" = "$1" ]; }
certified() { ip netns exec lan curl -sS -m 10 --cacert /var/lib/skiff/pki/ca.crt "https://$1:6443/healthz" | grep '^ok'; }
demo_at() { from lan "http://$1:$(node_port)/" | greets; }
# The kubelet's certificate is for its address: the API server verifies it for logs and exec.
logs() { kubectl -n demo logs deployment/web | grep 'listens on'; }
# A pod reaches the API server by its Service.
api_from_pod() { nsenter -t "$(pgrep -x web | head -n 1)" -n curl -sSk -m 10 "https://$(kubectl get service kubernetes -o jsonpath='{.spec.clusterIP}')/healthz" | grep '^ok'; }
reached_at() {
	eventually "the node has the address $1 $2" node_has "$1"
	eventually "the Service kubernetes has it $2" endpoint_has "$1"
	eventually "the API server's certificate has it $2" certified "$1"
	eventually "the demo answers at it $2" demo_at "$1"
	eventually "kubectl logs $2" logs
	demo_works "$2"
	eventually "a pod reaches the API server $2" api_from_pod
}

# move_to ADDRESS: as a DHCP server does that gives another one.
move_to() {
	ip -4 addr flush dev lan && ip addr add "$1/24" dev lan &&
		ip route replace default via 198.51.100.1 && ip -n lan route replace default via "$1"
}

prepare_runtime
must "another host" neighbor lan 198.51.100
ip route flush exact 0.0.0.0/0
must "the default route leads to it" ip route add default via 198.51.100.1
snapshot /root/before
install_server
start_demo
reached_at 198.51.100.10 "at first"
before=$(demo_processes)

must "the address changes" move_to 198.51.100.20
reached_at 198.51.100.20 "after the change"
untouched "a change of the address" "$before"

must "systemctl restart skiff" systemctl restart skiff
eventually "the node is ready after the restart" node_ready
reached_at 198.51.100.20 "after the restart"

# Without any address. The connection that this test was started with is interrupted meanwhile.
mapfile -t own < <(ip -4 -o addr show dev eth0 | awk '{print $4}')
address_back() {
	local a
	for a in "${own[@]}"; do ip addr replace "$a" dev eth0; done
}
trap address_back EXIT
must "systemctl stop skiff" systemctl stop skiff
ip -4 addr flush dev eth0
ip -4 addr flush dev lan
must "start without an address" systemctl start --no-block skiff
has_none() { journalctl -u skiff -b --no-pager | grep 'the host has no address that others can reach'; }
eventually "skiff says that there is none" has_none
# That of the default route first: skiff would stay at another one.
must "the address returns" move_to 198.51.100.10
address_back
eventually "the node is ready when there is an address" node_ready
reached_at 198.51.100.10 "when there is an address"
untouched "a start without an address" "$before"

uninstall /root/before
finish
