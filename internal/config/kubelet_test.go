package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

func TestKubeletConfiguration(t *testing.T) {
	const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	for _, test := range []struct{ name, text, want string }{
		{"empty", head, ""},
		{"usual", head + "maxPods: 50\ncontainerLogMaxSize: 1Mi\nclusterDNS: [10.96.0.10]\n", ""},
		{"unknown field", head + "maxPodz: 50\n", "maxPodz"},
		{"another kind", "apiVersion: v1\nkind: Pod\n", "not a KubeletConfiguration"},
		{"size", head + "containerLogMaxSize: large\n", "containerLogMaxSize"},
		{"files", head + "containerLogMaxFiles: 1\n", "containerLogMaxFiles"},
		{"restart period too long", head + "crashLoopBackOff: {maxContainerRestartPeriod: 10m}\n", "maxContainerRestartPeriod"},
		{"restart period too short", head + "crashLoopBackOff: {maxContainerRestartPeriod: 1ms}\n", "maxContainerRestartPeriod"},
		{"time to shut down", head + "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n", ""},
		{"a second to shut down", head + "shutdownGracePeriod: 1s\nshutdownGracePeriodCriticalPods: 1s\n", ""},
		{"too much for critical pods", head + "shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 30s\n", "shutdownGracePeriodCriticalPods 30s must be <= shutdownGracePeriod 10s"},
		{"less than a second to shut down", head + "shutdownGracePeriod: 1ms\n", "shutdownGracePeriod 1ms must be either zero or otherwise >= 1 sec"},
		{"less than no time to shut down", head + "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: -1s\n", "shutdownGracePeriodCriticalPods -1s must be either zero or otherwise >= 1 sec"},
		{"time to shut down in two ways", head + "shutdownGracePeriod: 30s\nshutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 2}]\n", "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time"},
		{"time to shut down by priority", head + "shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 2}]\n", ""},
		{"quota period", head + "cpuCFSQuotaPeriod: 2s\n", "cpuCFSQuotaPeriod: 2s is not between 1ms and 1s, inclusive"},
		{"port", head + "port: 70000\n", "port: 70000 is not between 1 and 65535, inclusive"},
		{"health port", head + "healthzPort: -1\n", "healthzPort: -1"},
		{"no health port", head + "healthzPort: 0\n", ""},
		{"threshold", head + "imageGCHighThresholdPercent: 101\n", "imageGCHighThresholdPercent: 101"},
		{"age of images", head + "imageMaximumGCAge: 1m\n", "imageMaximumGCAge: 1m0s must be greater than imageMinimumGCAge 2m0s"},
		{"no pulls", head + "maxParallelImagePulls: 0\n", "maxParallelImagePulls: 0"},
		{"pulls in parallel", head + "maxParallelImagePulls: 3\n", ""},
		{"pulls in parallel and in series", head + "maxParallelImagePulls: 3\nserializeImagePulls: true\n", "maxParallelImagePulls: must not be greater than 1"},
		{"taint", head + "registerWithTaints: [{key: a, effect: Never}]\n", `registerWithTaints: invalid effect "Never"`},
		{"reserved", head + "systemReserved: {cpu: lots}\n", "systemReserved.cpu: quantities must match"},
		{"enforced for the system", head + "enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /system.slice\n", ""},
		{"enforced for a system without a cgroup", head + "enforceNodeAllocatable: [system-reserved-compressible]\n", "systemReservedCgroup: must be specified"},
		{"enforced for daemons without a cgroup", head + "enforceNodeAllocatable: [kube-reserved]\n", "kubeReservedCgroup: must be specified"},
		{"enforced for somebody", head + "enforceNodeAllocatable: [users]\n", `enforceNodeAllocatable: "users" is not pods`},
		{"reserved CPUs and a cgroup", head + "reservedSystemCPUs: \"0\"\nkubeReservedCgroup: /x\n", "reservedSystemCPUs: cannot be used with"},
		{"enforced for nobody", head + "enforceNodeAllocatable: []\n", ""},
		{"kernel parameters", head + "protectKernelDefaults: true\n", ""},
		{"enforced for nobody and pods", head + "enforceNodeAllocatable: [none, pods]\n", "may not contain additional enforcements"},
		{"swap", head + "memorySwap: {swapBehavior: UnlimitedSwap}\n", "memorySwap.swapBehavior"},
		{"cgroup driver", head + "cgroupDriver: systemd\nmemoryReservationPolicy: TieredReservation\nmemoryThrottlingFactor: 0.9\n", ""},
		{"unknown cgroup driver", head + "cgroupDriver: openrc\n", `cgroupDriver: "openrc" is not cgroupfs or systemd`},
		{"throttling factor", head + "memoryThrottlingFactor: 1.5\n", "memoryThrottlingFactor: 1.5 must be greater than 0"},
		{"memory policy", head + "memoryReservationPolicy: Hard\n", `memoryReservationPolicy: "Hard" is not None or TieredReservation`},
		{"log directory", head + "podLogsDir: logs\n", "podLogsDir"},
		{"TLS version", head + "tlsMinVersion: VersionTLS11\n", `tlsMinVersion: "VersionTLS11" is not VersionTLS12 or VersionTLS13`},
		{"cipher suite", head + "tlsCipherSuites: [TLS_RSA_WITH_RC4_128_SHA]\n", "tlsCipherSuites"},
		{"key exchange", head + "tlsCurvePreferences: [100000]\n", "tlsCurvePreferences"},
		{"bind address", head + "healthzBindAddress: localhost\n", "healthzBindAddress"},
		{"duplicate field", head + "maxPods: 1\nmaxPods: 2\n", `key "maxPods" already set in map`},
		{"unknown nested field", head + "memorySwap: {behavior: NoSwap}\n", `unknown field "memorySwap.behavior"`},
		{"field without effect", head + "runOnce: true\n", "runOnce: true is not supported"},
		{"feature gates", head + "featureGates: {CPUManagerPolicyAlphaOptions: true, PodLevelResources: true}\n", ""},
		{"unknown feature gate", head + "featureGates: {A: true}\n", "featureGates: unrecognized feature gate: A"},
		{"feature gate without effect", head + "featureGates: {PodLevelResourceManagers: true}\n", "featureGates: cannot set feature gate PodLevelResourceManagers to true: skiff supports only its default, false"},
		{"exclusive CPUs", head + "cpuManagerPolicy: static\nreservedSystemCPUs: 0-1,4\nmemoryManagerPolicy: Static\ntopologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\n", ""},
		{"CPU policy", head + "cpuManagerPolicy: dynamic\n", `cpuManagerPolicy: "dynamic" must be one of: ["none" "static"]`},
		{"memory policy for NUMA nodes", head + "memoryManagerPolicy: BestEffort\n", `memoryManagerPolicy: "BestEffort" must be one of: ["None" "Static"]`},
		{"topology policy", head + "topologyManagerPolicy: strict\n", `topologyManagerPolicy: "strict" must be one of: ["none" "best-effort" "restricted" "single-numa-node"]`},
		{"topology scope", head + "topologyManagerScope: node\n", `topologyManagerScope: "node" must be one of: ["container" "pod"]`},
		{"reserved CPUs", head + "reservedSystemCPUs: one\n", "reservedSystemCPUs: unable to parse one"},
		{"reserved memory", head + "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi, hugepages-2Mi: 2Mi}}]\n", ""},
		{"reserved CPU as memory", head + "reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]\n", `the limit type "cpu" for NUMA node 0 is not supported, only [memory hugepages-<HugePageSize>] is accepted`},
		{"no reserved memory", head + "reservedMemory: [{numaNode: 0, limits: {memory: 0}}]\n", `reserved memory may not be zero for NUMA node 0 and resource "memory"`},
		{"memory reserved twice", head + "reservedMemory: [{numaNode: 0, limits: {memory: 1}}, {numaNode: 0, limits: {memory: 1}}]\n", `the reserved memory has a duplicate value for NUMA node 0 and resource "memory"`},
		{"nested field without effect", head + "authorization: {mode: AlwaysAllow}\n", "authorization.mode: AlwaysAllow is not supported"},
		{"harmless field", head + "kubeAPIQPS: 10\n", ""},
		{"OOM score", head + "oomScoreAdj: 1001\n", "oomScoreAdj: 1001 is not between -1000 and 1000, inclusive"},
		{"DNS", head + "clusterDNS: [kube-dns]\n", "clusterDNS"},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "kubelet.yaml")
			if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := (&Node{ConfigFile: file}).KubeletConfiguration()
			checkError(t, err, test.want)
		})
	}
	settings, err := (&Node{}).KubeletConfiguration()
	if err != nil {
		t.Fatal(err)
	}
	if settings.MaxPods != 110 || settings.CrashLoopBackOff.MaxContainerRestartPeriod.Duration != 5*time.Minute || settings.EvictionHard["memory.available"] != "100Mi" {
		t.Errorf("defaults %+v", settings)
	}
}

