package config

import (
	_ "embed"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// upstreamFlags are the flags of kube-apiserver 1.37.1, one per line. A test in test/e2e compares them with the program's help.
//
//go:embed testdata/kube-apiserver-flags.txt
var upstreamFlags string

// The reasons for which flags of kube-apiserver are not flags of skiff.
const (
	noEmulation  = "skiff serves one Kubernetes version"
	ownLogs      = "skiff's logs are configured by --log-level"
	alwaysCached = "every resource is in the cache, which has no size to configure"
	onePeer      = "API servers do not proxy requests to one another"
	allMetrics   = "all metrics are served, with the labels they have"
	notMeasured  = "the metric is collected when it is read"
	noLeaders    = "skiff does not coordinate leader election"
)

// absentFlags are the flags of kube-apiserver that skiff apiserver does not have, with the reason.
var absentFlags = map[string]string{
	"admission-control":                           "upstream has deprecated it; --enable-admission-plugins and --disable-admission-plugins replace it",
	"allow-metric-labels":                         allMetrics,
	"allow-metric-labels-manifest":                allMetrics,
	"allow-privileged":                            "privileged pods are allowed or refused by the admission plugin PodSecurity",
	"cert-dir":                                    "certificates are in pki below --data-dir",
	"coordinated-leadership-lease-duration":       noLeaders,
	"coordinated-leadership-renew-deadline":       noLeaders,
	"coordinated-leadership-retry-period":         noLeaders,
	"debug-socket-path":                           "profiles are served at /debug/pprof/ to authorized users only",
	"delete-collection-workers":                   "a collection is deleted in one pass over the cache",
	"disabled-metrics":                            allMetrics,
	"emulated-version":                            noEmulation,
	"emulation-forward-compatible":                noEmulation,
	"enable-aggregator-routing":                   "requests to Services go to their endpoints, never to cluster IPs",
	"enable-garbage-collector":                    "the garbage collector is one of the controllers",
	"enable-logs-handler":                         "upstream has deprecated it; skiff does not serve the files in /var/log",
	"endpoint-reconciler-type":                    "the endpoints of the service kubernetes are the advertised address",
	"etcd-count-metric-poll-period":               notMeasured,
	"etcd-db-metric-poll-interval":                notMeasured,
	"etcd-healthcheck-timeout":                    "the check of etcd ends with the request for /readyz or /livez",
	"etcd-readycheck-timeout":                     "the check of etcd ends with the request for /readyz or /livez",
	"etcd-servers-overrides":                      "one watch of one store feeds the whole cache, whose revisions are those of that store",
	"help":                                        "the command has it",
	"kubelet-timeout":                             "requests to kubelets last as long as the client's request",
	"kubernetes-service-node-port":                "the service kubernetes has type ClusterIP",
	"lease-reuse-duration-seconds":                "leases of etcd are shared by objects that expire in the same minute",
	"livez-grace-period":                          "unfinished post-start hooks never fail /livez",
	"log-flush-frequency":                         ownLogs,
	"log-json-info-buffer-size":                   ownLogs,
	"log-json-split-stream":                       ownLogs,
	"log-text-info-buffer-size":                   ownLogs,
	"log-text-split-stream":                       ownLogs,
	"logging-format":                              ownLogs,
	"max-connection-bytes-per-sec":                "connections are not throttled",
	"min-compatibility-version":                   noEmulation,
	"peer-advertise-ip":                           onePeer,
	"peer-advertise-port":                         onePeer,
	"peer-ca-file":                                onePeer,
	"runtime-config-emulation-forward-compatible": noEmulation,
	"service-account-signing-endpoint":            "tokens are signed with a key file only",
	"show-hidden-metrics-for-version":             allMetrics,
	"shutdown-send-retry-after":                   "the listener is closed before the last requests finish",
	"storage-backend":                             "the store is etcd",
	"storage-initialization-timeout":              "the server is ready when the cache is loaded, however long that takes",
	"storage-media-type":                          "objects are stored in protobuf, custom resources in JSON",
	"v":                                           ownLogs,
	"version":                                     "skiff --version shows it",
	"vmodule":                                     ownLogs,
	"watch-cache":                                 alwaysCached,
	"watch-cache-sizes":                           alwaysCached,
}

// Every flag of kube-apiserver is a flag of skiff apiserver with the same name, or is absent for a reason.
func TestUpstreamFlags(t *testing.T) {
	c := DefaultAPIServer()
	var groups FlagGroups
	c.Flags(&groups)
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	groups.AddTo(fs)
	known := map[string]bool{}
	for _, name := range strings.Fields(upstreamFlags) {
		known[name] = true
		present, reason := fs.Lookup(name) != nil, absentFlags[name]
		switch {
		case present && reason != "":
			t.Errorf("--%s exists, but is listed as absent: %s", name, reason)
		case !present && reason == "":
			t.Errorf("--%s of kube-apiserver is neither a flag nor listed as absent", name)
		}
	}
	for name := range absentFlags {
		if !known[name] {
			t.Errorf("--%s is listed as absent, but kube-apiserver does not have it", name)
		}
	}
	if len(known) < 150 {
		t.Errorf("the list of upstream's flags has only %d lines", len(known))
	}
}
