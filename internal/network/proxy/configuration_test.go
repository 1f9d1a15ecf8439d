package proxy

import (
	"strings"
	"testing"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"
)

const configurationHead = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

func TestConfiguration(t *testing.T) {
	// As kubeadm writes it for the nftables mode.
	c, err := ParseConfiguration([]byte(configurationHead + `
mode: nftables
bindAddress: 0.0.0.0
clientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0, burst: 0, contentType: "", acceptContentTypes: ""}
clusterCIDR: 10.244.0.0/16,fd00:10::/56
conntrack: {maxPerCore: null, min: null, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null}
detectLocalMode: ""
hostnameOverride: "n1"
iptables: {masqueradeBit: null, masqueradeAll: false, syncPeriod: 30s}
ipvs: {excludeCIDRs: null, scheduler: "", strictARP: false}
nftables: {masqueradeBit: 7, masqueradeAll: true, minSyncPeriod: 100ms, syncPeriod: 0s}
nodePortAddresses: ["primary", "10.0.0.0/8"]
oomScoreAdj: null
`))
	if err != nil {
		t.Fatal(err)
	}
	SetDefaults(c)
	if err := Validate(c); err != nil {
		t.Fatal(err)
	}
	if c.HealthzBindAddress != "0.0.0.0:10256" || c.MetricsBindAddress != "127.0.0.1:10249" || c.NFTables.SyncPeriod.Duration != 30*time.Second || *c.NFTables.MasqueradeBit != 7 {
		t.Errorf("%+v", c)
	}
	local, byNode, err := LocalTrafficOf(c)
	if err != nil || byNode || len(local.CIDRs) != 2 {
		t.Errorf("%+v, %v, %v", local, byNode, err)
	}
	if warnings := Warnings(c); len(warnings) != 1 || !strings.HasPrefix(warnings[0], "iptables has no effect") {
		t.Errorf("%q", warnings)
	}
}

func TestConfigurationErrors(t *testing.T) {
	for text, want := range map[string]string{
		"mode: iptables":                                "mode: iptables is not supported",
		"featureGates: {X: true}":                       "featureGates",
		"unknown: 1":                                    `unknown field "unknown"`,
		"healthzBindAddress: here":                      "healthzBindAddress",
		"nodePortAddresses: [localhost]":                "node ports are not served on loopback addresses",
		"nodePortAddresses: [everywhere]":               "neither a CIDR nor one of primary, all",
		"detectLocalMode: BridgeInterface":              "detectLocal.bridgeInterface",
		"detectLocalMode: InterfaceNamePrefix":          "detectLocal.interfaceNamePrefix",
		"detectLocalMode: Other":                        "detectLocalMode",
		"clusterCIDR: 10.0.0.0/8,10.0.0.0/9":            "at most one CIDR of each family",
		"nftables: {masqueradeBit: 32}":                 "nftables.masqueradeBit",
		"nftables: {syncPeriod: 1s, minSyncPeriod: 2s}": "nftables.syncPeriod",
		"oomScoreAdj: 2000":                             "oomScoreAdj",
		"conntrack: {min: -1}":                          "conntrack.maxPerCore",
		"bindAddress: x":                                "bindAddress",
	} {
		c, err := ParseConfiguration([]byte(configurationHead + text + "\n"))
		if err == nil {
			SetDefaults(c)
			err = Validate(c)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := ParseConfiguration([]byte("apiVersion: v1\nkind: Pod\n")); err == nil {
		t.Error("a Pod was accepted")
	}
	if c := (&v1alpha1.KubeProxyConfiguration{BindAddress: "::"}); true {
		SetDefaults(c)
		if c.HealthzBindAddress != "[::]:10256" || c.MetricsBindAddress != "[::1]:10249" {
			t.Errorf("%s, %s", c.HealthzBindAddress, c.MetricsBindAddress)
		}
	}
}
