package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
	} {
		c := DefaultKubelet()
		t.Run(strings.Join(test.args, " "), func(t *testing.T) { checkError(t, parse(&c, test.args...), test.want) })
	}
}
