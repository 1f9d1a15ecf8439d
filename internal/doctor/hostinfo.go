package doctor

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"skiff/internal/systemd"
)

// hostName is how the host is named.
type hostName struct {
	name string
	// machineID is that of /etc/machine-id; empty: there is none.
	machineID string
}

func (h Host) readHostName(context.Context) (hostName, error) {
	id, _ := os.ReadFile("/etc/machine-id") // a host without one is reported
	return hostName{h.NodeName, strings.TrimSpace(string(id))}, nil
}

func decideHostName(s hostName) (findings []Finding) {
	const rename = "hostnamectl set-hostname NAME, or --node-name"
	add := func(severity Severity, problem, breaks, when, fix string) {
		findings = append(findings, Finding{Severity: severity, Problem: problem, Breaks: breaks, When: when, Fix: fix})
	}
	wrong := append(validation.IsDNS1123Subdomain(s.name), validation.IsValidLabelValue(s.name)...)
	switch {
	case len(wrong) > 0:
		add(Error, fmt.Sprintf("the name of the host, %q, cannot be that of a node: %s", s.name, strings.Join(wrong, "; ")), "the node is not registered", whenStarted, rename)
	case s.name == "localhost" || strings.HasPrefix(s.name, "localhost."):
		add(Warning, "the name of the host is "+s.name, "a second host with that name cannot join: a node's name belongs to one host", "when it joins", rename)
	}
	if s.machineID == "" {
		add(Warning, "/etc/machine-id is empty", "nodes cannot be told apart by monitoring; systemd-networkd may give cloned hosts the same address", whenNow, "systemd-machine-id-setup")
	}
	return findings
}

func readInit(context.Context) (bool, error) { return systemd.IsRunning(), nil }

func decideInit(isSystemd bool) []Finding {
	if isSystemd {
		return nil
	}
	return []Finding{{
		Severity: Warning, Problem: "this host does not run systemd", Breaks: "'skiff install' cannot make a service: skiff is not started with the host", When: "at the next reboot",
		Fix: "start skiff with the host's own init system",
	}}
}

// traces are what another Kubernetes has left on the host.
type traces struct {
	// processes run; links and directories are there.
	processes, links, dirs []string
	// isRunning is whether skiff runs on the host.
	isRunning bool
}

// otherProcesses are the names of processes of other distributions that manage pods, their network or Services.
var otherProcesses = map[string]bool{
	"kubelet": true, "kube-proxy": true, "kubelite": true, "k3s": true, "k3s-server": true, "k3s-agent": true, "k0s": true, "rke2": true, "minikube": true,
	"kube-router": true, "flanneld": true, "cilium-agent": true, "calico-node": true,
}

// otherLinks are the names of links that other networks of pods make; a name that ends with * stands for all with the prefix.
var otherLinks = []string{"cni0", "flannel.*", "flannel-wg", "cilium_*", "vxlan.calico", "tunl0", "weave", "kube-bridge", "kube-ipvs0", "antrea-gw0"}

// otherDirs are directories in which other distributions have their state.
var otherDirs = []string{"/etc/kubernetes/manifests", "/var/lib/rancher/k3s", "/var/lib/rancher/rke2", "/var/lib/k0s", "/var/snap/microk8s"}

func (h Host) readOthers(ctx context.Context) (t traces, err error) {
	t.isRunning = h.IsRunning
	err = eachProcess(ctx, "/proc", func(p process) {
		if otherProcesses[p.name] && isOnHost(p) && !isInPod(p) {
			t.processes = append(t.processes, p.String())
		}
	})
	if err != nil {
		return t, err
	}
	links, err := net.Interfaces()
	if err != nil {
		return t, fmt.Errorf("list links: %w", err)
	}
	for _, link := range links {
		if isOtherLink(link.Name) {
			t.links = append(t.links, link.Name)
		}
	}
	for _, dir := range otherDirs {
		if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 && dir != h.StaticPods {
			t.dirs = append(t.dirs, dir)
		}
	}
	if pods := filepath.Join(h.KubeletDir, "pods"); h.IsForeignKubelet {
		if entries, err := os.ReadDir(pods); err == nil && len(entries) > 0 {
			t.dirs = append(t.dirs, pods)
		}
	}
	return t, nil
}

// isOnHost reports whether a process has the network of this one: a kubelet in a container with a network of its own, as tools for development start them, has nothing to do with this host.
func isOnHost(p process) bool {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return true
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.pid))
	return err != nil || own == theirs
}

// isInPod reports whether a process is one of a pod: a network plugin or a Service proxy that was installed in a cluster, which may be skiff's.
func isInPod(p process) bool {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
	return err == nil && isPodCgroup(string(groups))
}

// isPodCgroup reports whether one of the paths of cgroups is that of a pod, with either driver.
func isPodCgroup(groups string) bool { return strings.Contains(groups, "/kubepods") }

func isOtherLink(name string) bool {
	for _, pattern := range otherLinks {
		if prefix, isPrefix := strings.CutSuffix(pattern, "*"); name == pattern || isPrefix && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func decideOthers(t traces) (findings []Finding) {
	if len(t.processes) > 0 {
		findings = append(findings, Finding{
			Severity: Error, Problem: "another Kubernetes runs on this host: " + some(t.processes),
			Breaks: "two kubelets remove each other's cgroups and pods, and two Service proxies each other's connections", When: whenStarted,
			Fix: "stop and disable it; docs/migration.md says how to take over its cluster",
		})
	}
	left := t.dirs
	if !t.isRunning { // otherwise they may be those of the network plugin of skiff's own cluster
		left = append(t.links, t.dirs...)
	}
	if len(left) > 0 {
		findings = append(findings, Finding{
			Severity: Warning, Problem: "another Kubernetes has left this behind: " + some(left), Breaks: "its routes and rules may take packets of pods, and its pods may come back after a reboot",
			When: whenStarted, Fix: "remove it with its own uninstaller (kubeadm reset, k3s-uninstall.sh, k0s reset), and reboot",
		})
	}
	return findings
}
