# shellcheck shell=bash
# Functions of the tests that run inside a virtual machine. The programs, the demo and the tests are in /opt/skiff.
#
# A test calls expect and eventually for what must hold, and ends with finish. It asks for its machine's power to be cut, or for a reboot, with
# next_phase_after; it is then run again with the next PHASE. Files of the test that must outlive that are in /root.
export KUBECONFIG=/var/lib/skiff/admin.kubeconfig
export DEBIAN_FRONTEND=noninteractive
failures=0
# How long a condition is waited for, in seconds. Emulated machines are up to a hundred times slower than real ones.
limit=${LIMIT:-900}

say() { echo "$(date +%T) $*"; }
fail() { say "FAIL $*"; failures=$((failures + 1)); }

# The end of a command's output in one line.
shorten() { tail -n 15 "$1" | tr '\n' ' ' | tail -c 1500; }

# expect DESCRIPTION COMMAND...: the command succeeds.
expect() {
	local what=$1
	shift
	if "$@" >/tmp/out 2>&1; then say "ok   $what"; else fail "$what: $(shorten /tmp/out)"; fi
}

# must is expect for what the rest of the test cannot do without.
must() {
	local before=$failures
	expect "$@"
	[ "$failures" = "$before" ] || finish
}

# eventually DESCRIPTION COMMAND...: the command succeeds within the time limit.
eventually() {
	local what=$1 begin=$SECONDS
	shift
	until "$@" >/tmp/out 2>&1; do
		if [ $((SECONDS - begin)) -ge "$limit" ]; then
			fail "$what, not within $limit seconds: $(shorten /tmp/out)"
			return 1
		fi
		sleep 1
	done
	say "ok   $what ($((SECONDS - begin)) s)"
}

# same DESCRIPTION WANT GOT: two texts are equal, and not empty.
same() {
	if [ -n "$2" ] && [ "$2" = "$3" ]; then say "ok   $1: $3"; else fail "$1: want '$2', got '$3'"; fi
}

# not COMMAND...: the command fails.
not() { ! "$@"; }

# finish ends the test.
finish() {
	say "$failures failures"
	[ "$failures" = 0 ]
	exit
}

# next_phase_after power-cut|reboot makes the host do that with this machine and run the next phase, unless something has failed.
next_phase_after() {
	[ "$failures" = 0 ] || finish
	case $1 in
	power-cut) exit 100 ;;
	reboot) exit 101 ;;
	esac
}

# --- the host

