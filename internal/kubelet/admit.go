package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"skiff/internal/api/podspec"
	"skiff/internal/container"
	"skiff/internal/kubelet/alignment"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/status"
	"skiff/internal/podstate"
)

// safeSysctls are the sysctls that every pod may set.
var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
	"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
	"net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_notsent_lowat",
}

// rejection is the reason why a pod is not admitted.
type rejection struct {
	status.Reason
	// resource and missing are set if the node has not enough of a resource.
	resource corev1.ResourceName
	missing  int64
}

// admissionLock is a lock that is waited for only until a context is done. Its holder may wait for long: for a device plugin, or for other pods to
// terminate, which may wait for the lock themselves.
type admissionLock chan struct{}

func (l admissionLock) lock(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l admissionLock) unlock() { <-l }

// admit decides, once, whether the pod may run on this node. A pod that has containers was admitted before a restart of the kubelet.
func (w *worker) admit(ctx context.Context, pod *corev1.Pod, runtime *cri.Pod) (bool, error) {
	w.mu.Lock()
	admitted := w.allocated != nil
	w.mu.Unlock()
	if admitted {
		return true, nil
	}
	if len(runtime.Sandboxes) > 0 || len(runtime.Containers) > 0 {
		allocated := allocationFromStatus(pod)
		if err := w.reassign(ctx, withoutEndedInit(allocated.applied(pod), runtime)); err != nil {
			return false, err
		}
		w.allocate(allocated)
		return true, nil
	}
	if err := w.k.admission.lock(ctx); err != nil {
		return false, err
	}
	defer w.k.admission.unlock()
	rejected, err := w.k.checkAdmission(ctx, pod, w.k.Active())
	if err != nil {
		return false, err
	}
	if rejected == nil {
		w.allocate(allocationOf(pod))
		return true, nil
	}
	w.k.Metrics.Rejected(rejected.Reason.Reason)
	w.k.podEvent(pod, corev1.EventTypeWarning, rejected.Reason.Reason, "%s", rejected.Message)
	now := metav1.NewTime(time.Now())
	w.mu.Lock()
	w.rejected = true
	w.mu.Unlock()
	w.k.writer.Set(w.uid, &corev1.PodStatus{
		QOSClass: podspec.QOSClass(pod), Phase: corev1.PodFailed, Reason: rejected.Reason.Reason, Message: "Pod was rejected: " + rejected.Message,
		StartTime: &now, ObservedGeneration: pod.Generation,
	}, false)
	return false, nil
}

// reassign gives a pod that ran before a restart of the kubelet what it is missing in the checkpoints of CPUs, memory and devices. If the node does
// not have it, the pod goes on as it is.
func (w *worker) reassign(ctx context.Context, pod *corev1.Pod) error {
	if w.k.Allocator == nil {
		return nil
	}
	if err := w.k.admission.lock(ctx); err != nil {
		return err
	}
	defer w.k.admission.unlock()
	if err := w.k.Allocator.Allocate(ctx, pod); err != nil && ctx.Err() == nil {
		w.k.Log.Warn("failed to assign resources to a running pod", "pod", describe(pod), "error", err)
	}
	return ctx.Err()
}

// withoutEndedInit returns a pod without its init containers that have ended for good, because a container that starts after them was created: what they
// had was released then. Sidecars are kept.
func withoutEndedInit(pod *corev1.Pod, runtime *cri.Pod) *corev1.Pod {
	if !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return runtime.Container(c.Name) != nil }) {
		return pod
	}
	started := *pod
	started.Spec.InitContainers = slices.DeleteFunc(slices.Clone(pod.Spec.InitContainers), func(c corev1.Container) bool { return !container.IsSidecar(&c) })
	return &started
}

func (w *worker) allocate(a *allocation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.allocated = a
}

// checkAdmission returns why a pod cannot run on this node in addition to others, or nil. A critical pod preempts others if needed.
func (k *Kubelet) checkAdmission(ctx context.Context, pod *corev1.Pod, others []*corev1.Pod) (*rejection, error) {
	if k.Reject != nil {
		if reason := k.Reject(pod); reason != nil {
			return &rejection{Reason: *reason}, nil
		}
	}
	node := k.Node()
	if node == nil {
		return nil, errors.New("Node object has not been read yet")
	}
	if k.Allocator != nil && forbiddenSysctl(pod, k.AllowedSysctls) == "" {
		if err := k.Allocator.Allocate(ctx, pod); ctx.Err() != nil {
			return nil, ctx.Err() // that says nothing about the pod
		} else if err != nil {
			reason, message := alignment.AdmissionFailure(err)
			return &rejection{Reason: status.Reason{Reason: reason, Message: message}}, nil
		}
	}
	reasons := fits(pod, others, node, k.AllowedSysctls)
	if len(reasons) == 0 {
		return appArmorRejection(pod, k.Host.AppArmor), nil
	}
	if podstate.IsCritical(pod) {
		for i := range reasons {
			if reasons[i].resource == "" {
				return &reasons[i], nil
			}
		}
		if err := k.preempt(ctx, pod, others, reasons); ctx.Err() != nil {
			return nil, ctx.Err()
		} else if err != nil {
			return &rejection{Reason: status.Reason{
				Reason: "UnexpectedAdmissionError", Message: fmt.Sprintf("Unexpected error while attempting to recover from admission failure: %v", err),
			}}, nil
		}
		return appArmorRejection(pod, k.Host.AppArmor), nil
	}
	return &reasons[0], nil
}

