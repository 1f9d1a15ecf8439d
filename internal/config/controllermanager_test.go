package config

import (
	"flag"
	"io"
	"strings"
	"testing"
)

func TestControllerManagerValidate(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want string // part of the error; empty: valid
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
		{"masks of both sorts", []string{"--cluster-cidr=10.42.0.0/16", "--node-cidr-mask-size=24", "--node-cidr-mask-size-ipv4=24"}, "--node-cidr-mask-size"},
		{"nothing to allocate", []string{"--allocate-node-cidrs"}, "--allocate-node-cidrs: there is nothing to give without --cluster-cidr"},
		{"too many pieces", []string{"--cluster-cidr=10.0.0.0/4"}, "has bits beyond its mask"},
		{"many pieces of IPv4", []string{"--cluster-cidr=10.0.0.0/8", "--node-cidr-mask-size=26"}, ""},
		{"too many pieces of IPv6", []string{"--cluster-cidr=fd00::/40"}, "--cluster-cidr: fd00::/40 cannot be cut into nodes' ranges of /64"},
		{"accounts", []string{"--use-service-account-credentials"}, ""},
		{"pieces larger than the whole", []string{"--cluster-cidr=10.42.0.0/25"}, "--cluster-cidr: 10.42.0.0/25 cannot be cut into nodes' ranges of /24"},
		{"service range", []string{"--service-cluster-ip-range=10.96.0.0/12,10.0.0.0/16"}, "--service-cluster-ip-range: two ranges must be of different IP families"},
		{"no grace", []string{"--node-monitor-grace-period=0s"}, "--node-monitor-grace-period"},
		{"negative rate", []string{"--node-eviction-rate=-1"}, "--node-eviction-rate"},
		{"share above one", []string{"--unhealthy-zone-threshold=2"}, "--unhealthy-zone-threshold"},
		{"no period", []string{"--horizontal-pod-autoscaler-sync-period=0s"}, "--horizontal-pod-autoscaler-sync-period"},
		{"too many endpoints", []string{"--max-endpoints-per-slice=1001"}, "--max-endpoints-per-slice: 1001 is not from 1 to 1000"},
		{"signing certificate alone", []string{"--cluster-signing-cert-file=c"}, "--cluster-signing-cert-file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := DefaultControllerManager()
			fs := flag.NewFlagSet("controller-manager", flag.ContinueOnError)
			fs.SetOutput(io.Discard)
			c.Flags(fs)
			if err := fs.Parse(append([]string{"--kubeconfig=k"}, tt.args...)); err != nil {
				t.Fatal(err)
			}
			err := c.Validate()
			if tt.want == "" && err != nil {
				t.Fatalf("unexpected error: %v", err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Fatalf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestMask(t *testing.T) {
	for _, tt := range []struct {
		c         PodAddresses
		four, six int
	}{
		{PodAddresses{}, 24, 64},
		{PodAddresses{NodeMask: 20}, 20, 20},
		{PodAddresses{NodeMask4: 25, NodeMask6: 80}, 25, 80},
	} {
		if four, six := tt.c.Mask(true), tt.c.Mask(false); four != tt.four || six != tt.six {
			t.Errorf("%+v: %d and %d, want %d and %d", tt.c, four, six, tt.four, tt.six)
		}
	}
}