# install_packages installs the packages that the test has asked for. The machine has no way out: they and what they need lie on its disk.
install_packages() { apt-get install -y --no-install-recommends /opt/packages/*.deb; }

# The rules of all firewalls, without what changes with every packet.
rules() {
	nft -s list ruleset 2>/dev/null # it warns of tables that iptables uses
	iptables-legacy-save | sed '/^#/d; s/ \[[0-9]*:[0-9]*\]$//'
	ip6tables-legacy-save | sed '/^#/d; s/ \[[0-9]*:[0-9]*\]$//'
}

# snapshot FILE: what a node changes on its host.
snapshot() {
	{
		{
			ip -brief link show | awk '{print "link", $1}'
			ip route show table all | grep -v 'table local' | sed 's/ *$//; s/^/route /'
			findmnt -rno TARGET | grep -v '^/proc/sys/fs/binfmt_misc\|^/run/user\|^/run/credentials' | sed 's/^/mount /'
			find /sys/fs/cgroup -maxdepth 1 -name '*kubepods*' | sed 's/^/cgroup /'
			systemctl list-units --all --plain --no-legend '*skiff*' 'kubepods*' 'cri-containerd*' | awk '{print "unit", $1}'
			ls /etc/systemd/system /etc/systemd/logind.conf.d /opt/cni/bin /usr/lib/cni /etc/cni/net.d /run/skiff /var/lib/skiff /var/lib/kubelet /var/log/pods /var/log/containers 2>/dev/null | sed '/^$/d; s/^/file /'
			ps -eo comm= | grep -E '^(skiff|containerd-shim)' | sed 's/^/process /'
		} | sort -u
		rules | sed 's/^/rule /'
	} >"$1"
}

# unchanged BEFORE: the host is as it was.
unchanged() {
	snapshot /tmp/after
	diff "$1" /tmp/after
}

# neighbor NAME PREFIX: a network namespace that is another host, on a network of its own. This host has the address PREFIX.10 there and is its
# router; the other has PREFIX.1.
neighbor() {
	ip netns add "$1" &&
		ip link add "$1" type veth peer name eth0 netns "$1" &&
		ip addr add "$2.10/24" dev "$1" && ip link set "$1" up &&
		ip -n "$1" link set lo up && ip -n "$1" addr add "$2.1/24" dev eth0 && ip -n "$1" link set eth0 up &&
		ip -n "$1" route add default via "$2.10"
}

# from NAMESPACE URL: what another host gets. Its errors are those of the connection alone.
from() { ip netns exec "$1" curl -sS -m 5 "$2"; }

# --- the service

# The flags of the test's container runtime: skiff's own, or the distribution's containerd with RUNTIME=debian.
runtime_flags=()

# prepare_runtime makes the container runtime of the test ready, with the image of the demo: no registry can be reached from here.
prepare_runtime() {
	if [ "${RUNTIME:-skiff}" = skiff ]; then
		expect "put the demo's image where skiff imports it from" install -D -m 0644 /opt/skiff/bin/demo.tar /var/lib/skiff/images/demo.tar
		return
	fi
	local sandbox
	runtime_flags=(--container-runtime-endpoint unix:///run/containerd/containerd.sock)
	must "install the distribution's containerd" install_packages
	say "$(containerd --version), $(runc --version | head -n 1)"
	sandbox=$(containerd config dump | sed -n "s/.*\(sandbox_image\|sandbox\) = [\"']\(.*\)[\"']/\2/p" | head -n 1)
	expect "import the sandbox image" ctr -n k8s.io images import /opt/skiff/bin/pause.tar
	expect "name it $sandbox" ctr -n k8s.io images tag --force localhost/skiff/pause:1 "$sandbox"
	expect "import the demo's image" ctr -n k8s.io images import /opt/skiff/bin/demo.tar
}

# install_server FLAGS...: skiff is a service, and its node is ready.
install_server() {
	must "skiff install server $*" skiff install server "${runtime_flags[@]}" "$@"
	eventually "the node is ready" node_ready
}

# uninstall BEFORE: nothing of skiff is left on the host.
uninstall() {
	expect "skiff uninstall" skiff uninstall
	cat /tmp/out
	expect "the host is as it was" unchanged "$1"
}

node_ready() { kubectl get nodes | grep -q ' Ready '; }
node_address() { kubectl get nodes -o jsonpath='{.items[0].status.addresses[?(@.type=="InternalIP")].address}'; }
node_condition() { kubectl get nodes -o jsonpath="{.items[0].status.conditions[?(@.type==\"$1\")].$2}"; }
# absent KIND [NAME]: the API server has none.
absent() {
	local found
	found=$(kubectl get "$@" --ignore-not-found -o name) && [ -z "$found" ]
}
default_account() { kubectl get serviceaccount default; }

# --- the demo

demo_applied() { kubectl apply --validate=false -f /opt/skiff/demo/demo.yaml; }
demo_ready() { [ "$(kubectl -n demo get deployment web -o jsonpath='{.status.readyReplicas}')" = 3 ]; }
demo_processes() { pgrep -x web | sort | tr '\n' ' '; }
demo_pods() { kubectl -n demo get pods -o jsonpath='{.items[*].metadata.name}'; }
node_port() { kubectl -n demo get service web -o jsonpath='{.spec.ports[0].nodePort}'; }

greets() { grep 'hello from skiff'; }
by_name() { kubectl -n demo exec deployment/web -- /web http://web.demo.svc.cluster.local | greets; }
by_node_port() { curl -sS -m 10 "http://$(node_address):$(node_port)/" | greets; }

# start_demo starts the demo and reaches it.
start_demo() {
	eventually "the demo is applied" demo_applied
	demo_works
}

# demo_works WHEN: the demo's pods are ready, and reached through their Service.
demo_works() {
	eventually "the demo's pods are ready${1:+ $1}" demo_ready
	eventually "a pod reaches the demo by the Service's name${1:+ $1}" by_name
	eventually "the host reaches the demo at the node port${1:+ $1}" by_node_port
}

# untouched DESCRIPTION BEFORE: the processes of the demo are those from before.
untouched() { same "$1 leaves the processes of pods alone" "$2" "$(demo_processes)"; }

# --- pods with data

# Pods run the programs of their host, because no image of a distribution can be had here.
readonly program_mounts='{name: usr, mountPath: /usr, readOnly: true}, {name: lib, mountPath: /lib, readOnly: true}, {name: lib64, mountPath: /lib64, readOnly: true}'
readonly program_volumes='{name: usr, hostPath: {path: /usr}}, {name: lib, hostPath: {path: /usr/lib}}, {name: lib64, hostPath: {path: /usr/lib64}}'

# data_applied: the StatefulSet data, of an ordinary user, which records its starts in a volume of the default class, on the disk and in memory.
data_applied() {
	local projected='{configMap: {name: settings}}, {secret: {name: secret}}, {serviceAccountToken: {path: token}}'
	projected+=', {downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}'
	kubectl apply --validate=false -f - <<YAML
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: secret}
stringData: {word: hidden}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: data}
spec:
  serviceName: data
  selector: {matchLabels: {app: data}}
  template:
    metadata: {labels: {app: data}}
    spec:
      terminationGracePeriodSeconds: 1
      securityContext: {runAsUser: 1000, runAsGroup: 1000, runAsNonRoot: true, fsGroup: 1000}
      containers:
      - name: c
        image: localhost/skiff/demo:1
        imagePullPolicy: IfNotPresent
        command: [/usr/bin/sh, -c, 'for d in claim disk memory; do echo started >>/\$d/starts || exit 1; done; exec /usr/bin/sleep infinity']
        volumeMounts: [$program_mounts, {name: claim, mountPath: /claim}, {name: disk, mountPath: /disk}, {name: memory, mountPath: /memory}, {name: projected, mountPath: /projected}]
      volumes: [$program_volumes, {name: disk, emptyDir: {}}, {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}, {name: projected, projected: {sources: [$projected]}}]
  volumeClaimTemplates:
  - metadata: {name: claim}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
YAML
}

data_ready() { [ "$(kubectl get statefulset data -o jsonpath='{.status.readyReplicas}')" = 1 ]; }
in_data() { kubectl exec data-0 -- "$@"; }
# starts VOLUME: how often the pod has started, as the volume has it.
starts() { in_data /usr/bin/cat "/$1/starts" | grep -c started; }