// fits returns the reasons why a pod cannot run on a node, the most important first.
func fits(pod *corev1.Pod, others []*corev1.Pod, node *corev1.Node, allowedSysctls []string) []rejection {
	reject := func(reason, message string) []rejection {
		return []rejection{{Reason: status.Reason{Reason: reason, Message: message}}}
	}
	if message := forbiddenSysctl(pod, allowedSysctls); message != "" {
		return reject("SysctlForbidden", message)
	}
	if os := pod.Labels[corev1.LabelOSStable]; os != "" && os != runtime.GOOS {
		return reject("PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label")
	}
	if pod.Spec.OS != nil && string(pod.Spec.OS.Name) != runtime.GOOS {
		return reject("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
	}
	if s := pod.Spec.SecurityContext; s != nil && s.SupplementalGroupsPolicy != nil && *s.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		if f := node.Status.Features; f == nil || f.SupplementalGroupsPolicy == nil || !*f.SupplementalGroupsPolicy {
			return reject("SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node")
		}
	}
	reasons := usageOf(others).insufficient(pod, node)
	predicate := func(name, text string) {
		reasons = append(reasons, rejection{Reason: status.Reason{Reason: name, Message: fmt.Sprintf("Predicate %s failed: %s", name, text)}})
	}
	if match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !match {
		predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		predicate("NodeName", "node(s) didn't match the requested node name")
	}
	if portsConflict(pod, others) {
		predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
	}
	if !podstate.IsStatic(pod) {
		_, untolerated := schedulinghelper.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations,
			func(t *corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }, false)
		if untolerated {
			predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate")
		}
	}
	return reasons
}

// insufficient returns a rejection for each resource that the node has not enough of for one more pod.
func (u usage) insufficient(pod *corev1.Pod, node *corev1.Node) []rejection {
	var reasons []rejection
	check := func(name corev1.ResourceName, requested, used, capacity int64) {
		if requested > capacity-used {
			reasons = append(reasons, rejection{
				Reason: status.Reason{
					Reason:  "OutOf" + string(name),
					Message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, requested, used, capacity),
				},
				resource: name, missing: requested - (capacity - used),
			})
		}
	}
	if pods, ok := node.Status.Allocatable[corev1.ResourcePods]; ok {
		check(corev1.ResourcePods, 1, int64(u.pods), pods.Value())
	}
	requests := requestsOf(pod)
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, ok := requests[name]; ok && !q.IsZero() {
			check(name, amount(name, requests), amount(name, u.requests), amount(name, node.Status.Allocatable))
		}
	}
	for name := range requests {
		// Extended resources that are not in the node's allocatable are cluster-level resources.
		if _, has := node.Status.Allocatable[name]; has && name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage {
			check(name, amount(name, requests), amount(name, u.requests), amount(name, node.Status.Allocatable))
		}
	}
	return reasons
}

func amount(name corev1.ResourceName, list corev1.ResourceList) int64 {
	q := list[name]
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

func addTo(sum, list corev1.ResourceList) {
	for name, q := range list {
		total := sum[name]
		total.Add(q)
		sum[name] = total
	}
}

// hostPort is a port of the node that a pod uses.
type hostPort struct {
	protocol corev1.Protocol
	port     int32
	ip       string
}

func hostPorts(pod *corev1.Pod) []hostPort {
	var ports []hostPort
	for kind, c := range container.All(&pod.Spec) {
		if kind == container.Ephemeral || kind == container.Init && !container.IsSidecar(c) {
			continue
		}
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				port := hostPort{protocol: p.Protocol, port: p.HostPort, ip: p.HostIP}
				if port.protocol == "" {
					port.protocol = corev1.ProtocolTCP
				}
				ports = append(ports, port)
			}
		}
	}
	return ports
}

// portsConflict reports whether another pod uses a host port of this one.
func portsConflict(pod *corev1.Pod, others []*corev1.Pod) bool {
	wanted := hostPorts(pod)
	if len(wanted) == 0 {
		return false
	}
	allAddresses := func(ip string) bool { return ip == "" || net.ParseIP(ip).IsUnspecified() }
	for _, other := range others {
		for _, used := range hostPorts(other) {
			for _, p := range wanted {
				if p.protocol == used.protocol && p.port == used.port && (p.ip == used.ip || allAddresses(p.ip) || allAddresses(used.ip)) {
					return true
				}
			}
		}
	}
	return false
}

// forbiddenSysctl returns a message about a sysctl of a pod that is not allowed, or an empty one.
func forbiddenSysctl(pod *corev1.Pod, allowed []string) string {
	if pod.Spec.SecurityContext == nil {
		return ""
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		name := s.Name
		if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '/' {
			name = strings.NewReplacer("/", ".", ".", "/").Replace(name)
		}
		listed := false
		for _, pattern := range append(safeSysctls[:len(safeSysctls):len(safeSysctls)], allowed...) {
			pattern = strings.ReplaceAll(pattern, "/", ".")
			prefix, wildcard := strings.CutSuffix(pattern, "*")
			listed = listed || pattern == name || wildcard && strings.HasPrefix(name, prefix)
		}
		ipc := strings.HasPrefix(name, "kernel.shm") || strings.HasPrefix(name, "kernel.msg") || strings.HasPrefix(name, "fs.mqueue.") || name == "kernel.sem"
		switch {
		case !listed:
			return fmt.Sprintf("forbidden sysctl: %q not allowlisted", name)
		case strings.HasPrefix(name, "net.") && pod.Spec.HostNetwork:
			return fmt.Sprintf("forbidden sysctl: %q not allowed with host net enabled", name)
		case ipc && pod.Spec.HostIPC:
			return fmt.Sprintf("forbidden sysctl: %q not allowed with host ipc enabled", name)
		}
	}
	return ""
}
