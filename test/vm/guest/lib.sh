# Functions of the tests that run inside a virtual machine. The programs, the demo and the tests are in /opt/skiff.
export KUBECONFIG=/var/lib/skiff/admin.kubeconfig
failures=0
# Emulated machines are up to a hundred times slower than real ones.
limit=${LIMIT:-1800}

say() { echo "$(date +%T) $*"; }
fail() { say "FAIL $*"; failures=$((failures + 1)); }

# expect DESCRIPTION COMMAND...: the command succeeds.
expect() {
	local what=$1
	shift
	if "$@" >/tmp/out 2>&1; then say "ok   $what"; else fail "$what: $(tail -n 5 /tmp/out | tr '\n' ' ')"; fi
}

# eventually DESCRIPTION COMMAND...: the command succeeds within the time limit.
eventually() {
	local what=$1 end=$((SECONDS + limit))
	shift
	until "$@" >/tmp/out 2>&1; do
		if [ $SECONDS -ge $end ]; then
			fail "$what: $(tail -n 5 /tmp/out | tr '\n' ' ')"
			return 1
		fi
		sleep 2
	done
	say "ok   $what"
}

node_ready() { kubectl get nodes | grep -q ' Ready '; }
demo_ready() { [ "$(kubectl -n demo get deployment web -o jsonpath='{.status.readyReplicas}')" = 3 ]; }
demo_applied() { kubectl apply --validate=false -f /opt/skiff/demo/demo.yaml; }
demo_processes() { pgrep -x web | sort | tr '\n' ' '; }

# install_packages installs the distribution's containerd from packages on the disk. They depend on each other, and dpkg does not sort them.
install_packages() {
	dpkg -i /var/cache/extra/*.deb || dpkg --configure -a
	containerd --version && runc --version
}

# snapshot FILE: what a node changes on its host.
snapshot() {
	{
		ip -brief link show | awk '{print "link", $1}'
		ip route show table all | grep -v 'table local' | sed 's/^/route /'
		nft list tables | sed 's/^/nftables /'
		findmnt -rno TARGET | grep -v '^/proc/sys/fs/binfmt_misc\|^/run/user\|^/run/credentials' | sed 's/^/mount /'
		find /sys/fs/cgroup -maxdepth 1 -name '*kubepods*' | sed 's/^/cgroup /'
		systemctl list-units --all --plain --no-legend '*skiff*' 'kubepods*' 'cri-containerd*' | awk '{print "unit", $1}'
		ls /etc/systemd/system /etc/systemd/logind.conf.d /opt/cni/bin /usr/lib/cni /etc/cni/net.d /run/skiff /var/lib/skiff /var/lib/kubelet /var/log/pods /var/log/containers 2>/dev/null | sed '/^$/d; s/^/file /'
		ps -eo comm= | grep -E '^(skiff|containerd-shim)' | sed 's/^/process /'
	} | sort -u >"$1"
}

# unchanged BEFORE: the host is as it was.
unchanged() {
	snapshot /tmp/after
	diff "$1" /tmp/after
}