func TestKubeletFlags(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--kubeconfig=k"}, ""},
		{nil, "--kubeconfig"},
		{[]string{"--kubeconfig=k", "--root-dir=relative"}, "--root-dir"},
		{[]string{"--kubeconfig=k", "--hostname-override=Not_A_Name"}, "--hostname-override"},
		{[]string{"--kubeconfig=k", "--node-ip=nowhere"}, "--node-ip"},
		{[]string{"--kubeconfig=k", "--node-ip=10.0.0.1,fd00::1"}, ""},
		{[]string{"--kubeconfig=k", "--node-labels=a"}, "--node-labels"},
		{[]string{"--kubeconfig=k", "--node-labels=disk=fast,node.kubernetes.io/x=,topology.kubernetes.io/zone=z"}, ""},
		{[]string{"--kubeconfig=k", "--node-labels=a b=c"}, `--node-labels: invalid key "a b"`},
		{[]string{"--kubeconfig=k", "--node-labels=a=-"}, `--node-labels: invalid value "-" of a`},
		{[]string{"--kubeconfig=k", "--node-labels=node-role.kubernetes.io/worker="}, `--node-labels: a node may not give itself the label "node-role.kubernetes.io/worker"`},
		{[]string{"--kubeconfig=k", "--register-with-taints=a=b:NoSchedule"}, ""},
		{[]string{"--kubeconfig=k", "--register-with-taints=a=b"}, "--register-with-taints"},
	} {
		c := DefaultKubelet()
		t.Run(strings.Join(test.args, " "), func(t *testing.T) { checkError(t, parse(&c, test.args...), test.want) })
	}
}

