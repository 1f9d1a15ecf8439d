package config

import "testing"

func TestServerValidate(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want string // substring of the error; empty: valid
	}{
		{"defaults", nil, ""},
		{"dual stack", []string{"--service-cidr=10.96.0.0/16,fd00::/108"}, ""},
		{"relative directory", []string{"--data-dir=state"}, `--data-dir: "state" is not an absolute path`},
		{"bad address", []string{"--bind-address=everywhere"}, "--bind-address"},
		{"same family twice", []string{"--service-cidr=10.96.0.0/16,10.97.0.0/16"}, "different IP families"},
		{"host bits", []string{"--service-cidr=10.96.0.1/16"}, "has host bits set; did you mean 10.96.0.0/16?"},
		{"node ports reversed", []string{"--service-node-port-range=9-5"}, "--service-node-port-range"},
		{"key without certificate", []string{"--etcd-keyfile=k"}, "--etcd-certfile"},
		{"unknown component", []string{"--without=kubelet"}, `--without: "kubelet" is not one of controllers, scheduler`},
		{"unknown part", []string{"--disable=network"}, `--disable: "network" is not one of dns`},
		{"without DNS", []string{"--disable=dns", "--service-cidr=10.96.0.0/29"}, ""},
		{"no address for DNS", []string{"--service-cidr=10.96.0.0/29"}, "--service-cidr: 10.96.0.0/29 has no tenth address for the cluster's DNS"},
		{"smallest CIDR with DNS", []string{"--service-cidr=10.96.0.0/28"}, ""},
		{"network backend", []string{"--network-backend=host-gw"}, ""},
		{"unknown network backend", []string{"--network-backend=ipip"}, `--network-backend: "ipip" is not one of vxlan, host-gw, wireguard, none`},
		{"audit mode", []string{"--audit-log-path=-", "--audit-log-mode=sometimes"}, "--audit-log-mode"},
		{"audit format", []string{"--audit-log-path=-", "--audit-log-format=xml"}, "--audit-log-format"},
		{"audit batches", []string{"--audit-webhook-config-file=f", "--audit-webhook-batch-throttle-qps=0"}, "--audit-webhook-batch-throttle-qps"},
		{"audit settings that are not used", []string{"--audit-log-mode=sometimes"}, ""},
		{"no concurrency to share", []string{"--max-requests-inflight=0", "--max-mutating-requests-inflight=0"}, "--max-requests-inflight: the sum with"},
		{"no limit at all", []string{"--max-requests-inflight=0", "--max-mutating-requests-inflight=0", "--enable-priority-and-fairness=false"}, ""},
		{"HTTP/2 of net/http", []string{"--http2-server=go"}, ""},
		{"unknown HTTP/2 server", []string{"--http2-server=nginx"}, `--http2-server: "nginx" is not one of skiff, go`},
		{"small quota", []string{"--etcd-quota-backend-bytes=1024"}, "--etcd-quota-backend-bytes: must be at least 8388608"},
		{"no request timeout", []string{"--request-timeout=0"}, "--request-timeout: must be positive"},
		{"negative shutdown delay", []string{"--shutdown-delay-duration=-1s"}, "--shutdown-delay-duration: must not be negative"},
		{"negative watch grace period", []string{"--shutdown-watch-termination-grace-period=-1s"}, "--shutdown-watch-termination-grace-period: must not"},
		{"negative streams", []string{"--http2-max-streams-per-connection=-1"}, "--http2-max-streams-per-connection: must not be negative"},
		{"node without a node", []string{"--node-name=a"}, "--no-node: the flags of the node have no effect without a node"},
		{"node", []string{"--no-node=false", "--node-name=a"}, ""},
		{"first server", []string{"--cluster-init"}, ""},
		{"joining server", []string{"--join=https://10.0.0.1:6443", "--join-token=t"}, ""},
		{"join by http", []string{"--join=http://10.0.0.1:6443"}, "--join: \"http://10.0.0.1:6443\" is not an https URL"},
		{"token without join", []string{"--join-token=t"}, "--join-token: requires --join"},
		{"two tokens", []string{"--join=https://10.0.0.1:6443", "--join-token=t", "--join-token-file=f"}, "--join-token-file: cannot be used with --join-token"},
		{"first server that joins", []string{"--cluster-init", "--join=https://10.0.0.1:6443"}, "cannot be used together"},
		{"members of an external etcd", []string{"--cluster-init", "--etcd-servers=https://10.0.0.5:2379"}, "--etcd-servers: an external etcd has its own members"},
		{"peer port", []string{"--cluster-init", "--etcd-peer-port=0"}, "--etcd-peer-port: 0 is not a port"},
		{"negative limit", []string{"--max-requests-inflight=-1"}, "--max-requests-inflight"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := DefaultServer()
			checkError(t, parse(&c, append([]string{"--no-node"}, tt.args...)...), tt.want)
		})
	}
}

func TestServerRuns(t *testing.T) {
	c := DefaultServer()
	if err := parse(&c, "--without=controllers,policy"); err != nil {
		t.Fatal(err)
	}
	for component, want := range map[string]bool{ComponentControllers: false, ComponentScheduler: true, ComponentProxy: true, ComponentPolicy: false} {
		if c.Runs(component) != want {
			t.Errorf("--without=controllers,policy: %s runs: %v", component, !want)
		}
	}
}

// The API server alone has upstream's name of the service CIDR, and no flags of nodes.
func TestAPIServerFlags(t *testing.T) {
	c := DefaultAPIServer()
	if err := parse(&c, "--service-cluster-ip-range=10.0.0.0/16"); err != nil || c.ServiceCIDR != "10.0.0.0/16" {
		t.Errorf("service CIDR %q, error %v", c.ServiceCIDR, err)
	}
	checkError(t, parse(&c, "--service-cluster-ip-range=10.0.0.1/16"), "--service-cluster-ip-range: 10.0.0.1/16 has host bits set")
	checkError(t, parse(&c, "--no-node"), "unknown flag: --no-node")
}
