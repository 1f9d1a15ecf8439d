package config

import "skiff/internal/configfile"

// KubeletUnused are the fields of a KubeletConfiguration that have no effect. A file that sets one of them is refused, unless the setting is
// harmless or describes what skiff does anyway. docs/configuration.md is made from this list.
var KubeletUnused = []configfile.Unused{
	{Path: "readOnlyPort", Reason: "skiff has no port without authentication"},
	{Path: "authentication.webhook.enabled", Accepted: []string{"true"}, Reason: "skiff always accepts bearer tokens that the API server accepts"},
	{Path: "authorization.mode", Accepted: []string{"Webhook"}, Reason: "requests to the kubelet are always authorized by the API server"},
	{Path: "enableDebuggingHandlers", Accepted: []string{"true"}, Reason: "logs, exec, attach and port-forward are always served"},
	{Path: "streamingConnectionIdleTimeout", Reason: "skiff does not close idle streaming connections"},

	{Path: "kubeletCgroups", Reason: "skiff stays in the cgroup in which it is started"},
	{Path: "systemCgroups", Reason: "skiff does not move other processes between cgroups"},
	{Path: "cgroupsPerQOS", Accepted: []string{"true"}, Reason: "pods are always in the cgroup of their QoS class"},
	{Path: "qosReserved", Reason: "skiff does not reserve memory for QoS classes"},
	{Path: "localStorageCapacityIsolation", Accepted: []string{"true"}, Reason: "limits of ephemeral storage are always enforced"},
	{Path: "defaultPodSysctls", Reason: "skiff sets only the sysctls of the pod"},
	{Path: "userNamespaces.idsPerPod", Accepted: []string{"65536"}, Reason: "a pod with a user namespace has 65536 IDs"},

	{Path: "runtimeRequestTimeout", Accepted: []string{"2m0s"}, Reason: "requests to the container runtime time out after two minutes"},
	{Path: "imageServiceEndpoint", Reason: "images are pulled through containerRuntimeEndpoint"},
	{Path: "podCIDR", Reason: "the pod CIDRs of a node are those of its Node object"},
	{Path: "runOnce", Reason: "skiff does not exit after it has started the static pods"},
	{Path: "enableControllerAttachDetach", Accepted: []string{"true"}, Reason: "the kubelet does not attach volumes itself"},
	{Path: "volumePluginDir", Accepted: []string{"/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"}, Reason: "skiff does not run FlexVolume plugins"},
	{Path: "enableSystemLogQuery", Accepted: []string{"false"}, Reason: "skiff serves the log files of the host, but does not query its journal"},

	{Path: "syncFrequency", Harmless: true, Reason: "a pod is synced when something about it changes"},
	{Path: "eventRecordQPS", Harmless: true, Reason: "events are limited per object"},
	{Path: "eventBurst", Harmless: true, Reason: "events are limited per object"},
	{Path: "kubeAPIQPS", Harmless: true, Reason: "the API server limits its clients by priority and fairness"},
	{Path: "kubeAPIBurst", Harmless: true, Reason: "the API server limits its clients by priority and fairness"},
	{Path: "contentType", Accepted: []string{"application/vnd.kubernetes.protobuf"}, Harmless: true, Reason: "the kubelet always uses protobuf"},
	{Path: "enableContentionProfiling", Harmless: true, Reason: "the kubelet does not serve profiles"},
	{Path: "enableProfilingHandler", Accepted: []string{"false"}, Harmless: true, Reason: "the kubelet does not serve profiles"},
	{Path: "enableDebugFlagsHandler", Accepted: []string{"false"}, Harmless: true, Reason: "the log level is set with --log-level"},
	{Path: "logging", Harmless: true, Reason: "the log level is set with --log-level"},
	{Path: "showHiddenMetricsForVersion", Harmless: true, Reason: "skiff has no hidden metrics"},
	{Path: "containerLogMaxWorkers", Harmless: true, Reason: "container logs are rotated one after the other"},
	{Path: "configMapAndSecretChangeDetectionStrategy", Accepted: []string{"Watch"}, Harmless: true, Reason: "ConfigMaps and Secrets are always watched"},
	{Path: "kernelMemcgNotification", Harmless: true, Reason: "memory is measured in intervals"},
	{Path: "hairpinMode", Harmless: true, Reason: "the CNI plugin decides how a pod reaches itself through a Service"},
	{Path: "makeIPTablesUtilChains", Harmless: true, Reason: "skiff does not use iptables"},
	{Path: "iptablesMasqueradeBit", Harmless: true, Reason: "skiff does not use iptables"},
	{Path: "iptablesDropBit", Harmless: true, Reason: "skiff does not use iptables"},
}

// ServerNodeUnused are the fields of a KubeletConfiguration that have no effect on the node inside `skiff server`, besides KubeletUnused.
var ServerNodeUnused = []configfile.Unused{
	{Path: "tlsCertFile", Reason: "the cluster's CA issues the certificate of the node inside skiff server"},
	{Path: "tlsPrivateKeyFile", Reason: "the cluster's CA issues the certificate of the node inside skiff server"},
	{Path: "serverTLSBootstrap", Harmless: true, Reason: "the cluster's CA issues the certificate of the node inside skiff server"},
	{Path: "rotateCertificates", Harmless: true, Reason: "the node inside skiff server needs no client certificate"},
	{Path: "authentication.x509.clientCAFile", Reason: "the node inside skiff server accepts client certificates of the cluster's CA"},
}