// A node has its kubelet's directory and logs where other programs expect them, unless its data directory is another one.
func TestKubeletDir(t *testing.T) {
	other := t.TempDir()
	for _, row := range []struct{ rootDir, dataDir, want, logs string }{
		{"", defaultDataDir, "/var/lib/kubelet", "/var/log/pods"},
		{"", defaultDataDir + "/", "/var/lib/kubelet", "/var/log/pods"},
		{"", other, other + "/kubelet", other + "/kubelet/logs"},
		{"/srv/kubelet", defaultDataDir, "/srv/kubelet", "/srv/kubelet/logs"},
		{"/var/lib/kubelet", other, "/var/lib/kubelet", "/var/log/pods"},
	} {
		n := Node{RootDir: row.rootDir}
		if got := n.KubeletDir(row.dataDir); got != row.want || PodLogsDir(got) != row.logs {
			t.Errorf("--root-dir=%s --data-dir=%s: %s and %s, want %s and %s", row.rootDir, row.dataDir, got, PodLogsDir(got), row.want, row.logs)
		}
	}
	kubelet := DefaultKubelet()
	if kubelet.RootDir != "/var/lib/kubelet" || kubelet.DataDir() != defaultDataDir {
		t.Errorf("skiff kubelet has %s and %s", kubelet.RootDir, kubelet.DataDir())
	}
	if kubelet.RootDir = "/srv/node/kubelet"; kubelet.DataDir() != "/srv/node" {
		t.Errorf("skiff kubelet has %s and %s", kubelet.RootDir, kubelet.DataDir())
	}
	server := DefaultServer()
	checkError(t, parse(&server, "--root-dir=relative"), "--root-dir")
}

// The TLS settings of a KubeletConfiguration decide which clients the kubelet's server accepts.
func TestNodeServerTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"node"}, NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	const aes128, aes256 = tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
	for _, row := range []struct {
		name     string
		settings kubeletconfig.KubeletConfiguration
		version  uint16 // the client's highest
		suite    uint16 // the client's only one of TLS 1.2
		accepted bool
	}{
		{"default", kubeletconfig.KubeletConfiguration{}, tls.VersionTLS12, aes128, true},
		{"version 1.1", kubeletconfig.KubeletConfiguration{}, tls.VersionTLS11, aes128, false},
		{"tlsMinVersion, older client", kubeletconfig.KubeletConfiguration{TLSMinVersion: "VersionTLS13"}, tls.VersionTLS12, aes128, false},
		{"tlsMinVersion", kubeletconfig.KubeletConfiguration{TLSMinVersion: "VersionTLS13"}, tls.VersionTLS13, aes128, true},
		{"tlsCipherSuites, other suite", kubeletconfig.KubeletConfiguration{TLSCipherSuites: []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}}, tls.VersionTLS12, aes128, false},
		{"tlsCipherSuites", kubeletconfig.KubeletConfiguration{TLSCipherSuites: []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}}, tls.VersionTLS12, aes256, true},
	} {
		server, err := NodeServerTLS(&row.settings)
		if err != nil {
			t.Fatal(err)
		}
		server.Certificates = []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}}
		ours, theirs := net.Pipe()
		go func() {
			defer ours.Close()
			_ = tls.Server(ours, server).HandshakeContext(t.Context()) // the client reports the failure
		}()
		roots := x509.NewCertPool()
		parsed, err := x509.ParseCertificate(certificate)
		if err != nil {
			t.Fatal(err)
		}
		roots.AddCert(parsed)
		client := tls.Client(theirs, &tls.Config{
			ServerName: "node", RootCAs: roots, MinVersion: tls.VersionTLS10, MaxVersion: row.version, CipherSuites: []uint16{row.suite},
		})
		if err := client.HandshakeContext(t.Context()); (err == nil) != row.accepted {
			t.Errorf("%s: %v", row.name, err)
		}
		theirs.Close()
	}
}
