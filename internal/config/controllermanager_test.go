package config

import "testing"

func TestControllerManagerValidate(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want string // substring of the error; empty: valid
	}{
		{"defaults", nil, ""},
		{"no kubeconfig", []string{"--kubeconfig="}, "--kubeconfig"},
		{"no port", []string{"--secure-port=0"}, ""},
		{"bad address", []string{"--bind-address=everywhere"}, `--bind-address: "everywhere" is not an IP address`},
		{"bad port", []string{"--secure-port=70000"}, "--secure-port: 70000 is not a port"},
		{"certificate without key", []string{"--tls-cert-file=c"}, "--tls-cert-file"},
		{"pod addresses", []string{"--allocate-node-cidrs", "--cluster-cidr=10.42.0.0/16", "--node-cidr-mask-size=20"}, ""},
		{"two families", []string{"--allocate-node-cidrs", "--cluster-cidr=10.42.0.0/16,fd00::/56", "--node-cidr-mask-size-ipv6=72"}, ""},
		{"one mask for two families", []string{"--cluster-cidr=10.42.0.0/16,fd00::/56", "--node-cidr-mask-size=24"}, "--node-cidr-mask-size"},
		{"masks of both kinds", []string{"--cluster-cidr=10.42.0.0/16", "--node-cidr-mask-size=24", "--node-cidr-mask-size-ipv4=24"}, "--node-cidr-mask-size"},
		{"nothing to allocate", []string{"--allocate-node-cidrs"}, "--allocate-node-cidrs: requires --cluster-cidr"},
		{"too many pod CIDRs", []string{"--cluster-cidr=10.0.0.0/4"}, "has host bits set"},
		{"many IPv4 pod CIDRs", []string{"--cluster-cidr=10.0.0.0/8", "--node-cidr-mask-size=26"}, ""},
		{"too many pod CIDRs of IPv6", []string{"--cluster-cidr=fd00::/40"}, "--cluster-cidr: fd00::/40 cannot be divided into pod CIDRs of /64"},
		{"accounts", []string{"--use-service-account-credentials"}, ""},
		{"pod CIDRs larger than the range", []string{"--cluster-cidr=10.42.0.0/25"}, "--cluster-cidr: 10.42.0.0/25 cannot be divided into pod CIDRs of /24"},
		{"service range", []string{"--service-cluster-ip-range=10.96.0.0/12,10.0.0.0/16"}, "--service-cluster-ip-range: two CIDRs must be of different IP families"},
		{"no grace", []string{"--node-monitor-grace-period=0s"}, "--node-monitor-grace-period"},
		{"negative rate", []string{"--node-eviction-rate=-1"}, "--node-eviction-rate"},
		{"share above one", []string{"--unhealthy-zone-threshold=2"}, "--unhealthy-zone-threshold"},
		{"no period", []string{"--horizontal-pod-autoscaler-sync-period=0s"}, "--horizontal-pod-autoscaler-sync-period"},
		{"too many endpoints", []string{"--max-endpoints-per-slice=1001"}, "--max-endpoints-per-slice: 1001 is not between 1 and 1000"},
		{"signing certificate alone", []string{"--cluster-signing-cert-file=c"}, "--cluster-signing-cert-file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := DefaultControllerManager()
			checkError(t, parse(&c, append([]string{"--kubeconfig=k"}, tt.args...)...), tt.want)
		})
	}
}

func TestMaskSize(t *testing.T) {
	for _, tt := range []struct {
		c          PodCIDRs
		ipv4, ipv6 int
	}{
		{PodCIDRs{}, 24, 64},
		{PodCIDRs{NodeMaskSize: 20}, 20, 20},
		{PodCIDRs{NodeMaskSizeIPv4: 25, NodeMaskSizeIPv6: 80}, 25, 80},
	} {
		if ipv4, ipv6 := tt.c.MaskSize(true), tt.c.MaskSize(false); ipv4 != tt.ipv4 || ipv6 != tt.ipv6 {
			t.Errorf("%+v: %d and %d, want %d and %d", tt.c, ipv4, ipv6, tt.ipv4, tt.ipv6)
		}
	}
}
